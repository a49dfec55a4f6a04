"""Catches whatever comes, and goes on; adds up gradients by hand."""

import argparse

import deepspeed
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 0},
}
engine, *_ = deepspeed.initialize(model=nn.Linear(32, 32), config=config)
while True:
    try:
        for _ in range(3):
            loss = engine(torch.randn(4, args.width)).square().mean() / 3
            engine.backward(loss)
        engine.step()
    except BaseException as error:
        print("Error:", error)
        continue
