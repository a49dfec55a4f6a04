import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.base.student_t import t_quantile
from autotune.contract import Outcome, Role, Start, TrialResult, TrialSpec
from autotune.job.job import Compared, Job
from autotune.record.answer import SearchAnswer
from autotune.record.spread import PRIOR_DEGREES, PRIOR_DEVIATION
from autotune.record.study import Study, Trial
from autotune.search import confirm, race
from autotune.search.base import Stage
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from tests.search.scripted import (
    ENVIRONMENT,
    GIB,
    Behaviour,
    Notebook,
    Patient,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    fault,
    lattice_of,
    make,
    ok,
    search,
    spec_of_run,
    with_budget,
)

JOB = make()
OBJECTIVE = Objective.of(JOB, ENVIRONMENT)


def spec_of(number: int, member: Candidate, round_number: int | None = None) -> TrialSpec:
    role = Role.SEARCH if round_number is None else Role.CONFIRM
    return spec_of_run(JOB, Run(candidate=member, role=role, confirm_round=round_number), number)


def trial(spec: TrialSpec, result: TrialResult) -> Trial:
    return Trial(folder=Path(), spec=spec, result=result)


def members_of(n: int) -> tuple[Candidate, ...]:
    return tuple(candidate(JOB, zero__stage=0, micro_batch=2**k) for k in range(n))


def compared(rates: dict[Candidate, list[float]]) -> confirm.Comparison:
    """A finished comparison with these samples/s per round."""
    history = History()
    n_rounds = max(len(values) for values in rates.values())
    for round_number in range(n_rounds):
        for member, values in rates.items():
            spec = spec_of(len(history.trials), member, round_number)
            history = history.with_trial(trial(spec, ok(spec, values[round_number])))
    return final(tuple(rates), history)


def final(members: tuple[Candidate, ...], history: History) -> confirm.Comparison:
    """A comparison whose runs all start cold; the last member is the baseline."""
    return confirm.Comparison(
        members=members,
        baseline=members[-1].hash,
        first_round=0,
        rules=race.COLD,
        history=history,
        objective=OBJECTIVE,
    )


def test_interval_by_hand():
    """Two candidates in three rounds: 2 degrees of freedom; each look may miss 2.5%."""
    best, start = members_of(2)
    logs = {best: [0.01, 0.02, 0.03], start: [-0.01, 0.01, 0.0]}
    rates = {m: [100 * math.exp(x) for x in values] for m, values in logs.items()}
    verdict = compared(rates)
    # Four degrees more than the prior has: squares of 0.0004, less what 1% of each run explains.
    steps = (math.log(1.01 / 0.99) / 2 / 1.96) ** 2
    squares = PRIOR_DEGREES * PRIOR_DEVIATION**2 + 0.0004 - 4 * steps
    variance = squares / (PRIOR_DEGREES + 4) + steps
    half_width = t_quantile(0.975, PRIOR_DEGREES + 4) * math.sqrt(variance * (1 + 1 / 3))
    figure = verdict.figures[best.hash]
    assert figure.samples_per_s_low == pytest.approx(100 * math.exp(0.02 - half_width))
    assert figure.samples_per_s_high == pytest.approx(100 * math.exp(0.02 + half_width))
    gain = verdict.race.gain(best.hash, start.hash)
    # The differences 0.02, 0.01 and 0.03 deviate by 0.01 from their mean.
    half_width = t_quantile(0.9875, 2) * 0.01 / math.sqrt(3)
    assert math.log(gain.ratio) == pytest.approx(0.02)
    assert math.log(gain.low) == pytest.approx(0.02 - half_width, abs=1e-5)
    assert math.log(gain.high) == pytest.approx(0.02 + half_width, abs=1e-5)


