"""A trial writes where it was told: no path of a configuration reaches its ranks."""

import json
from pathlib import Path

import pytest

from autotune.base.nested import look_up, merge
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.outputs import without_outputs
from tests.jobs import CPU, canonical_candidate, tiny_job

TEMPLATES = Path(__file__).parents[3] / "templates"


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.cases("path", "value")
def test_what_would_be_written_is_left_out_and_told(path, value):
    given = merge(nested(path, value), {"zero_optimization": {"stage": 2}})
    config, notes = without_outputs(given)
    assert look_up(config, path) is None
    assert config["zero_optimization"]["stage"] == 2
    assert notes == {path: (value, None)}
    assert look_up(given, path) == value  # the user's own is left as it is


@pytest.mark.cases("path", "value")
def test_what_writes_nothing_stays(path, value):
    assert without_outputs(nested(path, value)) == (nested(path, value), {})


def test_a_table_of_paths_is_left_out():
    config, notes = without_outputs({"profiler": {"targets": {"/home/me/a": True, "rank": 0}}})
    assert config == {"profiler": {"targets": {"rank": 0}}}
    assert notes == {"profiler.targets./home/me/a": (True, None)}


@pytest.mark.parametrize(
    "section", ["tensorboard", "csv_monitor", "wandb", "autotuning", "nebula"]
)
def test_sections_that_do_nothing_but_write_are_left_out(section):
    config, notes = without_outputs({section: {"enabled": True, "api_key": "x"}, "steps": 1})
    assert config == {"steps": 1}
    assert notes == {section: ("***", None)}


@pytest.mark.parametrize("of", ["baseline", "base_config", "template"])
def test_no_path_reaches_a_trial_wherever_it_comes_from(of, tmp_path):
    own = {"flops_profiler": {"enabled": True, "output_file": str(tmp_path / "flops.txt")}}
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, **own})
    )
    if of == "baseline":
        engine, candidate = DeepSpeedEngine(tiny_job(tmp_path), CPU).baseline(file)
    elif of == "base_config":
        job = tiny_job(tmp_path, base_config=str(file))
        engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, micro_batch=2)
    else:
        template = tmp_path / "mine" / "deepspeed" / "ds_config.json.j2"
        template.parent.mkdir(parents=True)
        shipped = (TEMPLATES / "deepspeed" / "ds_config.json.j2").read_text()
        head, brace, rest = shipped.partition("{\n")
        template.write_text(f"{head}{brace}{json.dumps(own)[1:-1]},{rest}")
        job = tiny_job(tmp_path, templates=str(tmp_path / "mine"))
        engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, micro_batch=2)
    written = json.loads(engine.files(candidate)["ds_config.json"])
    assert written["flops_profiler"] == {"enabled": True}
    told = (own["flops_profiler"]["output_file"], None)
    assert engine.overridden(candidate)["flops_profiler.output_file"] == told
