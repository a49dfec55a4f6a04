"""Pretrains the GPT model of bridge.yaml from random weights with Megatron-Bridge.

Started on every rank, as launch.sh does. Changes of bridge.yaml are all that it takes.
"""

from functools import partial
from pathlib import Path

import torch
import yaml
from megatron.bridge.models.gpt_provider import GPTModelProvider
from megatron.bridge.models.mla_provider import MLAModelProvider
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
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
from megatron.bridge.training.mixed_precision import get_mixed_precision_config
from megatron.bridge.training.pretrain import pretrain
from megatron.core.fusions.fused_bias_geglu import quick_gelu

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
    "dist": DistributedInitConfig,
}
ACTIVATIONS = {
    "silu": torch.nn.functional.silu,
    "gelu": partial(torch.nn.functional.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


def configuration(path: Path) -> ConfigContainer:
    """The configuration that a file of sections describes."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    precision = data.pop("mixed_precision")
    if precision is not None:
        precision = get_mixed_precision_config(precision)
        for name in ("fp8", "grad_reduce_in_fp32"):
            setattr(precision, name, data.pop(name, getattr(precision, name)))
    model = data["model"]
    model["activation_func"] = ACTIVATIONS[model["activation_func"]]
    if "window_size" in model:
        model["window_size"] = tuple(model["window_size"])
    for moment in ("exp_avg_dtype", "exp_avg_sq_dtype"):
        if moment in data["optimizer"]:
            data["optimizer"][moment] = getattr(torch, data["optimizer"][moment])
    latent = {"model": MLAModelProvider} if model.get("multi_latent_attention") else {}
    if precision is None:
        data["model"]["pipeline_dtype"] = torch.float32
    made = {name: (SECTIONS | latent)[name](**fields) for name, fields in data.items()}
    return ConfigContainer(**made, mixed_precision=precision)


if __name__ == "__main__":
    pretrain(configuration(Path(__file__).with_name("bridge.yaml")), forward_step)