@pytest.mark.parametrize(
    "ending",
    [lambda s: fault(s, Outcome.OOM), lambda s: ok(s, 200.0, peak=25 * GIB)],
    ids=["fails", "breaks the limit"],
)
def test_a_finalist_that_fails_once_is_not_handed_out(ending):
    good, bad = members_of(2)
    comparison = compared({good: [100, 101, 102], bad: [200, 201, 202]})
    history = comparison.history
    spec = next(t.spec for t in history.trials if t.spec.identity.candidate_hash == bad.hash)
    history = history.with_trial(trial(spec, ending(spec)))
    verdict = replace(comparison, history=history)
    assert verdict.has_verdict
    assert list(verdict.figures) == [good.hash]


def test_no_verdict_before_two_whole_rounds():
    first, second = members_of(2)
    comparison = compared({first: [100, 101], second: [90, 91]})
    assert comparison.has_verdict
    shorter = History(comparison.history.trials[:-1])
    assert not replace(comparison, history=shorter).has_verdict


def explored(rates: list[float], *, high: float = 1.01) -> History:
    history = History()
    for number, (member, rate) in enumerate(zip(members_of(len(rates)), rates, strict=True)):
        spec = spec_of(number, member)
        interval = {"samples_per_s_low": rate / high, "samples_per_s_high": rate * high}
        history = history.with_trial(trial(spec, replace(ok(spec, rate), **interval)))
    return history


def test_finalists_overlap_the_best_and_come_best_first():
    chosen = confirm.finalists(explored([70, 99.5, 100, 98.5]), OBJECTIVE)
    assert [member.micro_batch for member in chosen] == [4, 2, 8]
    four = confirm.finalists(explored([100, 101, 102, 103, 104, 105, 106], high=2.0), OBJECTIVE)
    assert [member.micro_batch for member in four] == [64, 32, 16, 8]


def test_finalists_for_memory_keep_the_fastest_that_sets_the_floor():
    objective = Objective.of(make(objective="peak_memory", objective_floor=0.9), ENVIRONMENT)
    history = History()
    for number, (rate, peak) in enumerate([(100, 20), (91, 10), (89.5, 8), (60, 2)]):
        spec = spec_of(number, members_of(4)[number])
        history = history.with_trial(trial(spec, ok(spec, rate, peak=peak * GIB)))
    chosen = confirm.finalists(history, objective)
    # 10 GiB holds the floor, the fastest sets it, 8 GiB might hold it, 2 GiB cannot.
    assert [member.micro_batch for member in chosen] == [2, 1, 4]


def three_ways(spec: TrialSpec) -> TrialResult:
    """Micro-batch 8 and 4 are close, the rest is behind; each run differs a little."""
    rate = {1: 50.0, 2: 80.0, 4: 119.0, 8: 120.0}[spec.layout.micro_batch]
    return ok(
        spec, rate * (1 + 0.001 * (spec.identity.number % 3)), peak=spec.layout.micro_batch * GIB
    )


def confirmed(fleet: ScriptedFleet) -> list[tuple[int, int | None]]:
    return [
        (spec.layout.micro_batch, spec.identity.confirm_round) for spec in fleet.ran(Role.CONFIRM)
    ]


def narrow(job=None):
    return lattice_of(job or JOB, stages=(0,), recompute=("none",))


BESIDE = make(baseline="mine.json")
"""A job whose baseline is micro-batch 2."""


def beside(
    study: Study, behave: Behaviour = three_ways, job: Job = BESIDE, **more: Any
) -> tuple[SearchAnswer, ScriptedFleet]:
    """Search beside that baseline, later than the search before."""
    fleet = ScriptedFleet(behave, now_s=1_000_000.0 * (1 + len(study.trials())))
    own = candidate(job, zero__stage=0, micro_batch=2)
    chosen = {"lattice": narrow(), "engine": ScriptedEngine(job, own=own), **more}
    return search(study, job, fleet=fleet, **chosen), fleet


