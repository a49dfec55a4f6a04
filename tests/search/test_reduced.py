"""Reduced trials in a search: they come first, they teach, and no candidate gets their figures."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.base.errors import NothingFeasibleError
from autotune.contract import Fidelity, Outcome, Role, TrialResult, TrialSpec
from autotune.cost.forecast import Forecast
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.record.answer import SearchAnswer
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.search.history import History
from autotune.search.reduced import reduce_lattice, too_large
from autotune.search.steering import Forecaster, Steering, lessons_of
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from tests.search.scripted import (
    GIB,
    Behaviour,
    Notebook,
    Patient,
    ScriptedEngine,
    ScriptedFleet,
    fault,
    lattice_of,
    make,
    ok,
    peak_of,
    rate_of,
    search,
    session_of,
    spec_of_run,
)
from tests.search.test_sampler import trial
from tests.search.test_steering import forecaster as of_whole
from tests.search.test_steering import steering as steering_by

LAYERS = 4
"""Layers of the model of `make`."""


def depth(layers: int | None) -> float:
    """Time of a step, as a share of the whole model's; the rest does not grow with the layers."""
    return 0.2 + 0.8 * (layers or LAYERS) / LAYERS


def forecaster(candidates: Sequence[Candidate]) -> Forecast:
    """Near what `smaller` does, but for one factor."""
    said = of_whole(candidates)
    works = np.array([depth(c.layers) * c.global_batch / c.world for c in candidates])
    depths = np.array([depth(c.layers) for c in candidates])
    assert said.peak_bytes is not None
    return replace(said, seconds=said.seconds * works / 90, peak_bytes=said.peak_bytes * depths)


def steering(job: Job, lattice: Lattice | None = None) -> Steering:
    return steering_by(job, lattice, forecaster)


def smaller(spec: TrialSpec) -> TrialResult:
    """As `realistic`, faster and smaller with fewer layers, and slower on fewer devices."""
    layers = None if spec.identity.fidelity is None else spec.identity.fidelity.layers
    peak, limit = peak_of(spec) * depth(layers), spec.measure.memory_limit_bytes or 64 * GIB
    if peak > limit:
        return fault(spec, Outcome.OOM, "CUDA out of memory")
    return ok(spec, rate_of(spec) / depth(layers) * spec.layout.world / 2, peak=peak)


class Searched:
    """A search that has ended."""

    def __init__(
        self,
        study: Study,
        job: Job,
        behave: Behaviour = smaller,
        *,
        lattice: Lattice | None = None,
        engine: Engine | None = None,
        steers: bool = True,
        interrupt: Patient | None = None,
        model: Forecaster = forecaster,
    ) -> None:
        study.trials_folder.mkdir(parents=True, exist_ok=True)
        self.fleet, self.notebook = ScriptedFleet(behave), Notebook()
        lattice = lattice or lattice_of(job)
        self.lattice = lattice
        self.result: SearchAnswer = search(
            study,
            job,
            fleet=self.fleet,
            engine=engine or ScriptedEngine(job),
            lattice=lattice,
            observer=self.notebook,
            interrupt=interrupt,
            steering=steering_by(job, lattice, model) if steers else None,
        )

    @property
    def reduced(self) -> list[TrialSpec]:
        return [spec for spec in self.fleet.specs if spec.identity.fidelity is not None]

    @property
    def full(self) -> list[TrialSpec]:
        return [spec for spec in self.fleet.ran(Role.SEARCH) if spec.identity.fidelity is None]


def test_the_first_half_of_a_search_is_reduced_and_nothing_else_is(study: Study) -> None:
    done = Searched(study, make(trials=10, fidelity="layers=1"))
    ran = done.fleet.ran(Role.SEARCH)
    assert [spec.identity.fidelity is not None for spec in ran] == [True] * 5 + [False] * 5
    others = [spec for spec in done.fleet.specs if spec.identity.role is not Role.SEARCH]
    assert others
    assert all(spec.identity.fidelity is None for spec in others)


