"""Soaks of real trainings: checkpoints go on where they were, and faults are found."""

from pathlib import Path

import pytest

from autotune.fleet.node.processes import processes_of
from autotune.fleet.transports.local import local_fleet
from autotune.record.study import Study
from autotune.search.interrupt import Interrupt
from autotune.search.runner import Runner
from autotune.search.soak import Soak, soak_trials
from tests import trials
from tests.jobs import TINY

pytestmark = pytest.mark.real


@pytest.fixture
def record(tmp_path: Path):
    record = Study(tmp_path, "soak")
    record.lock()
    yield record
    assert processes_of(record.folder) == [], "a soak left processes behind"


def soak(record: Study, minutes: float, zero: dict, config: dict, **spec) -> Soak:
    ds_config = trials.ds_config(zero.pop("stage"), **config)
    ds_config["zero_optimization"].update(zero)
    fleet = local_fleet(trials.CPU, world=2)
    ran = soak_trials(
        trials.spec(**spec),
        trials.files(ds_config),
        minutes=minutes,
        runner=Runner(record=record, fleet=fleet, interrupt=Interrupt(), note=print),
    )
    problems = [*ran.failures, *ran.unknown]
    assert not [p for p in problems if "half" in p], problems
    kept = ran.checkpoint
    assert kept.size_bytes > 1000
    assert kept.steps_compared == 4
    assert not list(record.folder.rglob("*.pt"))
    return ran


HOST = {"device": "cpu"}
LLAMA = {"config": TINY, "vocab": TINY["vocab_size"]}
"""AutoTP splits models that it knows."""


@pytest.mark.cases("zero", "config", "spec")
@pytest.mark.thorough
def test_a_checkpoint_goes_on_where_the_training_was(record, zero, config, spec):
    ran = soak(record, 0.1, zero, config, **spec)
    assert ran.failures == []
    assert ran.unknown == []


def test_a_leak_and_a_state_that_no_checkpoint_holds_are_found(record):
    ran = soak(record, 0.2, {"stage": 1}, {}, factory="leaks_and_forgets")
    problems = ran.failures
    assert any("does not hold all of the training" in problem for problem in problems)
    assert any("memory grows: private_data" in problem for problem in problems)
