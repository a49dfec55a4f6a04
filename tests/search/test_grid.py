"""The sampler that walks the lattice, and what all samplers have in common."""

from collections import Counter

import pytest

from autotune.contract import Role
from autotune.record.study import Study
from autotune.search.base import StopReason
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.optuna_study import frozen_trials, make_axes
from tests.search.scripted import (
    ENVIRONMENT,
    Notebook,
    ScriptedEngine,
    ScriptedFleet,
    candidate,
    lattice_of,
    make,
    realistic,
    search,
)
from tests.search.test_loop import explored

SAMPLERS = ("tpe", "random", "grid")


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_finds_the_optimum_and_repeats_nothing(study: Study, sampler: str):
    job = make(sampler=sampler, trials=40)
    lattice = lattice_of(job, stages=(0, 1))
    result = search(study, job, lattice=lattice)
    assert result.stop_reason is StopReason.EXHAUSTED
    assert result.best.candidate == candidate(job, zero__stage=1, micro_batch=4)
    assert max(Counter(explored(study)).values()) == 1
    assert {c.hash for c in lattice.candidates} <= set(explored(study))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sampler_may_be_changed_on_the_way(study: Study, sampler: str):
    search(study, make(trials=5))
    fleet = ScriptedFleet(realistic)
    search(study, make(trials=9, sampler=sampler), fleet=fleet)
    assert len(fleet.ran(Role.SEARCH)) == 4
    assert fleet.ran(Role.BASELINE) == []
    assert max(Counter(explored(study)).values()) == 1


def test_the_walk_has_no_budget_of_its_own_unless_one_is_given(study: Study):
    notes, job = Notebook(), make(sampler="grid", trials=None)
    result = search(study, job, lattice=lattice_of(job), observer=notes)
    assert result.stop_reason is StopReason.EXHAUSTED
    assert {snapshot.n_budget for snapshot in notes.snapshots} == {32}
    given = make(sampler="grid", trials=3, study="given")
    again = search(Study(study.root, "given"), given)
    assert again.stop_reason is StopReason.TRIALS


def test_the_users_baseline_is_where_the_search_starts(study: Study):
    job = make(trials=4, baseline="mine.json")
    own = candidate(job, zero__stage=2, micro_batch=2, recompute="full")
    fleet = ScriptedFleet(realistic)
    search(study, job, fleet=fleet, engine=ScriptedEngine(job, own=own))
    first = fleet.ran(Role.SEARCH)[0]
    changed = {name for name in own.values if first.identity.knobs.get(name) != own.values[name]}
    assert len(changed) == 1


def test_a_baseline_outside_the_lattice_starts_at_its_nearest_candidate(study: Study):
    job = make(trials=4, baseline="mine.json")
    own = candidate(job, zero__stage=2, micro_batch=8, offload__optimizer="cpu")
    lattice = lattice_of(job, micro_batches=(1, 2), recompute=("none",))
    fleet = ScriptedFleet(realistic)
    search(study, job, fleet=fleet, lattice=lattice, engine=ScriptedEngine(job, own=own))
    first = fleet.ran(Role.SEARCH)[0]
    assert (first.identity.knobs["zero.stage"], first.layout.micro_batch) == (2, 2)


def test_the_sampler_is_told_of_the_users_baseline(study: Study):
    job = make(trials=1, baseline="mine.json")
    own = candidate(job, zero__stage=1, micro_batch=8)
    lattice = lattice_of(job, micro_batches=(1, 2))
    search(study, job, lattice=lattice, engine=ScriptedEngine(job, own=own))
    history = History(study.trials())
    told = frozen_trials(
        make_axes(lattice.values, history), history, Objective.of(job, ENVIRONMENT)
    )
    assert told[0].params == {"zero.stage": 1, "micro_batch": 3, "recompute": "none"}
    assert told[0].values is not None
