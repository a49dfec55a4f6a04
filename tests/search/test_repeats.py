"""Disturbed trials are repeated once, clearly losing ones are told when to stop."""

import math
import shutil
from collections.abc import Callable
from dataclasses import fields, replace

import pytest

from autotune.contract import Measure, Outcome, Role, Start, TrialResult, TrialSpec
from autotune.job.job import GUARD_STEPS
from autotune.record.spread import Spread, outdone
from autotune.record.study import Study
from autotune.search.answer import RecordStandings
from autotune.search.history import MANY_TRIALS, History
from autotune.search.objective import LOSING_SHARE, Objective
from autotune.search.optuna_study import frozen_trials, make_axes
from autotune.search.trial_spec import BRIEF_MEASURE, MEASURE, WARM_MEASURE
from tests.search.scripted import (
    ENVIRONMENT,
    Behaviour,
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    fault,
    lattice_of,
    make,
    ok,
    rate_of,
    realistic,
    search,
    session_of,
    with_budget,
)
from tests.trials import LIMITS

LOAD = "other processes took 40% of core 0"


def disturbing(which: Callable[[TrialSpec], bool], slower: float = 0.5) -> Behaviour:
    """Something else runs beside these trials, which measure too little."""

    def behave(spec: TrialSpec) -> TrialResult:
        result = realistic(spec)
        if not which(spec) or not result.samples_per_s:
            return result
        return replace(ok(spec, slower * result.samples_per_s), disturbed=LOAD)

    return behave


def once(role: Role, *, confirm_round: int | None = None) -> Callable[[TrialSpec], bool]:
    """The first trial of a role (and round) that runs; the others find a quiet machine."""
    hit: list[int] = []

    def is_hit(spec: TrialSpec) -> bool:
        runs = realistic(spec).samples_per_s is not None
        if (
            not hit
            and runs
            and (spec.identity.role, spec.identity.confirm_round) == (role, confirm_round)
        ):
            hit.append(spec.identity.number)
        return spec.identity.number in hit

    return is_hit


def figure_of(study: Study, spec: TrialSpec) -> float:
    history = History(study.trials())
    tried = next(t for t in history.tried if t.candidate.hash == spec.identity.candidate_hash)
    found = Objective.of(make(), ENVIRONMENT).figure(tried)
    return found.samples_per_s


@pytest.mark.parametrize("role", [Role.BASELINE, Role.SEARCH])
def test_a_disturbed_trial_is_repeated_once_and_the_repeat_counts(study: Study, role: Role):
    fleet, notes = ScriptedFleet(disturbing(once(role))), Notebook()
    search(study, make(trials=8), fleet=fleet, observer=notes)
    (repeat,) = [spec for spec in fleet.specs if spec.provenance.repeat_of is not None]
    assert repeat.provenance.repeat_of == repeat.identity.number - 1, "it comes next"
    assert len({s.identity.candidate_hash for s in fleet.ran(Role.SEARCH)}) == 8, "and is free"
    assert repeat.identity.role is role
    assert repeat.provenance.retry_of is None
    assert (
        repeat.identity.candidate_hash
        == fleet.specs[repeat.provenance.repeat_of or 0].identity.candidate_hash
    )
    assert figure_of(study, repeat) == pytest.approx(rate_of(repeat))
    first = study.trials()[repeat.provenance.repeat_of or 0].result
    assert (first.outcome, first.disturbed) == (Outcome.OK, LOAD), "both are kept"
    said = f"repeats trial {repeat.provenance.repeat_of}, which was disturbed: {LOAD}"
    assert any(said in note for note in notes.notes)


