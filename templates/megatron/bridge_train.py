"""Pretrains the GPT model of bridge.yaml from random weights with Megatron-Bridge.

Started on every rank, as launch.sh does. Changes of bridge.yaml are all that it takes.
"""

from functools import partial
from pathlib import Path

import torch
import yaml
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    GPTDatasetConfig,
    LoggerConfig,
    OptimizerConfig,
    RNGConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
    ValidationConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.pretrain import pretrain

SECTIONS = {
    "train": TrainingConfig,
    "validation": ValidationConfig,
    "model": GPTModelProvider,
    "optimizer": OptimizerConfig,
    "scheduler": SchedulerConfig,
    "ddp": DistributedDataParallelConfig,
    "dataset": GPTDatasetConfig,
    "logger": LoggerConfig,
    "tokenizer": TokenizerConfig,
    "checkpoint": CheckpointConfig,
    "rng": RNGConfig,
}
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
}


def configuration(path: Path) -> ConfigContainer:
    """The configuration that a file of sections describes."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    precision = data.pop("mixed_precision")
    data["model"]["activation_func"] = ACTIVATIONS[data["model"]["activation_func"]]
    if precision is None:
        data["model"]["pipeline_dtype"] = torch.float32
    made = {name: SECTIONS[name](**fields) for name, fields in data.items()}
    return ConfigContainer(**made, mixed_precision=precision)


if __name__ == "__main__":
    pretrain(configuration(Path(__file__).with_name("bridge.yaml")), forward_step)
