"""argparse and json.load: the file is given under a flag of the script's own."""

import argparse
import json

import deepspeed
import tiny

parser = argparse.ArgumentParser()
parser.add_argument("--ds", required=True)
args = parser.parse_args()
with open(args.ds) as file:
    config = json.load(file)
network = tiny.Network()
engine, *_ = deepspeed.initialize(
    model=network, model_parameters=network.parameters(), config=config
)
tiny.train(engine)
