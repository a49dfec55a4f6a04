"""accelerate by hand, its settings in its own YAML or in code."""

import argparse

import tiny
import torch
from accelerate import Accelerator, DeepSpeedPlugin, PartialState
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--plugin", action="store_true")
args = parser.parse_args()
PartialState(cpu=True)
plugin = DeepSpeedPlugin(zero_stage=1, gradient_accumulation_steps=2) if args.plugin else None
accelerator = Accelerator(deepspeed_plugin=plugin)
network = tiny.Network()
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
network, optimizer, loader = accelerator.prepare(
    network, optimizer, DataLoader(tiny.DATA, batch_size=2)
)
tiny.tell(network)
for _ in range(tiny.N_STEPS * 2):
    for (x,) in loader:
        with accelerator.accumulate(network):
            accelerator.backward(network(x))
            optimizer.step()
            optimizer.zero_grad()
        break