def test_no_figure_of_a_reduced_trial_is_a_candidates(study: Study) -> None:
    done = Searched(study, make(trials=10, fidelity="layers=1"))
    numbers = {spec.identity.number for spec in done.reduced}
    standings = [done.result.best, done.result.baseline, *done.result.ties]
    assert numbers
    assert not numbers & {s.trial for s in standings if s is not None}
    # One layer runs thrice as fast as all of them: nothing of that is left in the answer.
    fastest = max(rate_of(spec) for spec in done.fleet.specs)
    assert done.result.best.samples_per_s <= fastest * 1.01
    assert all(s.best is None or s.best.trial not in numbers for s in done.notebook.snapshots)
    history = History(study.trials())
    assert not numbers & {t.spec.identity.number for t in history.trials}
    assert numbers == {t.spec.identity.number for t in history.reduced.trials}
    assert sum(done.result.counts.values()) == len(done.fleet.specs)


def test_a_reduced_trial_says_what_it_ran(study: Study) -> None:
    job = make(trials=4, fidelity="layers=2")
    done = Searched(study, job)
    whole = {c.hash: c for c in done.lattice.candidates}
    for spec in done.reduced:
        candidate = whole[spec.identity.reduced_of or ""]
        assert spec.identity.fidelity == Fidelity(layers=2)
        assert spec.workload.model["config"]["n_layer"] == 2
        assert spec.identity.knobs == candidate.values
        assert (
            spec.identity.candidate_hash
            == candidate.reduced(spec.identity.fidelity).hash
            != candidate.hash
        )
        assert (spec.layout.world, spec.layout.global_batch) == (job.world, job.global_batch)
        assert not spec.measure.diagnoses
        assert spec.measure.losing_step_time_s is None
    assert all(spec.workload.model == job.model.source for spec in done.full)


def test_fewer_devices_are_fewer_replicas(study: Study) -> None:
    done = Searched(study, make(trials=6, fidelity="world=1"))
    whole = {c.hash: c for c in done.lattice.candidates}
    assert len(done.reduced) == 3
    for spec in done.reduced:
        candidate = whole[spec.identity.reduced_of or ""]
        assert (spec.layout.world, spec.layout.dp, spec.layout.global_batch) == (1, 1, 8)
        assert (spec.layout.micro_batch, spec.layout.grad_accum) == (
            candidate.micro_batch,
            candidate.grad_accum,
        )
    assert {spec.layout.world for spec in done.full} == {2}


def sharded(candidates: Sequence[Candidate]) -> Forecast:
    """As `forecaster`, with memory that is shared among the devices; two hold what they do."""
    said, share = forecaster(candidates), np.array([2.0 / c.world for c in candidates])
    assert said.peak_bytes is not None
    return replace(said, peak_bytes=said.peak_bytes * share)


def test_a_trial_takes_as_few_devices_as_hold_it(study: Study) -> None:
    def behave(spec: TrialSpec) -> TrialResult:
        result = smaller(spec)
        peak = int(peak_of(spec) * 2 / spec.layout.world)
        return replace(result, peak_memory_bytes=peak, memory_bytes={"peak": peak})

    job = make(trials=16, world=4, fidelity="world=smallest", memory_limit="24GiB")
    done = Searched(study, job, behave, model=sharded)
    assert {spec.layout.world for spec in done.reduced} == {1, 2}
    for spec in done.reduced:
        needs = peak_of(spec) * 2 / spec.layout.world
        assert needs < 24 * GIB * 1.5
        assert spec.layout.world == 1 or needs * 2 > 24 * GIB / 1.5
    assert {spec.layout.world for spec in done.full} == {4}
    frame = load_table(study.folder)
    told = frame[frame["extrapolated_from"].notna()]
    assert len(told)
    forms = frame.set_index("trial").loc[told["extrapolated_from"]]
    assert (forms["reduced_of"].to_numpy() == told["candidate_hash"].to_numpy()).all()
    errors = told["predicted_step_time_s"] / told["step_time_s"] - 1
    assert np.allclose(told["extrapolation_error"].astype(float), errors.astype(float))


def test_no_two_reduced_trials_are_alike_to_the_model(study: Study) -> None:
    done = Searched(study, make(trials=20, fidelity="layers=1"))
    assert len({spec.identity.reduced_of for spec in done.reduced}) == len(done.reduced) == 10