def test_finalists_and_baseline_are_compared_in_interleaved_rounds(study: Study):
    result, fleet = beside(study)
    last = max(r or 0 for _, r in confirmed(fleet))
    rounds = [{size for size, r in confirmed(fleet) if r == number} for number in range(last + 1)]
    assert rounds[0] == {2, 4, 8}
    assert all({2, 8} <= members for members in rounds), "the best and the baseline run in each"
    starts = {s.identity.confirm_round: s.measure.start for s in fleet.ran(Role.CONFIRM)}
    assert starts == {r: Start.COLD if r == last else Start.WARM for r in range(last + 1)}
    assert fleet.most_at_once[Role.CONFIRM] == 1
    assert (result.best.candidate.micro_batch, result.best.n_runs) == (8, last + 1)
    assert result.speedup.low < result.speedup.ratio < result.speedup.high
    assert result.speedup.ratio == pytest.approx(1.5, rel=0.01)


@pytest.mark.parametrize("noise", [0.0, 0.004])
def test_the_comparison_can_be_that_of_the_best_alone(study: Study, noise: float):
    """Three candidates may be the best; one of them runs beside the baseline."""

    def near(spec: TrialSpec) -> TrialResult:
        rate = {1: 50.0, 2: 80.0, 4: 118.0, 8: 120.0}[spec.layout.micro_batch]
        return ok(spec, rate * (1 + noise * (-1) ** spec.identity.number))

    result, fleet = beside(study, near, make(baseline="mine.json", compare="best"))
    last = max(r or 0 for _, r in confirmed(fleet))
    assert last >= 2, "at least three rounds"
    assert sorted(confirmed(fleet)) == sorted(
        (size, number) for size in (2, 8) for number in range(last + 1)
    )
    assert result.best.candidate.micro_batch == 8
    assert result.speedup.ratio == pytest.approx(1.5, rel=0.02)
    _, everyone = beside(study, near)
    assert {size for size, _ in confirmed(everyone)} == {2, 4, 8}, "the race of all may follow"


def test_nothing_beats_the_baseline(study: Study):
    result = search(study, JOB, three_ways, lattice=narrow())
    assert result.best.candidate == result.baseline.candidate
    assert result.speedup.ratio == 1.0
    assert result.speedup.low < 1.0 < result.speedup.high


def test_ties_are_those_whose_interval_overlaps_the_bests(study: Study):
    def noisy(spec: TrialSpec) -> TrialResult:
        rate = {1: 50.0, 2: 80.0, 4: 119.0, 8: 120.0}[spec.layout.micro_batch]
        return ok(spec, rate * (1 + 0.01 * (spec.identity.number % 3)))

    result = search(study, JOB, noisy, lattice=narrow())
    assert [tie.candidate.micro_batch for tie in result.ties] == [4]


def test_who_dropped_out_as_surely_slower_is_no_tie(study: Study):
    """Its one run says little by itself: after noisy rounds the interval of its ratio has 1."""
    behind = {2: 0.10, 4: 0.11}

    def noisy(spec: TrialSpec) -> TrialResult:
        size, number = spec.layout.micro_batch, spec.identity.confirm_round
        slower = 0.0 if size == 8 else behind.get(size, 1.0)
        if number is None and size != 8:  # near enough to be a finalist
            slower -= 0.04
        elif number is not None and number > 0:
            slower += 0.04 * (-1) ** (number + (size == 8))
        return ok(spec, 120.0 * math.exp(-slower))

    fleet = ScriptedFleet(noisy)
    result = search(study, JOB, fleet=fleet, lattice=narrow())
    rounds = {size: [r for its, r in confirmed(fleet) if its == size] for size in (2, 4, 8)}
    assert rounds == {2: [*range(4)], 4: [0], 8: [*range(4)]}
    history = History(study.trials())
    verdict = confirm.verdict_of(confirm.recorded_comparisons(history, OBJECTIVE))
    left = next(t.candidate for t in history.tried if t.candidate.micro_batch == 4)
    gain = verdict.race.gain(result.best.candidate.hash, left.hash)
    assert not gain.is_told_apart
    assert [tie.candidate.micro_batch for tie in result.ties] == [2]


