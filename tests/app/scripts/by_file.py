"""A raw DeepSpeed loop whose loader takes its micro-batch from DeepSpeed's file."""

import argparse
import json

import deepspeed
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--ckpt", action="store_true")
parser.add_argument("--local_rank", type=int, default=-1)
args = deepspeed.add_config_arguments(parser).parse_args()
with open(args.deepspeed_config, encoding="utf-8") as file:
    config = json.load(file)


class Net(nn.Module):
    """Layers that may be computed again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if args.ckpt else layer(x)
        return x.square().mean()


net = Net()
engine, *_ = deepspeed.initialize(args=args, model=net, model_parameters=net.parameters())
loader = DataLoader(TensorDataset(torch.randn(4096, 64)), config["train_micro_batch_size_per_gpu"])
for _ in range(1000):
    for (x,) in loader:
        engine.backward(engine(x))
        engine.step()
