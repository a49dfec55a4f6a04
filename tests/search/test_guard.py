"""What a search does with a best candidate whose losses drift: the best that passes takes over."""

import dataclasses

import pytest

from autotune.contract import Role, Start, TrialResult, TrialSpec
from autotune.record.answer import answer_of
from autotune.record.guard import Convergence
from autotune.record.study import Study
from autotune.search import confirm
from autotune.search.race import BLOCK
from tests.search.scripted import (
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    lattice_of,
    make,
    ok,
    search,
)

COURSE = [10.0 - 0.05 * step for step in range(30)]


def drifting(*stages: int):
    """Higher stages are faster by far; those named learn nothing."""

    def behave(spec: TrialSpec) -> TrialResult:
        stage = int(spec.identity.knobs["zero.stage"])
        rate = 100.0 * (1 + stage) * (1 + 0.001 * (spec.identity.number % 3))
        its = ok(spec, rate)
        losses = [10.0] * 30 if stage in stages else COURSE
        return dataclasses.replace(its, losses=losses)

    return behave


def searched(study: Study, behave, **changes):
    own = candidate(make(), zero__stage=0, micro_batch=4)
    job = make(baseline="mine.json", **changes)
    fleet, notes = ScriptedFleet(behave), Notebook()
    lattice = lattice_of(job, micro_batches=(4,), recompute=("none",))
    answer = search(
        study,
        job,
        fleet=fleet,
        lattice=lattice,
        engine=ScriptedEngine(job, own=own),
        observer=notes,
    )
    return answer, fleet, notes


def blocks_of(fleet: ScriptedFleet) -> set[int]:
    """Comparisons that were made, by their first round."""
    return {s.identity.confirm_round // BLOCK * BLOCK for s in fleet.ran(Role.CONFIRM)}


def stage_of(standing) -> int:
    return int(standing.candidate["zero.stage"])


def test_the_fastest_is_the_best_where_it_trains_as_the_baseline_does(study: Study):
    answer, fleet, _ = searched(study, drifting())
    assert stage_of(answer.best) == 3
    assert answer.guard.verdict is Convergence.PASS
    assert answer.drifted is None
    cold = [s for s in fleet.ran(Role.CONFIRM) if s.measure.start is Start.COLD]
    assert len(cold) == 2
    assert {s.measure.warmup_steps + s.measure.min_steps for s in cold} == {20}
    warm = [s.measure.min_steps for s in fleet.ran(Role.CONFIRM) if s not in cold]
    assert set(warm) == {6}, "the baseline's own trial took as many steps: it shows the repeat"


def test_the_best_that_passes_takes_the_place_of_one_that_drifts(study: Study):
    answer, fleet, notes = searched(study, drifting(3))
    assert stage_of(answer.best) == 2
    assert answer.guard.verdict is Convergence.PASS
    assert stage_of(answer.drifted.standing) == 3
    assert answer.drifted.guard.verdict is Convergence.FAIL
    assert answer.speedup.ratio == pytest.approx(3, rel=0.01), "it was compared, too"
    assert len(blocks_of(fleet)) == 2
    assert any("its losses drift" in note for note in notes.notes)


def test_comparisons_are_limited_and_the_baseline_is_left(study: Study):
    answer, fleet, _ = searched(study, drifting(1, 2, 3))
    assert stage_of(answer.best) == 0
    assert len(blocks_of(fleet)) == confirm.MAX_COMPARISONS
    again, fleet, _ = searched(study, drifting(1, 2, 3))
    assert (fleet.specs, again.to_dict()) == ([], answer.to_dict())
    assert stage_of(answer.drifted.standing) == 3
    assert answer.best.candidate == answer.baseline.candidate


def test_a_drift_is_allowed_where_the_job_says_so(study: Study):
    answer, fleet, _ = searched(study, drifting(3), allow_loss_drift=True)
    assert stage_of(answer.best) == 3
    assert answer.guard.verdict is Convergence.FAIL
    assert answer.drifted is None
    assert len(blocks_of(fleet)) == 1


def test_the_guard_can_be_switched_off(study: Study):
    answer, fleet, _ = searched(study, drifting(3), guard_steps=0)
    assert stage_of(answer.best) == 3
    assert answer.guard is None
    assert {s.measure.min_steps for s in fleet.ran(Role.CONFIRM)} == {6, 10}


def test_slow_steps_are_not_multiplied_for_the_guard(study: Study):
    def slow(spec: TrialSpec) -> TrialResult:
        return ok(spec, spec.layout.global_batch / 10.0)  # 10 s a step

    _, fleet, _ = searched(study, slow)
    assert {s.measure.min_steps for s in fleet.ran(Role.CONFIRM)} == {6, 10}


def test_the_answer_is_kept_as_it_was(study: Study):
    answer, _, _ = searched(study, drifting(3))
    study.update_state(answer=answer.to_dict())
    kept = answer_of(study)
    assert kept.to_dict() == answer.to_dict()
