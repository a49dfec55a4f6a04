"""What a trial costs besides its steps: cold starts and warm ones of one candidate, in turns.

    python benchmarks/trial_overhead.py [--rounds N] [--json]

The overhead is the trial's wall time without its warm-up and measured steps, by phase and as a
median. The diagnostic pass is told apart: it trains up to four more steps, so its time is theirs,
and `search --no-diagnose` leaves it out. The first warm trial also starts the template that the
others share; it is shown alone. Cold and warm figures are compared as well: the geometric mean of
warm over cold samples/s.
"""

import argparse
import json
import math
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from plain_agreement import JOB, candidate_of, compared, run_trial

from autotune.app.session import open_session
from autotune.contract import Phase, Role, Start, TrialResult
from autotune.engines.deepspeed.extensions import build
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.session import Session
from autotune.search.trial_spec import Run

KNOBS = {"zero.stage": 1, "micro_batch": 8}
STEPS = (Phase.WARM_UP, Phase.MEASURED, Phase.DIAGNOSE)
STARTS = tuple(Start)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        session = open_session(None, {**JOB, "study": "overhead"}, results=Path(scratch))
        build(session.environment.accelerator, print)
        fleet = local_fleet(session.environment, world=session.job.world)
        try:
            first = run(session, fleet, Start.WARM)
            starts = [run(session, fleet, s) for _ in range(options.rounds) for s in STARTS]
        finally:
            fleet.close()
    found = report(first, starts)
    if options.json:
        print(json.dumps(found))
    return 0


def run(session: Session, fleet: GangFleet, start: Start) -> TrialResult:
    """One trial of the candidate."""
    search = Run(candidate=candidate_of(session, KNOBS), role=Role.SEARCH)
    result = run_trial(session, fleet, search, start=start)
    if result.start != start:
        sys.exit(f"a trial to start {start} started {result.start}")
    return result


def overhead_s(result: TrialResult) -> float:
    """Seconds of a trial outside its steps."""
    return result.wall_s - sum(result.phases_s.get(phase, 0.0) for phase in STEPS)


def report(first: TrialResult, results: list[TrialResult]) -> dict[str, Any]:
    """Print the medians, and return them."""
    by_start = {start: [r for r in results if r.start == start] for start in STARTS}
    medians = {s: statistics.median(map(overhead_s, by_start[s])) for s in STARTS}
    phases = {
        start: {
            str(phase): statistics.median(r.phases_s.get(phase, 0.0) for r in by_start[start])
            for phase in Phase
            if phase not in STEPS
        }
        for start in STARTS
    }
    logs = [
        math.log((warm.samples_per_s or 0.0) / (cold.samples_per_s or 1.0))
        for cold, warm in zip(by_start[Start.COLD], by_start[Start.WARM], strict=True)
    ]
    agreement = compared(logs)
    print(f"{'phase':16}{'cold':>8}{'warm':>8}  seconds, medians of {len(logs)}")
    for phase in phases[Start.COLD]:
        print(f"{phase:16}{phases[Start.COLD][phase]:8.2f}{phases[Start.WARM][phase]:8.2f}")
    print(f"{'all':16}{medians[Start.COLD]:8.2f}{medians[Start.WARM]:8.2f}")
    diagnose_s = statistics.median(r.phases_s.get(Phase.DIAGNOSE, 0.0) for r in results)
    step_s = statistics.median(r.step_time_s or 0.0 for r in results)
    print(f"the diagnostic pass: {diagnose_s:.2f} s, where a step takes {step_s:.2f} s")
    print(f"the first warm start, which starts the template: {overhead_s(first):.2f} s")
    print(
        f"samples/s, warm over cold: {agreement['ratio']:.3f} "
        f"({agreement['low']:.3f} to {agreement['high']:.3g})"
    )
    return {
        "warm_s": medians[Start.WARM],
        "cold_s": medians[Start.COLD],
        "first_warm_s": overhead_s(first),
        "diagnose_s": diagnose_s,
        "step_s": step_s,
        "phases": phases,
        "warm_over_cold": agreement,
    }


if __name__ == "__main__":
    sys.exit(main())
