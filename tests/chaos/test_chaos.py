"""The short form of `make chaos`, and the runner itself."""

import json
import pkgutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.contract import Role
from autotune.record.study import Trial
from autotune.search.history import History
from tests import trials
from tests.captured import captured
from tests.chaos import in_coordinators, in_nodes, in_trials
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, LostError, must
from tests.chaos.resume import check_told
from tests.chaos.run import NOT_SHORT, ROOMS, Row, all_faults, inject, main, summary, table
from tests.search.scripted import ok
from tests.trials import changed

FAULTS = all_faults()
LONG = {fault.name for fault in all_faults("nodes")} | {
    "Ctrl-C: once, a trial runs",
    "results folder moved: while a trial runs",
    "launcher or template killed: template killed before a trial starts",
}
ASKED = in_trials.ASKED | in_coordinators.ASKED | in_nodes.ASKED
"""Kinds of fault that other tests inject already -> such a test."""
REPOSITORY = Path(__file__).parents[2]
RECORDS = REPOSITORY / "results" / "recorded" / "chaos"


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    ground = Ground(tmp_path_factory.mktemp("chaos"))
    yield ground
    ground.close()


@pytest.mark.real
@pytest.mark.parametrize(
    "fault",
    [
        # Those of nodes wait for minutes; `tests/fleet/transports` kills some in every run, as
        # `test_warm.py` does templates, and `tests/cli/test_interrupt.py` interrupts. A folder
        # that is gone is as a disk that is full: the coordinator cannot write.
        pytest.param(fault, id=fault.name, marks=[pytest.mark.thorough] * (fault.name in LONG))
        for fault in FAULTS
        if fault.in_short
    ],
)
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
    names = [fault.name for fault in FAULTS]
    assert len(names) == len(set(names))
    kinds = {f.subject for room in ROOMS if room not in NOT_SHORT for f in all_faults(room)}
    assert kinds == {*ASKED, *(fault.subject for fault in FAULTS if fault.in_short)}
    assert sum(fault.rounds for fault in FAULTS) >= 200


@pytest.mark.parametrize(("kind", "test"), ASKED.items())
def test_what_the_short_form_leaves_out_is_asked_elsewhere(kind, test):
    file, _, name = test.partition("::")
    before, found, _ = (REPOSITORY / file).read_text(encoding="utf-8").partition(f"def {name}(")
    assert found
    assert "mark.thorough" not in before.rpartition("\n\n\n")[2], "it is asked in every run"
    assert not any(fault.in_short for fault in FAULTS if fault.subject == kind)


@pytest.mark.parametrize("room", [r for r in ROOMS if (RECORDS / f"{r}.json").exists()])
def test_the_record_is_of_these_faults_and_all_were_survived(room):
    record = json.loads((RECORDS / f"{room}.json").read_text())
    assert {row["fault"] for row in record["rows"]} <= {f.subject for f in all_faults(room)}
    assert record["injected"] == record["survived"] > 0
    assert record["lost"] == 0
    assert not any(row["problems"] or row["skipped"] for row in record["rows"])


def test_what_is_not_survived_is_counted_and_said(tmp_path, capsys):
    def loses(_):
        raise LostError("trial 3 is gone")

    def breaks(_):
        must(False, "an orphan is left")

    ground, row = Ground(tmp_path), Row(fault="fire")
    faults = [
        Fault(name="fire: in the rack", inject=loses),
        Fault(name="fire: in the hall", inject=breaks),
        Fault(name="fire: in the bin", inject=lambda _: None),
        Fault(name="fire: at sea", inject=breaks, needs=lambda: "there is no sea"),
    ]
    for fault in faults:
        inject(fault, ground, row)
    found = summary([row], 1.0)
    assert (found["injected"], found["survived"], found["lost"]) == (3, 1, 1)
    text = table(found)
    assert "not survived: fire: in the rack: LostError: trial 3 is gone" in text
    assert "not injected: fire: at sea: there is no sea" in text


def test_the_exit_code_says_whether_all_was_survived(monkeypatch, capsys):
    monkeypatch.setattr("tests.chaos.run.build", lambda *_: None)
    outcomes = iter([True, False])
    faults = [
        Fault(name=f"{n}: x", inject=lambda _: must(next(outcomes), "no")) for n in ("a", "b")
    ]
    monkeypatch.setattr("tests.chaos.run.all_faults", lambda _: faults)
    assert main(["--json", "--fault", "a*"]) == 0
    assert json.loads(capsys.readouterr().out)["survived"] == 1
    assert main(["--fault", "b*"]) == 1
    assert main(["--fault", "nothing has this name"]) == 1


def test_a_run_that_is_cut_short_keeps_what_it_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tests.chaos.run.build", lambda *_: None)
    file = tmp_path / "record.json"

    def cut(_):
        raise KeyboardInterrupt

    faults = [Fault(name="fire: a", inject=lambda _: None), Fault(name="water: a", inject=cut)]
    monkeypatch.setattr("tests.chaos.run.all_faults", lambda _: faults)
    with pytest.raises(KeyboardInterrupt):
        main(["--record", str(file)])
    kept = json.loads(file.read_text())
    assert [(row["fault"], row["survived"]) for row in kept["rows"]] == [("fire", 1)]
    assert kept["command"] == f"python -m tests.chaos.run --record {file}"


@pytest.mark.cases("target", "failing", "ran", "is_well")
def test_make_runs_what_was_asked_for_and_all_of_it(tmp_path, target, failing, ran, is_well):
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nshift; echo "$@" >> {tmp_path}/ran\n[ "$1" != tests.chaos.{failing} ]\n'
    )
    python.chmod(0o755)
    command = ["make", f"BIN={tmp_path}", "--old-file=extensions", "--old-file=install", *target]
    done = captured(command, cwd=REPOSITORY)
    assert (tmp_path / "ran").read_text().splitlines() == [f"tests.chaos.{each}" for each in ran]
    assert (done.returncode == 0) == is_well, done.stderr


def recorded(number, candidate, role=Role.SEARCH, *, disturbed="", **changes):
    spec = changed(trials.spec(number, role=role, **changes), candidate_hash=candidate)
    result = replace(ok(spec, 100.0), disturbed=disturbed)
    return Trial(folder=Path(), spec=spec, result=result)


def test_a_repeat_of_a_disturbed_trial_is_no_lost_one():
    told = [SimpleNamespace(state=SimpleNamespace(name="COMPLETE"))]
    check_told(History([recorded(0, "a"), recorded(1, "a", repeat_of=0)]), told)
    with pytest.raises(LostError, match="ran twice"):
        check_told(History([recorded(0, "a"), recorded(1, "a")]), told)


def test_what_is_damaged_is_the_only_trial_of_its_candidate():
    found = [
        recorded(0, "a", Role.BASELINE, disturbed="load"),
        recorded(1, "a", Role.BASELINE, repeat_of=0),
        recorded(2, "b", disturbed="load"),
        recorded(3, "b", repeat_of=2),
        recorded(4, "c"),
    ]
    numbers = [
        in_coordinators.lone_trial(SimpleNamespace(study=SimpleNamespace(trials=found[:n].copy)))
        for n in range(6)
    ]
    assert numbers == [None] * 5 + [4]
