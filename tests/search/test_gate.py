"""How often the looks of a gate are wrong, where the truth is known."""

import math
import random
from pathlib import Path

import pytest

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Role
from autotune.record.answer import Standing
from autotune.record.gate import GateVerdict, Reference
from autotune.search.gate import FIRST_LOOK, Look
from autotune.search.trial_spec import Run
from tests.search.scripted import ENVIRONMENT, candidate, make, ok, spec_of_run

JOB = make()
BEST = candidate(JOB, zero__stage=1, micro_batch=4)
SPEC = spec_of_run(JOB, Run(candidate=BEST, role=Role.CONFIRM, confirm_round=0), 0)
N_RUNS, DEGREES = 4, 12


def reference(rate: float, deviation: float) -> Reference:
    """A figure of some runs, as its study would tell it."""
    half = t_quantile(CONFIDENCE, DEGREES) * deviation * math.sqrt(1 + 1 / N_RUNS)
    return Reference(
        study="s",
        folder=str(Path.cwd()),
        job=None,
        standing=Standing(
            trial=0,
            candidate=BEST,
            samples_per_s=rate,
            samples_per_s_low=rate * math.exp(-half),
            samples_per_s_high=rate * math.exp(half),
            peak_memory_bytes=4 * 2**30,
            n_runs=N_RUNS,
        ),
        deviation=deviation,
        degrees=DEGREES,
        environment=ENVIRONMENT,
        versions={},
        configuration="",
        script="",
    )


def verdict(truth: float, deviation: float, draw: random.Random) -> GateVerdict:
    """A gate of a configuration that is so many times as fast as it was."""
    then = 100 * math.exp(draw.gauss(0, deviation / math.sqrt(N_RUNS)))
    rates = [100 * truth * math.exp(draw.gauss(0, deviation)) for _ in range(6)]
    runs = [ok(SPEC, rate) for rate in rates]
    known = reference(then, deviation)
    found = Look(reference=known, within=0.05, runs=runs[:FIRST_LOOK]).verdict
    if found is not GateVerdict.UNDECIDED:
        return found
    return Look(reference=known, within=0.05, runs=runs).verdict


@pytest.mark.parametrize("deviation", [0.01, 0.03])
def test_at_the_limit_it_is_rarely_sure(deviation: float) -> None:
    draw = random.Random(7)
    found = [verdict(0.95, deviation, draw) for _ in range(400)]
    assert found.count(GateVerdict.SLOWER) <= 0.04 * len(found)
    assert found.count(GateVerdict.WITHIN) <= 0.04 * len(found)


@pytest.mark.parametrize(("truth", "expected"), [(1.0, "within"), (0.88, "slower")])
def test_on_a_quiet_machine_it_is_sure(truth: float, expected: str) -> None:
    draw = random.Random(7)
    found = [verdict(truth, 0.01, draw).value for _ in range(200)]
    assert found.count(expected) >= 0.95 * len(found)


def test_the_runs_that_it_asks_for_would_decide_it() -> None:
    known = reference(100.0, 0.005)
    runs = [ok(SPEC, rate) for rate in (94.0, 98.0, 95.5, 97.0, 95.0, 96.5)]
    look = Look(reference=known, within=0.05, runs=runs)
    assert look.verdict is GateVerdict.UNDECIDED
    needed = look.runs_to_decide
    assert needed is not None
    assert needed > len(runs)
    more = [*runs, *(ok(SPEC, 96.0) for _ in range(needed - len(runs)))]
    assert Look(reference=known, within=0.05, runs=more).verdict is GateVerdict.WITHIN
    at_the_limit = [ok(SPEC, 95.0)] * 6
    assert Look(reference=known, within=0.05, runs=at_the_limit).runs_to_decide is None
