"""What constructors take: the recorded file against the installed packages, and how it is read."""

import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.constructors import optimizer_of, scheduler_of
from autotune.engines.deepspeed.rules.releases import NEWEST_READ
from tests.captured import captured
from tests.counting import calls_of
from tests.engines.deepspeed.rules.cases import setup

REPOSITORY = Path(__file__).resolve().parents[4]
CPU = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


def optimizer(kind, **params):
    return {"optimizer": {"type": kind, "params": {"torch_adam": None, **params}}}


def scheduler(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


def found(config, **case):
    return [(one.rule, *one.at) for one in judge(setup(config, **case))]


@pytest.mark.thorough
@pytest.mark.real
def test_the_file_is_what_the_installed_packages_say():
    """`make constructors` writes it anew.

    In a process of its own: it changes its environment, by which later tests would not find the
    extensions that are built.
    """
    if version("deepspeed") != NEWEST_READ:
        pytest.skip(f"the file is about DeepSpeed {NEWEST_READ}")
    done = captured([sys.executable, "-m", "tests.record_constructors", "--check"], cwd=REPOSITORY)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cases("config", "name")
def test_which_optimizer_is_made(config, name):
    made = optimizer_of(setup(config))
    assert made.name == name


@pytest.mark.parametrize("config", [optimizer("MuAdam"), {"optimizer": None}])
def test_of_some_optimizers_nothing_is_recorded(config):
    assert optimizer_of(setup(config)) is None


def test_deepspeeds_scheduler_comes_before_torchs():
    assert scheduler_of(setup(scheduler("WarmupLR"))).name == "WarmupLR"
    assert scheduler_of(setup(scheduler("StepLR"))).name == "torch.optim.lr_scheduler.StepLR"


@pytest.mark.cases("kind", "parameter", "value", "refused")
def test_a_value_is_judged_by_those_that_were_tried(kind, parameter, value, refused):
    made = optimizer_of(setup(optimizer(kind)))
    assert bool(made.refusal(parameter, value, accelerator="cpu")) is refused


def test_a_number_that_no_float_holds_is_not_judged():
    assert not optimizer_of(setup(optimizer("SGD"))).refusal("lr", 10**400, accelerator="cpu")


@pytest.mark.cases("config", "levels")
def test_values_that_only_an_extension_refuses(config, levels):
    told = judge(setup(config))
    assert [one.level for one in told if one.rule == "optimizer.param_value"] == levels


@pytest.mark.cases("section", "kind", "params", "case", "expected")
def test_what_is_found_and_where(section, kind, params, case, expected):
    made = {"optimizer": optimizer, "scheduler": scheduler}[section](kind, **params)
    assert [list(one) for one in found(made, **case)] == expected


@pytest.mark.cases("config", "changes")
def test_what_is_certain_is_a_change(config, changes):
    (one,) = judge(setup(config))
    (section,) = one.changes
    assert one.changes[section]["params"] == changes
    assert [type(value) for value in one.changes[section]["params"].values()] == [
        type(value) for value in changes.values()
    ]


@pytest.mark.cases("config")
def test_what_somebody_has_to_choose_is_none(config):
    (one,) = judge(setup(config))
    assert one.changes == {}
    assert one.choices


def test_what_muon_does_not_read_is_ignored():
    muon = {"optimizer": {"type": "Muon", "params": {"torch_adam": None, "nesterov": True}}}
    (one,) = judge(setup(muon))
    assert (one.rule, one.level) == ("optimizer.muon_param", "warning")


def test_auto_is_a_truth_to_a_switch():
    switch = optimizer("SGD", momentum=0.9, nesterov="auto")
    number = optimizer("SGD", momentum="auto")
    assert [one.level for one in judge(setup(switch))] == ["warning"]
    assert [one.level for one in judge(setup(number))] == ["error"]


@pytest.mark.cases("scheduler_of_it", "is_seen")
def test_a_schedule_comes_before_the_first_step(scheduler_of_it, is_seen):
    config = optimizer("AdamW", lr="1e-3") | scheduler_of_it
    seen = [("optimizer.param_value", "optimizer.params.lr")]
    assert found(config) == (seen if is_seen else [])
    # DeepSpeedCPUAdam looks at it as soon as it is made.
    assert found(config | CPU) == seen


def test_null_is_a_value():
    plain = setup()
    config = {**plain.ds_config, "optimizer": {"type": "AdamW", "params": {"eps": None}}}
    (one,) = judge(replace(plain, ds_config=config))
    assert one.at == ("optimizer.params.eps",)
    assert "eps=null: FusedAdam takes a number" in one.message


def test_a_newer_torch_may_take_more():
    asked = setup(optimizer("SGD", momentums=1))
    newer = replace(asked.environment, torch_version="99.0")
    assert judge(asked)
    assert judge(replace(asked, environment=newer)) == []


@pytest.mark.parametrize("made", [optimizer, scheduler])
def test_tens_of_thousands_of_parameters_are_told_in_bounds(made):
    """Each was compared with every known one, and each got a finding of its own."""
    kind = "AdamW" if made is optimizer else "WarmupLR"
    config = made(kind, **{f"p{number}": number for number in range(40_000)})
    told = []
    assert (
        calls_of(lambda: told.extend(judge(setup(config)))) < 30 * 40_000
    )  # 6 to 11 of each today
    assert 0 < len(told) < 100
    assert sum(len(one.message) + len(one.fix) for one in told) < 100_000
