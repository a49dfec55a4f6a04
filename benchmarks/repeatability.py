"""Does a trial's interval hold? The same candidates several times each, in random order.

    python benchmarks/repeatability.py [--repeats N] [--plain N] [--json] [--from FILE]

Every run is a trial as a search starts it, repeated once where it was disturbed. Printed are how
often the interval of one run covers another run of the same candidate (the prediction interval as
reported where nothing was repeated, the same after a final comparison of two other candidates,
the same with this study's own repeats, and that of the median step alone), the rank correlation
between repeats, the deviation between processes, and how the figures of one candidate agree with
plain training of its export. Exits 1 if the interval that knows the repeats covers less than 90%,
or if the figures are more than 3% off. With `--from` the runs are those of a record, and are
judged by what this code makes of them.
"""

import argparse
import datetime
import itertools
import json
import math
import os
import random
import shlex
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of, compared, export, plain_samples_per_s, run_trial

from autotune.app.session import open_session
from autotune.contract import Outcome, Role, TrialResult
from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.knobs import environment_of
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.record.spread import (
    PRIOR_DEGREES,
    PRIOR_DEVIATION,
    Spread,
    between,
    pooled,
    variance_of_steps,
)
from autotune.search.rounds import FULL_ROUNDS
from autotune.search.session import Session
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate

ENOUGH = 0.9
"""Share of re-runs that an interval of 95% has to cover here: runs are few and tails heavy."""
TOLERANCE = 0.03
KNOBS: tuple[dict[str, Any], ...] = (
    {"zero.stage": 0, "micro_batch": 8},
    {"zero.stage": 1, "micro_batch": 8},
    {"zero.stage": 1, "micro_batch": 4},
    {"zero.stage": 1, "micro_batch": 1},
    {"zero.stage": 2, "micro_batch": 8},
    {"zero.stage": 2, "micro_batch": 2},
    {"zero.stage": 3, "micro_batch": 8},
    {"zero.stage": 3, "micro_batch": 4},
    {"zero.stage": 1, "micro_batch": 8, "recompute": "full"},
    {"zero.stage": 2, "micro_batch": 8, "offload.optimizer": "cpu"},
)
PLAIN = KNOBS[1]

Runs = dict[str, list[TrialResult]]
"""By candidate hash, in the order in which they ran."""
Interval = Callable[[TrialResult], tuple[float, float]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5, help="runs of each candidate")
    parser.add_argument("--plain", type=int, default=4, help="rounds of plain training")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    parser.add_argument("--from", type=Path, dest="record", help="a record: start nothing")
    options = parser.parse_args()
    found = judged(options.record) if options.record else measured(options)
    if options.json:
        print(json.dumps(found))
    covers = found.get("coverage_with_repeats", 1.0) >= ENOUGH
    return 0 if covers and found.get("plain", {}).get("verdict") != "differs" else 1


