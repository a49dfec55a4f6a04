"""Ends before a trial has seen enough: its data is over, or it has had enough itself."""

import argparse
import sys

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--rows", type=int, default=8)
parser.add_argument("--raises", action="store_true")
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()

config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
}
engine, _, loader, _ = deepspeed.initialize(
    model=nn.Linear(8, 8),
    config=config,
    training_data=TensorDataset(torch.randn(args.rows, 8)),
)
for (x,) in loader:
    engine.backward(engine(x).square().mean())
    engine.step()
if args.raises:
    raise KeyError("the user's own mistake")
sys.exit(0)