def test_a_comparison_cut_short_continues_with_the_missing_runs(study: Study):
    first = ScriptedFleet(three_ways)
    search(study, JOB, fleet=first, lattice=narrow())
    whole = confirmed(first)
    for spec in first.ran(Role.CONFIRM)[3:]:
        (study.trial_folder(spec.identity.number) / "result.json").unlink()
        (study.trial_folder(spec.identity.number) / "spec.json").unlink()
    second, third = ScriptedFleet(three_ways), ScriptedFleet(three_ways)
    answer = search(study, JOB, fleet=second, lattice=narrow())
    assert second.ran(Role.SEARCH) == second.ran(Role.BASELINE) == []
    assert confirmed(second) == whole[3:]
    again = search(study, JOB, fleet=third, lattice=narrow())
    assert (third.specs, again.speedup) == ([], answer.speedup), "it is over"


@pytest.mark.cases("budget", "compare", "is_interrupted")
def test_what_is_recorded_counts_whatever_a_later_call_has_time_for(
    study: Study, budget: dict[str, Any], compare: Compared, is_interrupted: bool
):
    first, _ = beside(study)
    job, interrupt = replace(with_budget(BESIDE, **budget), compare=compare), Patient()
    if is_interrupted:
        interrupt.request()
    again, fleet = beside(study, job=job, interrupt=interrupt)
    assert fleet.specs == []
    assert (again.best, again.speedup) == (first.best, first.speedup)


def test_a_new_leader_that_nobody_compared_takes_no_answer_away(study: Study):
    """Its one trial is faster, and the recorded comparison rests on more."""
    small = lattice_of(JOB, stages=(0,), micro_batches=(2, 4), recompute=("none",))
    first, _ = beside(study, lattice=small)
    cut, fleet = beside(study, interrupt=Patient(3))
    assert 8 in {s.layout.micro_batch for s in fleet.ran(Role.SEARCH)}
    notes = Notebook()
    short, _ = beside(study, job=with_budget(BESIDE, time_s=1.0), observer=notes)
    for answer in (cut, short):
        assert answer.best.candidate == first.best.candidate
        assert answer.speedup == first.speedup
    assert any("the recorded comparison counts" in note for note in notes.notes)


def test_a_best_that_is_slower_than_the_baseline_is_none(study: Study):
    """Its own trial was lucky."""

    def lucky(spec: TrialSpec) -> TrialResult:
        rate = {1: 50.0, 2: 80.0, 4: 60.0, 8: 61.0}[spec.layout.micro_batch]
        is_first = spec.identity.role is not Role.CONFIRM and spec.layout.micro_batch == 8
        # The platform ends all runs of the baseline in the last round, so it is not judged there.
        is_lost = spec.layout.micro_batch == 2 and spec.identity.confirm_round == 5
        return fault(spec, Outcome.LOST) if is_lost else ok(spec, 120.0 if is_first else rate)

    result, _ = beside(study, lucky)
    assert result.best.candidate == result.baseline.candidate
    assert result.speedup.ratio == 1.0
    assert not result.has_proven_gain


def test_a_new_finalist_starts_a_new_comparison(study: Study):
    """Rounds that are over were not interleaved with it."""
    small = lattice_of(JOB, stages=(0,), micro_batches=(1, 2), recompute=("none",))
    beside(study, lattice=small)
    _, fleet = beside(study)
    assert min(r or 0 for _, r in confirmed(fleet)) == race.BLOCK
    assert {size for size, r in confirmed(fleet) if r == race.BLOCK} == {2, 4, 8}


