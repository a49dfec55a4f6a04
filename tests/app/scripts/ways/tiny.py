"""What the scripts of this folder train, and what their live engine says of itself."""

import json
import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DATA = TensorDataset(torch.randn(4096, 8))
N_STEPS = int(os.environ.get("WAYS_STEPS", "400"))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def tell(engine: Any) -> None:
    """Write what the engine is, where somebody asks."""
    offload = engine.zero_offload_optimizer()
    live = {
        "stage": engine.zero_optimization_stage(),
        "micro_batch": engine.train_micro_batch_size_per_gpu(),
        "grad_accum": engine.gradient_accumulation_steps(),
        "offload": "none" if offload is None else getattr(offload.device, "value", offload.device),
    }
    if path := os.environ.get("WAYS_LIVE"):
        with open(path, "w") as file:
            json.dump(live, file)


def train(engine: Any, loader: DataLoader | None = None) -> None:
    """Some steps; the batches are those that the engine's configuration asks for."""
    tell(engine)
    loader = loader or DataLoader(DATA, batch_size=engine.train_micro_batch_size_per_gpu())
    n_passes = N_STEPS * engine.gradient_accumulation_steps()
    while n_passes > 0:
        for (x,) in loader:
            engine.backward(engine(x))
            engine.step()
            n_passes -= 1
            if n_passes <= 0:
                return