def spec_of(job: Job, number: int, candidate: Candidate, fidelity: Fidelity | None) -> TrialSpec:
    run = Run(candidate=candidate, role=Role.SEARCH)
    if fidelity is not None:
        form = candidate.reduced(fidelity)
        run = Run(candidate=form, role=Role.SEARCH, reduced_of=candidate)
    return spec_of_run(job, run, number)


def history_of(
    job: Job, fidelity: Fidelity, end: Callable[[TrialSpec, Candidate], TrialResult | None]
) -> History:
    """Every candidate in its reduced form."""
    specs = [
        (spec_of(job, number, c, fidelity), c)
        for number, c in enumerate(lattice_of(job).candidates)
    ]
    return History(trial(spec, result) for spec, c in specs if (result := end(spec, c)))


def test_what_reduced_trials_saw_decides_what_runs_in_full() -> None:
    job = make()
    lattice = lattice_of(job)
    its = steering(job, lattice)
    dark_horse = lattice.candidates[13]

    def run(spec: TrialSpec, candidate: Candidate) -> TrialResult:
        faster = 3.0 if candidate == dark_horse else 1.0
        return ok(spec, rate_of(spec) / depth(1) * faster)

    blind = its.propose(History(), set(), n_budget=8, seed=0)
    taught = its.propose(history_of(job, Fidelity(layers=1), run), set(), n_budget=8, seed=0)
    assert blind != dark_horse
    assert taught == dark_horse


def test_a_full_trial_is_predicted_better_for_the_reduced_ones() -> None:
    job = make()
    its = steering(job)
    off = 4.5
    taught = history_of(
        job, Fidelity(layers=1), lambda spec, _: ok(spec, rate_of(spec) / depth(1) / off)
    )
    candidate = lattice_of(job).candidates[5]
    spec = spec_of(job, 99, candidate, None)
    true_s = spec.layout.global_batch / rate_of(spec) * off
    before = its.predict(History(), candidate)
    after = its.predict(taught, candidate)
    assert abs(np.log(after.step_time_s / true_s)) < 0.5 * abs(np.log(before.step_time_s / true_s))
    assert after.step_time_low_s < true_s < after.step_time_high_s
    # Weaker than the candidate's own trial: the interval stays wider.
    own = its.predict(History([trial(spec, ok(spec, rate_of(spec) / off))]), candidate)
    assert after.step_time_high_s / after.step_time_low_s > (
        own.step_time_high_s / own.step_time_low_s
    )


@pytest.mark.parametrize(
    ("fidelity", "is_told"), [(Fidelity(layers=1), True), (Fidelity(layers=1, world=1), False)]
)
def test_out_of_memory_with_fewer_layers_is_so_with_all_on_the_same_devices(fidelity, is_told):
    job = make()
    lost = lattice_of(job).candidates[3]
    history = history_of(
        job, fidelity, lambda s, c: fault(s, Outcome.OOM) if c == lost else ok(s, rate_of(s))
    )
    assert too_large(history) == ({lost.hash: 3} if is_told else {})


def test_a_candidate_that_is_too_large_in_part_is_not_run_whole(study: Study) -> None:
    def heavy(spec: TrialSpec) -> TrialResult:
        if spec.identity.fidelity is not None and spec.layout.micro_batch == 4:
            return fault(spec, Outcome.OOM, "CUDA out of memory")
        return smaller(spec)

    done = Searched(study, make(trials=24, fidelity="layers=1"), heavy)
    lost = {s.identity.reduced_of for s in done.reduced if s.layout.micro_batch == 4}
    assert lost
    assert not lost & {spec.identity.candidate_hash for spec in done.full}
    said = [n for n in done.notebook.notes if "ran out of memory with fewer layers" in n]
    assert len(said) == len(lost)


def test_where_nothing_fits_reduced_trials_are_counted_apart(study: Study) -> None:
    with pytest.raises(NothingFeasibleError, match=r"more candidates .* with fewer layers") as end:
        Searched(study, make(trials=8, fidelity="layers=1"), lambda s: fault(s, Outcome.OOM))
    n_full = sum(t.spec.identity.fidelity is None for t in study.trials())
    assert f"none of {n_full} trials" in end.value.message


