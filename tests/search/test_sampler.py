from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy
import optuna
import pytest
from optuna.trial import TrialState

from autotune.contract import METER_SLACK, KnobValue, Outcome, Role, TrialResult, TrialSpec
from autotune.job.job import Job
from autotune.record.study import Trial
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.optuna_study import ask, frozen_trials, make_axes, sampler_seed
from autotune.search.samplers.of_optuna import OptunasSampler, Random, Tpe
from autotune.search.trial_spec import Run
from tests.search.scripted import (
    ENVIRONMENT,
    GIB,
    candidate,
    fault,
    lattice_of,
    make,
    ok,
    realistic,
    spec_of_run,
)

SPACE: dict[str, Sequence[KnobValue]] = {
    "zero.stage": (0, 1, 2, 3),
    "micro_batch": (1, 2, 4, 8),
    "recompute": ("none", "full"),
}


def spec_of(job: Job, number: int, role: Role = Role.SEARCH, **knobs: KnobValue) -> TrialSpec:
    return spec_of_run(job, Run(candidate=candidate(job, **knobs), role=role), number)


def trial(spec: TrialSpec, result: TrialResult | None) -> Trial:
    return Trial(folder=Path(), spec=spec, result=result)


@pytest.fixture
def history() -> History:
    """One trial of every kind."""
    job = make()
    endings = [
        lambda s: ok(s, 100.0, peak=12 * GIB),
        lambda s: ok(s, 300.0, peak=36 * GIB),
        lambda s: fault(s, Outcome.OOM),
        lambda s: fault(s, Outcome.INVALID),
        lambda s: fault(s, Outcome.NONFINITE),
        lambda s: fault(s, Outcome.TIMEOUT),
        lambda s: fault(s, Outcome.LAUNCH),
        lambda s: None,
    ]
    history = History()
    for number, ending in enumerate(endings):
        spec = spec_of(job, number, zero__stage=number % 4, micro_batch=2 ** (number // 4))
        history = history.with_trial(trial(spec, ending(spec)))
    return history


def objective(job: Job | None = None) -> Objective:
    return Objective.of(job or make(), ENVIRONMENT)


def told(history: History, job: Job | None = None) -> list[optuna.trial.FrozenTrial]:
    return frozen_trials(make_axes(SPACE, history), history, objective(job))


def test_config_faults_are_complete_platform_faults_failed_and_running_ones_running(history):
    states = [frozen.state for frozen in told(history)]
    assert states == [TrialState.COMPLETE] * 6 + [TrialState.FAIL, TrialState.RUNNING]


@pytest.mark.parametrize("name", ["samples_per_s", "peak_memory", "pareto"])
def test_every_complete_trial_has_the_same_constraints_in_the_same_order(history, name):
    complete = [t for t in told(history, make(objective=name)) if t.state is TrialState.COMPLETE]
    names = {tuple(frozen.constraints) for frozen in complete}
    assert names == {("memory", "validity", "finiteness", "time", "floor")}


def test_each_fault_breaks_its_own_constraint(history: History):
    broken = [[n for n, v in frozen.constraints.items() if v > 0] for frozen in told(history)[:6]]
    assert broken == [[], ["memory"], ["memory"], ["validity"], ["finiteness"], ["time"]]
    fits, over, lost = told(history)[:3]
    assert [fits.value, over.value, lost.value] == [100.0, 300.0, 0.0]
    allowed = 24 * (1 + METER_SLACK)
    assert fits.constraints["memory"] == pytest.approx(12 / allowed - 1)
    assert over.constraints["memory"] == pytest.approx(36 / allowed - 1)


@pytest.mark.parametrize("share", [1.0, 1.01, 1.03])
def test_the_sampler_is_told_what_the_answer_goes_by(share: float):
    """Between the limit and the meter's slack above it a candidate is feasible for both."""
    spec = spec_of(make(), 0, zero__stage=0, micro_batch=1)
    history = History([trial(spec, ok(spec, 100.0, peak=share * 24 * GIB))])
    is_feasible = told(history)[0].constraints["memory"] <= 0
    assert is_feasible is (objective().figure(history.tried[0]) is not None) is (share < 1.02)


def test_a_run_of_the_comparison_that_breaks_the_limit_is_told(history: History):
    spec = spec_of(make(), 8, role=Role.CONFIRM, zero__stage=0, micro_batch=1)
    history = history.with_trial(trial(spec, ok(spec, 100.0, peak=36 * GIB)))
    assert told(history)[0].constraints["memory"] > 0


def test_lowest_memory_keeps_a_floor_of_the_best_rate_that_moves(history: History):
    job = make(objective="peak_memory", objective_floor=0.8)
    slow = spec_of(job, 8, zero__stage=0, micro_batch=4)
    history = history.with_trial(trial(slow, ok(slow, 85.0, peak=8 * GIB)))
    assert told(history, job)[8].constraints["floor"] <= 0
    fast = spec_of(job, 9, zero__stage=1, micro_batch=4)
    history = history.with_trial(trial(fast, ok(fast, 200.0, peak=20 * GIB)))
    assert told(history, job)[8].constraints["floor"] == pytest.approx(1 - 85 / 160)
    assert told(history, job)[8].value == 8 * GIB


def test_powers_of_two_are_whole_logarithms_and_all_values_grow_with_the_record(history: History):
    axes = make_axes({"micro_batch": (2, 4), "zero.stage": (3, 1)}, history)
    categories = optuna.distributions.CategoricalDistribution((3, 1, 0, 2))
    assert axes["zero.stage"].distribution == categories
    axis = axes["micro_batch"]
    assert axis.distribution == optuna.distributions.IntDistribution(0, 2)
    assert [axis.decode(axis.encode(v)) for v in (1, 2, 4)] == [1, 2, 4]


def test_knobs_that_do_not_act_are_not_told(history: History):
    space = SPACE | {"reduce_bucket_size": (1000, 2000)}
    frozen = frozen_trials(make_axes(space, history), history, objective())
    assert "reduce_bucket_size" not in frozen[0].params
    assert "reduce_bucket_size" in frozen[1].params


def test_both_objectives_are_told(history: History):
    frozen = told(history, make(objective="pareto", memory_limit="24GiB"))
    assert frozen[0].values == [100.0, 12 * GIB]
    assert frozen[2].values == [0.0, 36 * GIB], "out of memory is as bad as the worst that ran"


def proposed(
    sampler: OptunasSampler,
    space: Mapping[str, Sequence[KnobValue]],
    history: History,
    job: Job | None = None,
    *,
    n_budget: int,
    seed: int,
) -> dict[str, KnobValue]:
    its = sampler.make(n_budget=n_budget, seed=sampler_seed(seed, history))
    return ask(its, make_axes(space, history), history, objective(job))


@pytest.mark.parametrize("sampler", [Tpe(), Random()], ids=["tpe", "random"])
def test_the_same_history_and_seed_give_the_same_proposal(history, sampler):
    def asked(seed: int) -> dict[str, KnobValue]:
        return proposed(sampler, SPACE, history, n_budget=2, seed=seed)

    assert asked(3) == asked(3)
    assert len({str(asked(seed)) for seed in range(4)}) > 1


def test_proposals_of_one_seed_differ_as_the_record_grows(history: History):
    seen = set()
    for number in range(20, 28):
        spec = spec_of(make(), number, zero__stage=0, micro_batch=1)
        history = history.with_trial(trial(spec, fault(spec, Outcome.LAUNCH)))
        values = proposed(Random(), SPACE, history, n_budget=8, seed=0)
        seen.add(str(values))
    assert len(seen) > 3


def share_of_oom(sampler: OptunasSampler, seed: int) -> float:
    """Share of the last 25 of 40 proposals that runs out of memory; two thirds of the space do."""
    job = make(global_batch=4096, memory_limit="20GiB")
    sizes = tuple(2**k for k in range(10))
    lattice = lattice_of(job, micro_batches=sizes)
    space: Mapping[str, Sequence[KnobValue]] = lattice.values
    history, ooms = History(), []
    for number in range(40):
        values = proposed(sampler, space, history, job, n_budget=40, seed=seed)
        chosen = {name.replace(".", "__"): value for name, value in values.items()}
        spec = spec_of(job, number, **chosen)
        result = realistic(spec)
        history = history.with_trial(trial(spec, result))
        ooms.append(result.outcome is Outcome.OOM)
    return float(numpy.mean(ooms[15:]))


def test_out_of_memory_teaches_the_sampler():
    learned = numpy.mean([share_of_oom(Tpe(), seed) for seed in range(3)])
    blind = numpy.mean([share_of_oom(Random(), seed) for seed in range(3)])
    assert blind > 0.5
    assert learned < blind / 2
