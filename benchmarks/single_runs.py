"""What is the interval of a single run worth? Simulated runs, each with a re-run of the same.

    python benchmarks/single_runs.py [--runs N] [--seed N] [--json]

Nothing is trained. A run is 6 to 40 steps; its median is reported with the interval in which 95%
of re-runs are meant to be, by the spread of a study that has seen a few repeats. The noise of
steps is normal, heavy-tailed, correlated as on a busy machine, with odd steps that take half as
long again, or in two phases, where a part of the steps is slower by a tenth. Beside the interval
of `autotune.record.spread` stands the one by the order statistics of the steps alone, which is the
whole range where few steps are independent. Exits 1 if the former holds fewer than 95% of all
re-runs.
"""

import argparse
import json
import math
import statistics
import sys

import numpy as np
from numpy.typing import NDArray

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Outcome, Role, TrialResult
from autotune.record.spread import pooled
from autotune.trial.statistics import median_interval

KINDS = ("normal", "heavy", "correlated", "odd steps", "phases")
BETWEEN = (0.011, 0.028, 0.06)
"""Deviations between processes, of log samples/s: of a calm, a usual and a noisy machine."""
STEP = (0.01, 0.03, 0.08)
"""The same of steps within a run."""
REPEATED = 4
"""Candidates of the study that ran three times."""


def steps_of(
    draw: np.random.Generator, kind: str, n: int, deviation: float
) -> NDArray[np.float64]:
    """Log times of the steps of one run, around 0."""
    noise = draw.standard_normal(n) * deviation
    if kind == "heavy":
        noise = draw.standard_t(3, n) * deviation
    if kind == "correlated":
        for at in range(1, n):
            noise[at] = 0.8 * noise[at - 1] + 0.6 * noise[at]
    if kind == "odd steps":
        noise = noise + math.log(1.5) * (draw.random(n) < 0.15)
    if kind == "phases":
        length = max(2, n // 4)
        slow = np.repeat(draw.random(n // length + 1) < 0.4, length)[:n]
        noise = noise + 0.1 * slow
    return noise


def run_of(draw: np.random.Generator, kind: str, own: float, between: float) -> TrialResult:
    """A run of a configuration whose steps take a second."""
    n = int(draw.integers(6, 41))
    logs = steps_of(draw, kind, n, own) + between * draw.standard_normal()
    times = np.exp(logs).tolist()
    median, low, high = median_interval(times)
    return TrialResult(
        number=0,
        role=Role.SEARCH,
        candidate_hash="",
        outcome=Outcome.OK,
        step_times_s=times,
        step_time_s=median,
        samples_per_s=1 / median,
        samples_per_s_low=1 / high,
        samples_per_s_high=1 / low,
    )


def by_order(run: TrialResult, variance: float, degrees: int) -> float:
    """Half width, with the run's own variance by order statistics alone."""
    own = (math.log(run.samples_per_s_high / run.samples_per_s_low) / 2 / 1.96) ** 2
    return t_quantile(CONFIDENCE, degrees) * math.sqrt(2 * (variance + own))


def simulate(n: int, seed: int) -> dict[str, dict[str, dict[str, float]]]:
    """Kind of noise -> procedure -> share of re-runs inside, and half widths."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    everything: dict[str, list[tuple[bool, float]]] = {}
    for kind in KINDS:
        told: dict[str, list[tuple[bool, float]]] = {}
        for number in range(n):
            draw = np.random.default_rng([seed, KINDS.index(kind), number])
            own, between = float(draw.choice(STEP)), float(draw.choice(BETWEEN))
            groups = [
                [run_of(draw, kind, own, between) for _ in range(3)] for _ in range(REPEATED)
            ]
            spread = pooled(groups)
            run, again = run_of(draw, kind, own, between), run_of(draw, kind, own, between)
            off = abs(math.log(again.samples_per_s / run.samples_per_s))
            interval = spread.interval([run])
            widths = {
                "interval": math.log(interval.high / interval.low) / 2,
                "by order": by_order(run, spread.variance, spread.degrees),
            }
            for name, width in widths.items():
                told.setdefault(name, []).append((off <= width, width))
        found[kind] = {name: figures(rows) for name, rows in told.items()}
        for name, rows in told.items():
            everything.setdefault(name, []).extend(rows)
    return {**found, "all": {name: figures(rows) for name, rows in everything.items()}}


def figures(rows: list[tuple[bool, float]]) -> dict[str, float]:
    """Coverage, the median half width, and the one that 2% of the runs exceed."""
    widths = [width for _, width in rows]
    return {
        "coverage": statistics.fmean(held for held, _ in rows),
        "half_width": statistics.median(widths),
        "wide": float(np.quantile(widths, 0.98)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="of each kind of noise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    found = simulate(options.runs, options.seed)
    print(f"{'noise':12}{'procedure':12}{'held':>8}{'half width':>12}{'2% above':>15}")
    for kind, procedures in found.items():
        for name, own in procedures.items():
            print(
                f"{kind:12}{name:12}{own['coverage']:8.1%}{own['half_width']:12.1%}"
                f"{own['wide']:15.1%}"
            )
    if options.json:
        print(json.dumps(found))
    return 0 if found["all"]["interval"]["coverage"] >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
