from dataclasses import replace
from pathlib import Path

import pytest

from autotune.base.errors import NothingFeasibleError
from autotune.contract import Outcome, Role, TrialResult, TrialSpec
from autotune.record.study import Study
from tests.search.scripted import (
    GIB,
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    fault,
    lattice_of,
    make,
    ok,
    realistic,
    search,
)

Rung = tuple[int, int, str]


def climbed(fleet: ScriptedFleet) -> list[Rung]:
    return [
        (
            int(spec.identity.knobs["zero.stage"]),
            spec.layout.micro_batch,
            spec.workload.settings["recompute"],
        )
        for spec in fleet.ran(Role.BASELINE)
    ]


def fitting(*rungs: Rung):
    """Only these run; everything else is out of memory."""

    def behave(spec: TrialSpec) -> TrialResult:
        own = (
            int(spec.identity.knobs["zero.stage"]),
            spec.layout.micro_batch,
            spec.workload.settings["recompute"],
        )
        return ok(spec, 100.0) if own in rungs else fault(spec, Outcome.OOM)

    return ScriptedFleet(behave)


TWO_EACH = [(stage, size) for stage in (0, 1, 2, 3) for size in (8, 1)]
"""Stage and micro-batch of the trials after which a stage is left."""


@pytest.mark.parametrize(
    ("fits", "expected"),
    [
        ([(0, 8, "none")], [(0, 8, "none")]),
        (
            [(0, 1, "none"), (0, 2, "none")],
            [(0, 8, "none"), (0, 1, "none"), (0, 2, "none"), (0, 4, "none")],
        ),
        ([(2, 8, "none")], [*((*two, "none") for two in TWO_EACH[:4]), (2, 8, "none")]),
        (
            [(1, 8, "full")],
            [*((*two, "none") for two in TWO_EACH), *((*two, "full") for two in TWO_EACH[:3])],
        ),
    ],
    ids=["the largest runs", "bisected", "hopeless stages", "recomputed"],
)
def test_without_a_forecast_each_rung_is_bisected(study, fits, expected):
    fleet = fitting(*fits)
    result = search(study, make(trials=1), fleet=fleet)
    assert climbed(fleet) == expected
    best = result.baseline.candidate
    assert (best["zero.stage"], best.micro_batch, best["recompute"]) == fits[-1]


def test_the_limit_includes_the_head_room(study: Study):
    """Stage 0 takes 18.5 GiB at micro-batch 1: more than 20 GiB less a tenth."""
    fleet = ScriptedFleet(realistic)
    search(study, make(trials=1, memory_limit="20GiB", head_room=0.1), fleet=fleet)
    assert climbed(fleet)[:3] == [(0, 8, "none"), (0, 1, "none"), (1, 8, "none")]


def test_no_speedup_without_a_baseline(study: Study):
    def only_the_search(spec: TrialSpec) -> TrialResult:
        return fault(spec, Outcome.OOM) if spec.identity.role is Role.BASELINE else ok(spec, 100.0)

    job, notes = make(trials=2), Notebook()
    beyond = lattice_of(job, stages=(3,), micro_batches=(1,), recompute=("every_2",))
    result = search(study, job, only_the_search, lattice=beyond, observer=notes)
    assert (result.baseline, result.speedup) == (None, None)
    assert result.best.n_runs == 2, "a lone finalist is confirmed all the same"
    assert any("no baseline" in note for note in notes.notes)


def test_no_micro_batch_divides_the_share(study: Study):
    job = replace(make(trials=1), global_batch=15)
    fleet = ScriptedFleet(lambda spec: ok(spec, 100.0))
    result = search(study, job, fleet=fleet, lattice=lattice_of(job))
    assert climbed(fleet) == []
    assert result.baseline is None


@pytest.mark.parametrize(("global_batch", "sizes"), [(24, {4, 1, 2}), (2, {1})])
def test_micro_batches_divide_the_global_batch_exactly(study, global_batch, sizes):
    job = make(trials=1, global_batch=global_batch)
    fleet = fitting((0, 1, "none"))
    search(study, job, fleet=fleet, lattice=lattice_of(job, micro_batches=(1,)))
    assert {size for _, size, _ in climbed(fleet)} == sizes


