import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from autotune.trial.guest.describe import _config_of, _sizes, _unwrapped


def test_a_config_is_json_whatever_it_holds() -> None:
    held = {"time_step_limit": (0.0, float("inf")), "dtype": object, 1: "one", "n_layers": 2}
    config = _config_of(SimpleNamespace(config=SimpleNamespace(to_dict=lambda: held)))
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["time_step_limit"] == [0.0, "Infinity"]
    assert config["n_layers"] == 2


def test_a_module_around_a_model_has_its_config() -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.config = SimpleNamespace(to_dict=lambda: {"model_type": "gpt2"})
    around = torch.nn.Sequential(torch.nn.Sequential(model), torch.nn.Dropout())
    assert _unwrapped(around) is model
    assert _config_of(around)["model_type"] == "gpt2"
    with_more = torch.nn.Sequential(model, torch.nn.Linear(2, 2))
    assert _unwrapped(with_more) is with_more


class Attention(torch.nn.Module):
    def __init__(self, **sizes: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(**sizes)


@pytest.mark.parametrize(
    ("name", "held", "n_heads"),
    [("n_head", 4, 4), ("num_attention_heads", 8, 8), ("n_head", True, 0), ("h", 4, 0)],
)
def test_heads_are_found_by_their_name_in_model_config_or_attention(name, held, n_heads):
    plain = torch.nn.Module()
    setattr(plain, name, held)
    for module in (torch.nn.Sequential(plain), Attention(**{name: held})):
        assert _sizes(module)["n_heads"] == n_heads
