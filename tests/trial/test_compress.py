"""A base configuration of an older DeepSpeed may compress: the script has to ask for it."""

import sys
from types import ModuleType

import torch

from autotune.trial.scripts.train import compress


def test_a_model_is_compressed_only_where_the_configuration_says_so(monkeypatch):
    asked = []
    module = ModuleType("deepspeed.compression.compress")
    vars(module)["init_compression"] = lambda model, config: asked.append((model, config))
    monkeypatch.setitem(sys.modules, "deepspeed.compression.compress", module)
    model = torch.nn.Linear(2, 2)
    compress(model, {"train_batch_size": 8})
    assert asked == []
    config = {"compression_training": {"weight_quantization": {}}}
    compress(model, config)
    assert asked == [(model, config)]