def judged(record: Path) -> dict[str, Any]:
    """The figures of a record's runs."""
    known = json.loads(record.read_text(encoding="utf-8"))
    runs: Runs = {}
    for each in known["runs"]:
        result = TrialResult(
            number=each["number"],
            role=Role.SEARCH,
            candidate_hash=each["candidate"],
            outcome=Outcome.OK,
            samples_per_s=each["samples_per_s"],
            samples_per_s_low=each["low"],
            samples_per_s_high=each["high"],
            disturbed=each["disturbed"],
        )
        runs.setdefault(result.candidate_hash, []).append(result)
    found = {**known, **summary(runs)}
    say(found)
    return found


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of runs that are made now."""
    os.environ.update(environment_of({"host_allocator": "keep"}))
    with tempfile.TemporaryDirectory() as scratch:
        session = open_session(None, {**JOB, "study": "repeatability"}, results=Path(scratch))
        build(session.environment.accelerator, print)
        fleet = local_fleet(session.environment, world=session.job.world)
        candidates = [candidate_of(session, knobs) for knobs in KNOBS]
        try:
            # Starts the template that the others share.
            run_trial(session, fleet, Run(candidate=candidates[0], role=Role.SEARCH))
            return {
                **on_what(session),
                **(repeat(session, fleet, candidates, options) if options.repeats else {}),
                **(plain(session, fleet, Path(scratch), options.plain) if options.plain else {}),
            }
        finally:
            fleet.close()


def on_what(session: Session) -> dict[str, Any]:
    """When, where and with which versions the runs are made."""
    environment = session.environment
    return {
        "date": datetime.date.today().isoformat(),
        "device_name": environment.device_name,
        "n_cores": environment.n_devices,
        "ranks": session.job.world,
        "versions": {
            "deepspeed": environment.deepspeed_version,
            "torch": environment.torch_version,
        },
        "command": shlex.join(["python", *sys.argv]),
    }


def trial(session: Session, fleet: GangFleet, candidate: Candidate) -> TrialResult:
    """What a search counts: a trial, or its repeat where it was disturbed."""
    result = run_trial(session, fleet, Run(candidate=candidate, role=Role.SEARCH))
    if not result.disturbed:
        return result
    again = Run(candidate=candidate, role=Role.SEARCH, repeat_of=result.number)
    return run_trial(session, fleet, again)


def repeat(
    session: Session, fleet: GangFleet, candidates: list[Candidate], options: argparse.Namespace
) -> dict[str, Any]:
    """Run every candidate as often as the others, in random order; print what that says."""
    order = candidates * options.repeats
    random.Random(options.seed).shuffle(order)
    runs: Runs = {}
    for candidate in order:
        runs.setdefault(candidate.hash, []).append(trial(session, fleet, candidate))
    for candidate in candidates:
        own = runs[candidate.hash]
        rates = " ".join(f"{run.samples_per_s:.1f}" for run in own)
        marks = f"  ({n} disturbed)" if (n := sum(bool(run.disturbed) for run in own)) else ""
        print(f"{candidate.hash} {said_of(candidate):50}{rates}{marks}")
    found = {
        "candidates": {candidate.hash: said_of(candidate) for candidate in candidates},
        # Less the first one, which starts the template.
        "n_trials": session.study.next_number() - 1,
        **summary(runs),
        "runs": [as_recorded(run) for own in runs.values() for run in own],
    }
    say(found)
    return found


def said_of(candidate: Candidate) -> str:
    """What tells it from the others."""
    names = dict.fromkeys(name for knobs in KNOBS for name in knobs)
    return " ".join(f"{name}={candidate[name]}" for name in names if candidate.get(name))


def as_recorded(run: TrialResult) -> dict[str, Any]:
    """A run in the record."""
    return {
        "candidate": run.candidate_hash,
        "number": run.number,
        "samples_per_s": run.samples_per_s,
        "low": run.samples_per_s_low,
        "high": run.samples_per_s_high,
        "steps": len(run.step_times_s),
        "thrown_away": len(run.warmup_step_times_s),
        "wall_s": run.wall_s,
        "is_steady": run.is_steady,
        "disturbed": run.disturbed,
    }


def summary(runs: Runs) -> dict[str, Any]:
    """What the repeats say."""
    everything = [run for own in runs.values() for run in own]
    ranks = [
        rank_correlation([own[i] for own in runs.values()], [own[j] for own in runs.values()])
        for i, j in itertools.combinations(range(min(map(len, runs.values()))), 2)
    ]
    reported, knowing = Spread(), pooled(runs.values())
    calm = {key: [run for run in own if not run.disturbed] for key, own in runs.items()}
    squares, degrees = between(runs.values())
    return {
        "coverage_reported": coverage(runs, lambda run: ends(reported, run)),
        "coverage_compared": coverage_compared(runs),
        "coverage_with_repeats": coverage(runs, lambda run: ends(knowing, run)),
        "coverage_of_median": coverage(runs, of_steps),
        "coverage_undisturbed": coverage(calm, lambda run: ends(reported, run)),
        "rank_correlation": statistics.fmean(ranks),
        "rank_correlation_lowest": min(ranks),
        "deviation": math.sqrt(max(0.0, squares / degrees)),
        "degrees": degrees,
        "own_deviation": statistics.median(
            math.sqrt(variance_of_steps(run)) for run in everything
        ),
        "half_width": statistics.median(
            math.log(high / low) / 2 for low, high in (ends(reported, r) for r in everything)
        ),
        "n_disturbed": sum(bool(run.disturbed) for run in everything),
    }


def say(found: dict[str, Any]) -> None:
    """Print a summary."""
    print(
        f"re-runs covered: {found['coverage_reported']:.1%} by the reported interval, "
        f"{found['coverage_compared']:.1%} by that after a final comparison of two others, "
        f"{found['coverage_with_repeats']:.1%} by that which knows these repeats, "
        f"{found['coverage_of_median']:.1%} by that of the median step"
    )
    print(
        f"disturbed: {found['n_trials'] - len(found['runs'])} of {len(found['runs'])} runs, and "
        f"the repeats of {found['n_disturbed']} again; without these "
        f"{found['coverage_undisturbed']:.1%} covered by the reported interval"
    )
    print(
        f"rank correlation between repeats: {found['rank_correlation']:.3f} (lowest "
        f"{found['rank_correlation_lowest']:.3f})"
    )
    print(
        f"deviation between processes: {found['deviation']:.2%} with {found['degrees']} degrees "
        f"of freedom (assumed: {PRIOR_DEVIATION:.2%}, {PRIOR_DEGREES}); of a median's own steps: "
        f"{found['own_deviation']:.2%}; typical half width of a reported interval: "
        f"{found['half_width']:.1%}"
    )


def pairs(runs: Runs) -> Iterator[tuple[TrialResult, TrialResult]]:
    """A run and a re-run of the same candidate, every two both ways."""
    for own in runs.values():
        yield from itertools.permutations(own, 2)


def coverage(runs: Runs, interval: Interval) -> float:
    """Share of re-runs that the interval of another run covers."""
    hits = []
    for run, other in pairs(runs):
        low, high = interval(run)
        hits.append(low <= (other.samples_per_s or 0.0) <= high)
    return statistics.fmean(hits) if hits else math.nan


def coverage_compared(runs: Runs) -> float:
    """Share of re-runs covered where the spread is of two other candidates, run three times each.

    The mean over all choices of the two: what a report says of the rows that ran once.
    """
    shares = []
    for pair in itertools.combinations(runs, 2):
        spread = pooled(runs[key][:FULL_ROUNDS] for key in pair)
        others = {key: own for key, own in runs.items() if key not in pair}
        shares.append(coverage(others, lambda run, spread=spread: ends(spread, run)))
    return statistics.fmean(shares)


def ends(spread: Spread, run: TrialResult) -> tuple[float, float]:
    """Of the prediction interval."""
    interval = spread.interval([run])
    return interval.low, interval.high


def of_steps(run: TrialResult) -> tuple[float, float]:
    """Of the interval of the run's own median step."""
    assert run.samples_per_s_low is not None
    assert run.samples_per_s_high is not None
    return run.samples_per_s_low, run.samples_per_s_high


