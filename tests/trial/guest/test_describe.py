import json
from types import SimpleNamespace

from autotune.trial.guest.describe import _config_of


def test_a_config_is_json_whatever_it_holds() -> None:
    held = {"time_step_limit": (0.0, float("inf")), "dtype": object, 1: "one", "n_layers": 2}
    config = _config_of(SimpleNamespace(config=SimpleNamespace(to_dict=lambda: held)))
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["time_step_limit"] == [0.0, "Infinity"]
    assert config["n_layers"] == 2
