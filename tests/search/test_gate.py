"""How often the looks of a gate are wrong, where the truth is known."""

import math
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Role, TrialResult
from autotune.record.answer import Standing
from autotune.record.gate import GateVerdict, Reference
from autotune.search.gate import FIRST_LOOK, MISSED, MISSED_FIRST, MOST_ROUNDS, Look
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


def look(
    known: Reference, runs: Sequence[TrialResult], missed: float = MISSED - MISSED_FIRST
) -> Look:
    """What some runs say of a limit of 5%; by default the last look does."""
    return Look(reference=known, within=0.05, runs=runs, missed=missed)


def verdict(truth: float, then: float, now: float, draw: random.Random) -> GateVerdict:
    """A gate of a configuration that is so many times as fast as it was.

    Args:
        truth: Speed now over speed then.
        then: Deviation between runs when the reference was measured.
        now: That of the gate's runs.
        draw: The noise.
    """
    rates = [100 * truth * math.exp(draw.gauss(0, now)) for _ in range(6)]
    runs = [ok(SPEC, rate) for rate in rates]
    known = reference(100 * math.exp(draw.gauss(0, then / math.sqrt(N_RUNS))), then)
    found = look(known, runs[:FIRST_LOOK], MISSED_FIRST).verdict
    return look(known, runs).verdict if found is GateVerdict.UNDECIDED else found


@pytest.mark.cases("then", "now")
def test_at_the_limit_it_is_rarely_sure(then: float, now: float) -> None:
    """A machine may be noisier than it was; each side is wrong in 2.5% at the most."""
    draw = random.Random(7)
    found = [verdict(0.95, then, now, draw) for _ in range(1000)]
    allowed = 0.025 + 2 * math.sqrt(0.025 * 0.975 / len(found))
    assert found.count(GateVerdict.SLOWER) <= allowed * len(found)
    assert found.count(GateVerdict.WITHIN) <= allowed * len(found)


@pytest.mark.parametrize(("truth", "expected"), [(1.0, "within"), (0.88, "slower")])
def test_on_a_quiet_machine_it_is_sure(truth: float, expected: str) -> None:
    draw = random.Random(7)
    found = [verdict(truth, 0.01, 0.01, draw).value for _ in range(200)]
    assert found.count(expected) >= 0.95 * len(found)


def test_the_runs_that_it_asks_for_are_more_and_mostly_enough() -> None:
    draw = random.Random(7)
    decided = []
    while len(decided) < 150:
        known = reference(100 * math.exp(draw.gauss(0, 0.01)), 0.02)
        runs = [ok(SPEC, 98 * math.exp(draw.gauss(0, 0.02))) for _ in range(MOST_ROUNDS)]
        needed = look(known, runs[:FIRST_LOOK], MISSED).runs_to_decide
        if needed is not None:
            assert needed > FIRST_LOOK
            decided.append(look(known, runs[:needed]).verdict is not GateVerdict.UNDECIDED)
    assert sum(decided) >= 0.6 * len(decided)
    assert look(reference(100.0, 0.005), [ok(SPEC, 95.0)] * 6).runs_to_decide is None