def test_one_that_is_disturbed_twice_is_kept_with_the_mark(study: Study):
    cursed: set[str] = set()

    def behave(spec: TrialSpec) -> bool:
        if spec.identity.role is Role.SEARCH and not cursed:
            cursed.add(spec.identity.candidate_hash)
        return spec.identity.role is Role.SEARCH and spec.identity.candidate_hash in cursed

    fleet = ScriptedFleet(disturbing(behave))
    search(study, make(), fleet=fleet)
    own = [s for s in fleet.ran(Role.SEARCH) if s.identity.candidate_hash in cursed]
    assert [spec.provenance.repeat_of for spec in own] == [None, own[0].identity.number]
    tried = next(t for t in History(study.trials()).tried if t.candidate.hash in cursed)
    assert tried.is_settled
    assert (tried.measured.number, tried.measured.disturbed) == (own[1].identity.number, LOAD)


def test_a_repeat_that_the_platform_ends_is_tried_again(study: Study):
    disturbed = disturbing(once(Role.SEARCH))

    def behave(spec: TrialSpec) -> TrialResult:
        if spec.provenance.repeat_of is not None and spec.provenance.retry_of is None:
            return fault(spec, Outcome.COMM)
        return disturbed(spec)

    fleet = ScriptedFleet(behave)
    search(study, make(), fleet=fleet)
    again = [
        (s.identity.number, s.provenance.repeat_of, s.provenance.retry_of)
        for s in fleet.specs
        if s.provenance.repeat_of is not None
    ]
    first = again[0][0] - 1
    assert again == [(first + 1, first, None), (first + 2, first, first + 1)]


def test_where_every_trial_is_disturbed_repeating_ends(study: Study):
    fleet = ScriptedFleet(disturbing(lambda _: True))
    search(study, make(trials=12), fleet=fleet)
    repeats = [
        spec.identity.number for spec in fleet.specs if spec.provenance.repeat_of is not None
    ]
    assert 0 < len(repeats) <= MANY_TRIALS / 2
    assert len({spec.identity.candidate_hash for spec in fleet.ran(Role.SEARCH)}) == 12


def test_a_disturbed_run_of_the_comparison_is_repeated_in_its_round(study: Study):
    fleet = ScriptedFleet(disturbing(once(Role.CONFIRM, confirm_round=1)))
    result = search(study, make(), fleet=fleet)
    (repeat,) = [spec for spec in fleet.specs if spec.provenance.repeat_of is not None]
    assert (repeat.identity.confirm_round, repeat.identity.role) == (1, Role.CONFIRM)
    quiet = ScriptedFleet(realistic)
    other = search(Study(study.root, "quiet"), make(), fleet=quiet)
    assert result.speedup.ratio == pytest.approx(other.speedup.ratio)


def test_a_new_baseline_after_a_disturbed_comparison_is_not_run_without_end(study, tmp_path):
    """What is usual is asked of the whole record, by who owes a run as by who starts it."""
    lattice = lattice_of(make(), stages=(0, 1))
    noisy = disturbing(lambda spec: spec.identity.role is Role.CONFIRM)
    search(study, make(trials=2), noisy, lattice=lattice)
    assert sum(bool(t.result and t.result.disturbed) for t in study.trials()) > MANY_TRIALS / 2
    job = make(trials=2, baseline=str(tmp_path / "own.json"))
    own = candidate(job, zero__stage=1, micro_batch=1, recompute="full")
    assert own.hash not in {t.spec.identity.candidate_hash for t in study.trials()}

    class Finite(ScriptedFleet):
        def submit(self, spec, folder):
            assert len(self.ran(Role.BASELINE)) < 5, "it is run again and again"
            return super().submit(spec, folder)

    fleet = Finite(disturbing(lambda spec: spec.identity.role is Role.BASELINE))
    result = search(study, job, fleet=fleet, lattice=lattice, engine=ScriptedEngine(job, own=own))
    assert [spec.provenance.repeat_of for spec in fleet.ran(Role.BASELINE)] == [None]
    assert result.baseline.candidate == own


