"""A YAML with the program's own keys around DeepSpeed's section, of which it needs some itself."""

import argparse
import copy
from pathlib import Path

import deepspeed
import tiny
import yaml

parser = argparse.ArgumentParser()
parser.add_argument("-c", "--experiment", type=Path, required=True)
args = parser.parse_args()
settings = yaml.safe_load(args.experiment.read_text())
base = yaml.safe_load((args.experiment.parent / settings["extends"]).read_text())
config = copy.deepcopy(settings["engine"])
config["optimizer"]["params"]["lr"] = base["lr"] * config["train_batch_size"]
network = tiny.Network()
engine, _, loader, _ = deepspeed.initialize(
    model=network, model_parameters=network.parameters(), config=config, training_data=tiny.DATA
)
tiny.train(engine, loader)