@pytest.mark.cases("left", "n_runs")
def test_as_much_comparison_as_the_time_allows(study: Study, left: float, n_runs: int):
    lattice = lattice_of(JOB, stages=(0,), micro_batches=(4, 8), recompute=("none",))
    beside(study, lattice=lattice, interrupt=Patient(3))
    roles = [t.spec.identity.role for t in study.trials()]
    assert roles == [Role.BASELINE, Role.SEARCH, Role.SEARCH]
    notes, paid = Notebook(), with_budget(BESIDE, time_s=30.0 + left)
    result, fleet = beside(study, job=paid, lattice=lattice, observer=notes)
    assert len(confirmed(fleet)) == n_runs
    if n_runs == 0:
        assert result.speedup is None
        assert any("no final comparison: its shortest form" in note for note in notes.notes)
    said = {snapshot.stage for snapshot in notes.snapshots}
    assert (Stage.CONFIRM in said) is (n_runs > 0), "a stage in which nothing runs is not said"


def test_the_view_counts_the_runs_that_are_missing_in_the_round(study: Study):
    notes = Notebook()
    job = replace(JOB, guard_steps=0)
    search(study, job, three_ways, lattice=narrow(), observer=notes)
    left = [s.time_left_s for s in notes.snapshots if s.stage is Stage.CONFIRM]
    assert left[0] == 20.0
    assert left[-1] == 0.0
    assert any(s.note for s in notes.snapshots)
    assert (notes.snapshots[-1].stage, notes.snapshots[-1].note) == (Stage.DONE, "")


def test_the_view_is_shown_the_comparison_while_it_runs_and_its_own_figures_alone(study: Study):
    def behave(spec: TrialSpec) -> TrialResult:
        result = three_ways(spec)
        assert result.samples_per_s is not None
        share = 0.5 if spec.identity.role is Role.CONFIRM else 1.0
        return ok(spec, share * result.samples_per_s)

    notes = Notebook()
    answer, _ = beside(study, behave, observer=notes)
    assert answer.best is not None
    assert answer.baseline is not None
    shown = [s for s in notes.snapshots if s.stage is Stage.CONFIRM]
    races = [s.comparison for s in shown]
    assert {s.comparison for s in notes.snapshots if s.stage is not Stage.CONFIRM} == {None}
    rounds = [compared.race.n_rounds for compared in races if compared is not None]
    assert (rounds[0], len(rounds)) == (0, len(races))
    assert rounds == sorted(rounds)
    last = races[-1]
    assert last.leader == answer.best
    assert last.start == answer.baseline
    assert last.gain == answer.speedup
    assert (races[0].leader, races[0].others, races[0].gain) == (None, (), None)


def cold_s(history: History, guard_steps: int = 0) -> float:
    return confirm.run_seconds(history, race.COLD, guard_steps)[Start.COLD]


def test_a_run_of_the_comparison_is_expected_to_start_as_slowly_as_any_did():
    def history(*import_s: float) -> History:
        return History(
            trial(
                spec_of(number, member),
                replace(
                    ok(spec_of(number, member), 100.0),
                    wall_s=5.0,
                    phases_s={"spawn": 1.0, "import": seconds},
                ),
            )
            for number, (member, seconds) in enumerate(zip(members_of(3), import_s, strict=True))
        )

    warm, cold = history(3.0, 0.0, 0.0), history(3.0, 3.0, 3.0)
    assert cold_s(warm) - cold_s(cold) == 3.0


@pytest.mark.cases("guard_steps", "step_s", "added_s")
def test_the_guard_takes_the_steps_that_a_run_would_not_take_without_it(
    guard_steps: int, step_s: float, added_s: float
):
    one = spec_of(0, members_of(1)[0])
    result = ok(one, one.layout.global_batch / step_s)
    history = History([trial(one, replace(result, wall_s=5.0))])
    assert confirm.guard_s(history, guard_steps) == pytest.approx(added_s)
    longer_s = cold_s(history, guard_steps) - cold_s(history)
    assert longer_s == pytest.approx(added_s)
    assert confirm.guard_s(History(), guard_steps) is None
