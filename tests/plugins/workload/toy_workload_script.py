"""Trains the model of a trial's spec on one and the same sample, as anybody's script would."""

import argparse
import json
import os
from pathlib import Path

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM

parser = argparse.ArgumentParser()
parser.add_argument("--tokens", type=int)
n_tokens = parser.parse_args().tokens
spec = json.loads((Path(os.environ["AUTOTUNE_TRIAL_DIR"]) / "spec.json").read_text("utf-8"))
config = AutoConfig.for_model(**spec["workload"]["model"]["config"])
config.use_cache = False
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
engine, *_ = deepspeed.initialize(
    model=model, model_parameters=model.parameters(), config={"train_batch_size": 1}
)
tokens = torch.ones(engine.train_micro_batch_size_per_gpu(), n_tokens, dtype=torch.long)
while True:
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