def rank_correlation(ones: list[TrialResult], others: list[TrialResult]) -> float:
    """Spearman's, of samples/s, of which no two are equal."""
    ranks = []
    for side in (ones, others):
        rates = [run.samples_per_s or 0.0 for run in side]
        ranks.append([float(sorted(rates).index(rate)) for rate in rates])
    return statistics.correlation(*ranks)


def plain(
    session: Session, fleet: GangFleet, scratch: Path, rounds: int
) -> dict[str, dict[str, Any]]:
    """Trials of one candidate and plain training of its export, in turns."""
    candidate = candidate_of(session, PLAIN)
    exported = export(session, candidate, scratch / "export")
    logs = []
    for turn in range(rounds):
        sides: list[Callable[[], float]] = [
            lambda: trial(session, fleet, candidate).samples_per_s or 0.0,
            lambda: plain_samples_per_s(session, exported),
        ]
        rates = [side() for side in (sides if turn % 2 else sides[::-1])]
        measured, trained = rates if turn % 2 else rates[::-1]
        logs.append(math.log(measured / trained))
    found = compared(logs, tolerance=TOLERANCE)
    print(
        f"{candidate}: {found['verdict']}: {found['ratio']:.3f} of plain training "
        f"({found['low']:.3f} to {found['high']:.3g}, {rounds} rounds)"
    )
    return {"plain": found}


if __name__ == "__main__":
    sys.exit(main())
