"""The Pareto front and the point that is picked of it."""

import pytest

from autotune.contract import Outcome, Role, TrialResult, TrialSpec
from autotune.record.answer import SearchAnswer, Standing
from autotune.record.study import Study
from autotune.search.history import History
from autotune.search.objective import RULE, Objective, front_of, knee, nearest_on_front
from autotune.space.candidate import Candidate
from tests.search.scripted import (
    ENVIRONMENT,
    GIB,
    ScriptedFleet,
    fault,
    lattice_of,
    make,
    ok,
    search,
)


def figure(rate: float, peak: float | None) -> Standing:
    return Standing(
        trial=0,
        candidate=Candidate.of({"micro_batch": 1}, world=1, global_batch=1),
        samples_per_s=rate,
        samples_per_s_low=rate * 0.99,
        samples_per_s_high=rate * 1.01,
        peak_memory_bytes=None if peak is None else int(peak),
    )


POINTS = {
    "fast": figure(100, 40),
    "dominated": figure(90, 41),
    "knee": figure(90, 20),
    "small": figure(50, 10),
    "slower and larger": figure(45, 12),
}


def test_the_front_is_what_nothing_beats_in_both_and_its_knee_where_a_byte_stops_paying():
    assert front_of(POINTS) == ["fast", "knee", "small"]
    assert nearest_on_front("knee", POINTS) == ["knee", "fast", "small"]
    unknown = figure(500, None)
    assert front_of({**POINTS, "unknown": unknown}) == ["fast", "knee", "small"]
    scaled = {
        key: figure(f.samples_per_s * 1000, f.peak_memory_bytes * 3) for key, f in POINTS.items()
    }
    two = {"small": figure(50, 10), "fast": figure(51, 40)}
    assert [knee(points, points) for points in (POINTS, scaled, two, {"unknown": unknown})] == [
        *("knee", "knee", "fast", "unknown")
    ]
    # Only what was compared is chosen, on everyone's scale.
    for names, chosen in ((("fast", "small"), "fast"), (("dominated",), "dominated")):
        assert knee({name: POINTS[name] for name in names}, POINTS) == chosen


def curve(spec: TrialSpec) -> TrialResult:
    """A front with a clear knee: micro-batch 4 has nearly the speed of 8 in half the memory."""
    if spec.identity.knobs["zero.stage"] == 0 and spec.layout.micro_batch == 2:
        return fault(spec, Outcome.OOM)
    rate = {1: 50.0, 2: 80.0, 4: 97.0, 8: 100.0}[spec.layout.micro_batch]
    share = {0: 1.0, 1: 0.99, 2: 0.98, 3: 0.97}[int(spec.identity.knobs["zero.stage"])]
    peak = {1: 4.0, 2: 5.0, 4: 8.0, 8: 20.0}[spec.layout.micro_batch] * (2 - share)
    return ok(spec, rate * share, peak=peak * GIB)


def pareto(study: Study, sampler: str = "grid", **changes) -> tuple[SearchAnswer, ScriptedFleet]:
    job = make(objective="pareto", sampler=sampler, **changes)
    fleet = ScriptedFleet(curve)
    lattice = lattice_of(job, recompute=("none",))
    return search(study, job, fleet=fleet, lattice=lattice), fleet


@pytest.mark.parametrize("sampler", ["tpe", "random", "grid"])
def test_a_search_answers_with_the_knee_and_the_front(study: Study, sampler: str):
    result, fleet = pareto(study, sampler, trials=16)
    assert (result.best.candidate.micro_batch, result.best.candidate["zero.stage"]) == (4, 0)
    assert result.front is not None
    rates = [point.samples_per_s for point in result.front]
    peaks = [point.peak_memory_bytes or 0 for point in result.front]
    assert rates == sorted(rates, reverse=True)
    assert peaks == sorted(peaks, reverse=True)
    assert [point.candidate.micro_batch for point in result.front] == [8, 4, 2, 1]
    compared = {spec.identity.candidate_hash for spec in fleet.ran(Role.CONFIRM)}
    assert {point.candidate.hash for point in result.front} <= compared
    assert len(compared) <= 6
    assert result.baseline is not None
    assert result.speedup.ratio == pytest.approx(0.97)


def test_only_that_objective_adds_the_front_to_the_answer(study: Study):
    result, _ = pareto(study, trials=4)
    answer = result.to_dict()
    assert answer["rule"] == RULE
    assert answer["best"] in answer["front"]
    other = search(Study(study.root, "other"), make(trials=2))
    assert (other.front, other.rule) == (None, "")


def test_patience_counts_from_the_last_change_of_the_front(study: Study):
    whole, fleet = pareto(study, trials=None, patience=3, seed=0)
    history = History(study.trials()).explored
    objective = Objective.of(make(objective="pareto"), ENVIRONMENT)
    numbers = {t.candidate.hash: t.trials[0].spec.identity.number for t in history.tried}
    assert whole.front is not None
    own = {t.candidate.hash: f for t in history.tried if (f := objective.figure(t)) is not None}
    last = max(numbers[key] for key in objective.leaders(own))
    assert max(numbers.values()) - last == 3
    assert len(fleet.ran(Role.SEARCH)) < 15
