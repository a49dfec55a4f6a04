"""Hangs in its third step, on one of its ranks."""

import time

import deepspeed
import torch
from torch import nn

config = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 1e-3}},
}
engine, *_ = deepspeed.initialize(model=nn.Linear(8, 8), config=config)
for step in range(1000):
    if step == 2 and engine.global_rank == 1:
        time.sleep(10_000)
    engine.backward(engine(torch.randn(1, 8)).square().mean())
    engine.step()
