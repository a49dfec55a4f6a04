"""Every fault, injected: one of each kind in `make test`, all of them in `make chaos`."""

import os
import pkgutil
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.chaos import (
    around_trials,
    in_coordinators,
    in_nodes,
    in_ray,
    in_slurm,
    in_trials,
    out_of_sight,
)
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault

ROOMS: dict[str, ModuleType] = {
    "trials": in_trials,
    "around": around_trials,
    "coordinators": in_coordinators,
    "sight": out_of_sight,
    "nodes": in_nodes,
    "slurm": in_slurm,
    "ray": in_ray,
}
NOT_SHORT = ("slurm", "ray")
"""Rooms that the short form leaves out: `tests/fleet/transports` starts such nodes already."""
FAULTS: dict[str, list[Fault]] = {room: [*module.faults()] for room, module in ROOMS.items()}
ALL = [fault for faults in FAULTS.values() for fault in faults]
IS_WHOLE = os.environ.get("AUTOTUNE_CHAOS") == "all"
"""Whether each fault is injected, as often as it says."""
LONG = {fault.name for fault in FAULTS["nodes"]} | {
    "Ctrl-C: once, a trial runs",
    "results folder moved: while a trial runs",
    "launcher or template killed: template killed before a trial starts",
}
"""Those of nodes wait for minutes; `tests/fleet/transports` kills some in every run, as
`test_warm.py` does templates, and `tests/cli/test_interrupt.py` interrupts. A folder that is gone
is as a disk that is full: the coordinator cannot write."""
ASKED = in_trials.ASKED | in_coordinators.ASKED | in_nodes.ASKED
"""Kinds of fault that other tests inject already -> such a test."""
REPOSITORY = Path(__file__).parents[2]
SECURITY = (REPOSITORY / "SECURITY.md").read_text(encoding="utf-8")


def injections() -> Iterator[Any]:
    """The faults to inject, each by its room and its name."""
    for room, faults in FAULTS.items():
        for fault in faults:
            marks = [pytest.mark.thorough] if fault.name in LONG and not IS_WHOLE else []
            for number in range(fault.rounds if IS_WHOLE else int(fault.in_short)):
                name = f"{room}: {fault.name}" + (f", again {number}" if number else "")
                yield pytest.param(fault, id=name, marks=marks)


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    # A shell's background jobs ignore Ctrl-C, and so would every search that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ground = Ground(tmp_path_factory.mktemp("chaos"))
    yield ground
    ground.close()


@pytest.mark.real
@pytest.mark.parametrize("fault", injections())
def test_it_is_survived(fault, ground):
    if reason := fault.needs():
        pytest.skip(reason)
    try:
        fault.inject(ground)
    except BaseException:
        ground.close()  # whatever it left must not spoil the next one
        raise


@pytest.mark.parametrize("name", in_coordinators.FUNCTIONS)
def test_a_function_at_which_coordinators_are_killed_is_there(name):
    assert callable(pkgutil.resolve_name(name))


def test_every_fault_has_a_name_of_its_own_and_every_kind_a_short_form():
    names = [fault.name for fault in ALL]
    assert len(names) == len(set(names))
    kinds = {f.subject for room in ROOMS if room not in NOT_SHORT for f in FAULTS[room]}
    assert kinds == {*ASKED, *(fault.subject for fault in ALL if fault.in_short)}


@pytest.mark.parametrize(("kind", "test"), ASKED.items())
def test_what_the_short_form_leaves_out_is_asked_elsewhere(kind, test):
    file, _, name = test.partition("::")
    before, found, _ = (REPOSITORY / file).read_text(encoding="utf-8").partition(f"def {name}(")
    assert found
    assert "mark.thorough" not in before.rpartition("\n\n\n")[2], "it is asked in every run"
    assert not any(fault.in_short for fault in ALL if fault.subject == kind)


def test_what_security_names_is_there():
    assert (files := re.findall(r"`(tests/[\w/]+\.py)`", SECURITY))
    assert all((REPOSITORY / file).is_file() for file in files)
    named = re.findall(r"faults? ((?:`[^`]+`(?:, )?)+)", SECURITY)
    names = {name for names in named for name in re.findall(r"`([^`]+)`", names)}
    assert names
    assert names <= {fault.subject for fault in ALL}