def test_every_other_knob_is_at_its_default(study: Study):
    fleet = fitting((3, 8, "none"))
    search(study, make(trials=1), fleet=fleet)
    last = fleet.ran(Role.BASELINE)[-1].identity.knobs
    assert last["offload.optimizer"] == last["offload.param"] == "none"
    assert last["tp"] == 1
    assert last["stage3.param_persistence_threshold"] == 100_000


def test_an_illegal_rung_costs_no_trial(study: Study):
    job = make(trials=1)
    fleet = fitting((1, 8, "none"))
    search(study, job, fleet=fleet, refused=lambda c: c["zero.stage"] == 0)
    assert climbed(fleet) == [(1, 8, "none")]


def test_a_rung_in_the_record_is_not_run_again(study: Study):
    fleet = fitting((0, 1, "none"), (0, 2, "none"))
    search(study, make(trials=1), fleet=fleet)
    again = fitting((0, 1, "none"), (0, 2, "none"))
    result = search(study, make(trials=2), fleet=again)
    assert climbed(again) == []
    assert result.baseline.candidate.micro_batch == 2


def test_a_users_own_file_is_rendered_as_it_is_in_every_run(study: Study):
    job = make(trials=2, baseline="mine.json")
    own = candidate(job, zero__stage=1, micro_batch=4)
    fleet = ScriptedFleet(realistic)
    result = search(study, job, fleet=fleet, engine=ScriptedEngine(job, own=own))
    assert climbed(fleet) == [(1, 4, "none")]
    assert result.baseline.candidate == own
    own_runs = [s.identity.number for s in fleet.specs if s.identity.candidate_hash == own.hash]
    assert len(own_runs) == 4
    for number in own_runs:
        written = study.trial_folder(number) / "config" / "ds_config.json"
        assert "mine.json" in written.read_text()


def test_a_users_own_file_that_does_not_run_is_not_replaced(study: Study):
    job = make(trials=2, baseline=str(Path("mine.json")))
    own = candidate(job, zero__stage=0, micro_batch=8)
    result = search(study, job, engine=ScriptedEngine(job, own=own))
    assert (result.baseline, result.speedup) == (None, None)


def test_a_failing_platform_is_not_taken_for_a_baseline_that_does_not_run(study: Study):
    def launch_fails_twice(spec: TrialSpec) -> TrialResult:
        return fault(spec, Outcome.LAUNCH) if spec.identity.number < 2 else ok(spec, 100, peak=GIB)

    fleet = ScriptedFleet(launch_fails_twice)
    result = search(study, make(trials=1), fleet=fleet)
    assert climbed(fleet) == [(0, 8, "none")] * 3
    assert [spec.provenance.retry_of for spec in fleet.ran(Role.BASELINE)] == [None, 0, 1]
    assert result.baseline.trial == 2


def test_the_ladder_keeps_to_the_time_budget(study: Study):
    """A trial takes 10 s: three rungs of 30 s, although a fourth would be the baseline."""
    job, notes = make(trials=1, budget="35s"), Notebook()
    with pytest.raises(NothingFeasibleError):
        search(study, job, fleet=(fleet := fitting((1, 1, "none"))), observer=notes)
    assert len(climbed(fleet)) == 3
    assert any("time budget ends" in note for note in notes.notes)


def test_nothing_at_all_runs(study: Study):
    with pytest.raises(NothingFeasibleError):
        search(study, make(trials=3), fleet=fitting())


def test_a_disturbed_baseline_serves_where_its_repeat_cannot_be_paid_for(study: Study):
    """A trial takes 10 s: 15 s pay for the first, not for its repeat."""

    def disturbed(spec: TrialSpec) -> TrialResult:
        return replace(ok(spec, 100.0), disturbed="other processes took 40% of core 0")

    job, notes, fleet = make(trials=1, budget="15s"), Notebook(), ScriptedFleet(disturbed)
    result = search(study, job, fleet=fleet, observer=notes)
    assert len(fleet.specs) == 1
    assert result.baseline.trial == 0
    assert not any("no speedup to report" in note for note in notes.notes)
    fleet = fitting((0, 8, "none"))
    again = search(study, make(trials=1, budget="200s"), fleet=fleet)
    assert fleet.specs[0].provenance.repeat_of == 0
    assert again.baseline.trial == 1
