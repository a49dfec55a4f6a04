"""A dict in the code, made of flags; and a JSON of the same keys that the script corrects."""

import argparse
import json
from pathlib import Path

import deepspeed
import tiny

OWN = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}}}
parser = argparse.ArgumentParser()
parser.add_argument("--stage", type=int, default=1)
parser.add_argument("--base")
args = parser.parse_args()
config = json.loads(Path(args.base).read_text()) if args.base else OWN
config |= {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": args.stage},
}
network = tiny.Network()
engine, *_ = deepspeed.initialize(
    model=network, model_parameters=network.parameters(), config=config
)
tiny.train(engine)
