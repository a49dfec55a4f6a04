"""Is a trial's figure of a hostile script what that script shows by its own clock, run plainly?

    python benchmarks/script_clocks.py [--kind KIND] [--rounds N] [--json]

`clocked_script.py` runs as a trial and plainly, in turns, for as many optimizer steps. Nothing of
autotune is in a plain run. The steps that the trial measured are compared with the same steps by
the script's clock: by its median step, and by its mean, which is what somebody sees who waits for
the training. The ratios are geometric means over the rounds, with their 95% intervals.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from clocked_script import KINDS
from plain_agreement import compared, run_trial

from autotune.app.own_script import open_script_session, own_candidate
from autotune.app.session import Session
from autotune.contract import Role
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.trial_spec import Run

SCRIPT = Path(__file__).with_name("clocked_script.py")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as scratch:
        for kind in options.kind or KINDS:
            found[kind] = compare(kind, Path(scratch), options.rounds)
            print(f"{kind:12}{worded(found[kind])}", flush=True)
    if options.json:
        print(json.dumps(found))
    return 0


def compare(kind: str, scratch: Path, rounds: int) -> dict[str, Any]:
    """The trial's samples/s over those of plain runs, by the script's median and mean step."""
    command = ["torchrun", "--nproc-per-node", "2", str(SCRIPT), "--kind", kind]
    session = open_script_session(
        command, {"diagnose": False}, results=scratch / "results", note=lambda _: None
    )
    fleet = local_fleet(session.environment, world=session.job.world)
    by_median, by_mean, figures = [], [], []
    try:
        for _ in range(rounds):
            trial_s, median_s, mean_s = one_round(session, fleet, command, scratch / "clock")
            figures.append([trial_s, median_s, mean_s])
            by_median.append(math.log(median_s / trial_s))
            by_mean.append(math.log(mean_s / trial_s))
    finally:
        fleet.close()
    return {"steps_s": figures, "median": compared(by_median), "mean": compared(by_mean)}


def one_round(
    session: Session, fleet: GangFleet, command: list[str], clock: Path
) -> tuple[float, float, float]:
    """Seconds of a step: by a trial, and by the median and the mean of a plain run's clock."""
    run = Run(candidate=own_candidate(session), role=Role.SEARCH)
    result = run_trial(session, fleet, run)
    n_warm_up, n_steps = len(result.warmup_step_times_s), len(result.step_times_s)
    extra = ["--steps", str(n_warm_up + n_steps), "--clock", str(clock)]
    environment = {**os.environ, **extensions_environment("cpu", os.environ)}
    ran = subprocess.run(
        [*command, *extra], env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        sys.exit(f"the plain run failed:\n{ran.stderr[-2000:]}")
    times_s = [end - begin for begin, end in pairwise(json.loads(clock.read_text()))]
    measured_s = times_s[max(0, n_warm_up - 1) :]
    assert result.step_time_s is not None, "it was measured"
    return result.step_time_s, statistics.median(measured_s), statistics.fmean(measured_s)


def worded(found: dict[str, Any]) -> str:
    """One line, for people."""
    trial_s, median_s, mean_s = map(statistics.median, zip(*found["steps_s"], strict=True))
    ratios = ", ".join(
        f"{found[name]['ratio']:.3f} ({found[name]['low']:.3f} to {found[name]['high']:.3f}) "
        f"of its {name}"
        for name in ("median", "mean")
    )
    return (
        f"{1e3 * trial_s:.1f} ms a step as a trial, {1e3 * median_s:.1f} plainly, mean "
        f"{1e3 * mean_s:.1f}: samples/s {ratios}"
    )


if __name__ == "__main__":
    sys.exit(main())