def test_what_has_no_reduced_form_says_so_and_runs_whole(study: Study) -> None:
    job = make(trials=40, fidelity="layers=1")
    engine = ScriptedEngine(job, refused=lambda c: bool(c.layers and c["zero.stage"] == 3))
    reductions = reduce_lattice(session_of(study, job, engine=engine))
    assert "8 of 32 candidates have no reduced trial (test.refused 8)" in reductions.left_out
    done = Searched(study, job, engine=engine)
    assert any("8 of 32 candidates have no reduced trial" in n for n in done.notebook.notes)
    assert {spec.identity.knobs["zero.stage"] for spec in done.reduced} == {0, 1, 2}
    assert 3 in {spec.identity.knobs["zero.stage"] for spec in done.full}


def test_without_a_forecast_there_is_nothing_to_teach(study: Study) -> None:
    done = Searched(study, make(trials=6, fidelity="layers=1"), steers=False)
    assert done.reduced == []
    assert len(done.full) == 6
    assert any("no reduced trials" in note for note in done.notebook.notes)


def test_half_of_the_time_is_left_for_full_trials(study: Study) -> None:
    # Each trial takes 10 s; the baseline's come first.
    done = Searched(study, make(trials=40, fidelity="layers=1", budget="300s"))
    ended = {
        spec.identity.number: 10.0 * (place + 1) for place, spec in enumerate(done.fleet.specs)
    }
    assert done.reduced
    assert max(ended[spec.identity.number] for spec in done.reduced) <= 150.0
    assert done.full


def test_a_search_goes_on_where_it_was(study: Study) -> None:
    job = make(trials=10, fidelity="layers=1")
    whole = Searched(Study(study.root, "whole"), job)
    begun = Searched(study, job, interrupt=Patient(6))
    assert 0 < len(begun.reduced) < 5
    rest = Searched(study, job)
    # Ended at the same moment of the record, the second goes on as if there had been no first.
    asked = [spec.identity.candidate_hash for spec in (*begun.fleet.specs, *rest.fleet.specs)]
    assert asked == [spec.identity.candidate_hash for spec in whole.fleet.specs]
    assert Searched(study, job).fleet.specs == [], "the same again runs nothing"


def test_what_the_platform_ends_is_retried_and_teaches_nothing(study: Study) -> None:
    def flaky(spec: TrialSpec) -> TrialResult:
        if spec.identity.fidelity is not None and spec.provenance.retry_of is None:
            return fault(spec, Outcome.COMM, "a peer went away")
        return smaller(spec)

    done = Searched(study, make(trials=4, fidelity="layers=1"), flaky)
    assert [spec.provenance.retry_of is not None for spec in done.reduced] == [False, True] * 2
    assert len(done.full) == 2


@pytest.mark.parametrize(("then", "n_more"), [("layers=2", 4), (None, 0)])
def test_another_fidelity_keeps_what_the_first_one_taught(study, then, n_more):
    Searched(study, make(trials=6, fidelity="layers=1"))
    done = Searched(study, make(trials=14, fidelity=then))
    assert not any("left out" in note for note in done.notebook.notes)
    kept = [t.spec.identity.fidelity for t in History(study.trials()).reduced.trials]
    assert kept == [Fidelity(layers=1)] * 3 + [Fidelity(layers=2)] * n_more


def test_a_reduced_trial_of_another_model_is_left_out(study: Study) -> None:
    Searched(study, make(trials=6, fidelity="layers=1"))
    done = Searched(study, make(trials=6, fidelity="layers=1", seq_len=32))
    assert any("left out" in note and ": seq_len was" in note for note in done.notebook.notes)
    assert len(done.reduced) == 3


def test_what_was_reduced_teaches_other_studies_as_what_it_was(tmp_path: Path) -> None:
    job = make()
    history = history_of(job, Fidelity(layers=1), lambda spec, _: ok(spec, rate_of(spec)))
    lessons = lessons_of(history, session_of(Study(tmp_path, "s"), job), study="one")
    assert len(lessons) == len(history.reduced.tried)
    assert {lesson.plan["n_layers"] for lesson in lessons} == {1.0}
