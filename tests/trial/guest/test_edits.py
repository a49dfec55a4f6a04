import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.contract import CONFIG_DIR
from autotune.trial.guest.edits import EDITS_FILE, Edits, configuration_of

CONFIG = {"zero_optimization": {"stage": 1}, "train_batch_size": 8, "fp16": {"enabled": False}}


def edited(keys: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(json.dumps(CONFIG))
    Edits(configuration=keys).apply(config)
    return config


@pytest.mark.cases("keys", "changed")
def test_keys_are_edited_and_the_rest_stays(keys, changed):
    """`changed` says the sections that differ; null: it is gone."""
    expected = {name: value for name, value in (CONFIG | changed).items() if value is not None}
    assert edited(keys) == expected


def test_a_second_time_changes_nothing() -> None:
    edits = Edits(configuration={"zero_optimization.stage": 2, "fp16": None, "a.b.c": [1]})
    once: dict[str, Any] = json.loads(json.dumps(CONFIG))
    edits.apply(once)
    twice = json.loads(json.dumps(once))
    edits.apply(twice)
    assert once == twice


def test_a_value_of_the_edits_is_not_shared_with_the_configuration() -> None:
    value = {"device": "cpu"}
    config: dict[str, Any] = {}
    Edits(configuration={"zero_optimization.offload_param": value}).apply(config)
    config["zero_optimization"]["offload_param"]["device"] = "nvme"
    assert value == {"device": "cpu"}


def test_a_configuration_is_taken_in_each_form_that_deepspeed_takes(tmp_path: Path) -> None:
    text = json.dumps(CONFIG)
    path = tmp_path / "ds.json"
    path.write_text(text.replace("{", "{ // as hjson has it\n", 1))
    assert configuration_of(CONFIG) == (CONFIG, "")
    assert configuration_of(str(path)) == (CONFIG, str(path))
    assert configuration_of(path) == (CONFIG, str(path))
    assert configuration_of(text) == (CONFIG, "")
    assert configuration_of(base64.urlsafe_b64encode(text.encode()).decode()) == (CONFIG, "")


def test_the_user_s_own_dict_is_not_edited() -> None:
    given = {"zero_optimization": {"stage": 1}}
    found, _ = configuration_of(given)
    found["zero_optimization"]["stage"] = 3
    assert given["zero_optimization"]["stage"] == 1


def test_what_is_no_configuration_says_so() -> None:
    with pytest.raises(TypeError, match="SimpleNamespace"):
        configuration_of(SimpleNamespace())


def test_edits_are_read_from_the_trial_s_folder(tmp_path: Path) -> None:
    (tmp_path / CONFIG_DIR).mkdir()
    written = {"configuration": {"a": 1}, "arguments": {"b": 2}}
    (tmp_path / CONFIG_DIR / EDITS_FILE).write_text(json.dumps(written))
    assert Edits.of_trial(tmp_path) == Edits(configuration={"a": 1}, arguments={"b": 2})