def test_repeats_do_not_overrun_the_time_of_the_comparison(study: Study):
    """Each run takes as long as planned, so that there is time for the planned ones alone."""

    def run(name: str, time_s: float) -> ScriptedFleet:
        fleet = ScriptedFleet(disturbing(once(Role.CONFIRM, confirm_round=1)))
        job = with_budget(make(trials=2, guard_steps=0), time_s=time_s)
        search(Study(study.root, name), job, fleet=fleet, lattice=lattice_of(job, stages=(0, 3)))
        return fleet

    def repeats(fleet: ScriptedFleet) -> int:
        return sum(spec.provenance.repeat_of is not None for spec in fleet.ran(Role.CONFIRM))

    def n_cold(fleet: ScriptedFleet) -> int:
        return sum(spec.measure.start is Start.COLD for spec in fleet.ran(Role.CONFIRM))

    ample = run("ample", 10_000.0)
    explored_s = 10.0 * (len(ample.specs) - len(ample.ran(Role.CONFIRM)))
    assert repeats(ample) == 1
    # Two rounds of two, of which the last is cold; then one run more.
    exact = run("exact", explored_s + 5 * 10.0)
    assert (repeats(exact), n_cold(exact)) == (0, 2)
    assert exact.now_s - 1_000_000.0 <= explored_s + 5 * 10.0
    paid = run("paid", explored_s + 7 * 10.0)
    assert (repeats(paid), n_cold(paid)) == (1, 2)


@pytest.mark.parametrize("cut_after", [4, 5, 12])
def test_resume_answers_the_same(study: Study, cut_after: int):
    behave = disturbing(
        lambda spec: spec.provenance.repeat_of is None and spec.identity.number % 4 == 3
    )
    whole, fleet = ScriptedFleet(behave), ScriptedFleet(behave)
    answer = search(study, make(), fleet=whole)
    for number in range(cut_after, len(whole.specs)):
        shutil.rmtree(study.trial_folder(number))
    again = search(study, make(), fleet=fleet)
    asked, expected = (
        [
            (s.identity.number, s.identity.candidate_hash, s.provenance.repeat_of, s.measure)
            for s in specs
        ]
        for specs in (fleet.specs, whole.specs[cut_after:])
    )
    assert asked == expected
    assert (again.best.samples_per_s_low, again.speedup) == (
        answer.best.samples_per_s_low,
        answer.speedup,
    )


def unlimited(measure: Measure) -> Measure:
    """How long it measures, without the limits that the job sets."""
    defaults = {field.name: field.default for field in fields(Measure) if field.name in LIMITS}
    return replace(measure, **defaults)


def test_the_search_tells_its_trials_when_they_have_lost(study: Study):
    fleet = ScriptedFleet(realistic)
    search(study, make(trials=12), fleet=fleet)
    assert {s.measure.losing_step_time_s for s in fleet.ran(Role.BASELINE)} == {None}
    # As many as the convergence guard compares, where a run starts cold.
    n_steps = GUARD_STEPS - BRIEF_MEASURE.warmup_steps
    guarded = replace(BRIEF_MEASURE, min_steps=n_steps)
    measures = {unlimited(s.measure) for s in fleet.ran(Role.CONFIRM)}
    assert measures == {guarded, WARM_MEASURE, replace(WARM_MEASURE, min_steps=n_steps)}
    results = {t.spec.identity.number: t.result for t in study.trials()}
    for spec in fleet.ran(Role.SEARCH):
        before = [
            r.samples_per_s
            for n, r in results.items()
            if n < spec.identity.number and r is not None and r.samples_per_s
        ]
        # The optimistic end of a re-run, not the figure itself, has to be under that share.
        expected = spec.layout.global_batch / (LOSING_SHARE * max(before))
        expected *= math.exp(Spread().half_width())
        assert spec.measure.losing_step_time_s == pytest.approx(expected)
        unbound = replace(unlimited(spec.measure), losing_step_time_s=None)
        assert unbound in (MEASURE, WARM_MEASURE)


def early(spec: TrialSpec) -> TrialResult:
    """Stops where it was told to."""
    result = realistic(spec)
    losing_s = spec.measure.losing_step_time_s
    if result.step_time_s is None or losing_s is None or result.step_time_s <= losing_s:
        return result
    return replace(result, outcome=Outcome.STOPPED_EARLY, evidence="too slow")


