"""Trains without DeepSpeed, and for ever."""

import torch
from torch import nn

model = nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
while True:
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