def test_what_stopped_early_is_kept_counted_and_told_at_its_median(study: Study):
    job = make(trials=99)
    wide = lattice_of(job, micro_batches=(1, 2, 4, 8))
    fleet = ScriptedFleet(
        lambda spec: early(spec) if spec.identity.role is Role.SEARCH else realistic(spec)
    )
    result = search(study, job, fleet=fleet, lattice=wide)
    assert result.counts[Outcome.STOPPED_EARLY] > 0
    history = History(study.trials())
    told = frozen_trials(make_axes(wide.values, history), history, Objective.of(job, ENVIRONMENT))
    stopped = 0
    for tried, trial in zip(history.tried, told, strict=True):
        if tried.measured and tried.measured.outcome is Outcome.STOPPED_EARLY:
            stopped += 1
            assert trial.state.name == "COMPLETE"
            assert trial.values == [tried.measured.samples_per_s]
            assert tried.is_settled
            assert len(tried.explored) == 1
    assert stopped == result.counts[Outcome.STOPPED_EARLY]
    assert result.best is not None
    again = ScriptedFleet(realistic)
    search(study, job, fleet=again, lattice=wide)
    assert again.specs == []


@pytest.mark.cases("wish", "share")
def test_whether_a_slow_one_has_lost_depends_on_what_is_wished_for(study, wish, share):
    job = make(trials=3, **wish)
    fleet = ScriptedFleet(lambda spec: ok(spec, 100.0))
    search(study, job, fleet=fleet)
    found = [spec.measure.losing_step_time_s for spec in fleet.ran(Role.SEARCH)]
    if share is None:
        assert found == [None] * 3
    else:
        expected = job.global_batch / (share * 100.0) * math.exp(Spread().half_width())
        assert found == [pytest.approx(expected)] * 3


def test_single_trials_tie_where_their_intervals_overlap(study: Study):
    job = make(trials=8)
    rates = {1: 50.0, 2: 70.0, 4: 97.0, 8: 100.0}
    search(
        study,
        job,
        lambda spec: ok(spec, rates[spec.layout.micro_batch]),
        lattice=lattice_of(job, stages=(0,), recompute=("none",)),
    )
    own = History(t for t in study.trials() if t.spec.identity.role is not Role.CONFIRM)
    answer = RecordStandings(
        session_of(study, job), own, candidate(job, zero__stage=0, micro_batch=8)
    ).final(passed_over=(), stop_reason=None, interrupted=False)
    assert [tie.candidate.micro_batch for tie in answer.ties] == [4]
    (tie,) = answer.ties
    assert tie.samples_per_s_high >= answer.best.samples_per_s_low


def test_of_two_disturbed_runs_the_less_disturbed_one_counts(study: Study):
    ran: list[str] = []

    def behave(spec: TrialSpec) -> TrialResult:
        key = spec.identity.candidate_hash
        if spec.identity.role is not Role.SEARCH or ran not in ([], [key]):
            return realistic(spec)
        ran.append(key)
        return replace(ok(spec, 50.0 / len(ran)), disturbed=LOAD)

    fleet = ScriptedFleet(behave)
    search(study, make(trials=3), fleet=fleet)
    history = History(study.trials())
    tried = history.of_hash(ran[0])
    first, repeat = tried.explored
    assert repeat.spec.provenance.repeat_of == first.spec.identity.number
    assert tried.measured is first.result, "the repeat is slower: more was taken from it"
    assert tried.is_settled, "and it is not repeated for ever"
    assert outdone(tried.explored) == {repeat.spec.identity.number}


def test_nothing_is_repeated_in_the_time_of_the_last_candidate(study: Study):
    fleet = ScriptedFleet(lambda spec: replace(ok(spec, 100.0), disturbed=LOAD))
    search(study, with_budget(make(), time_s=25.0), fleet=fleet)
    assert [spec.provenance.repeat_of for spec in fleet.specs] == [None, None]
    assert [spec.identity.role for spec in fleet.specs] == [Role.BASELINE, Role.SEARCH]
