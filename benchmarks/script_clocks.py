"""Is a trial's figure of a hostile script what that script shows by its own clock, run plainly?

    python benchmarks/script_clocks.py [--kind KIND] [--rounds N] [--json]

`clocked_script.py` runs as a trial and plainly, in turns, for as many optimizer steps. Nothing of
autotune is in a plain run. The steps that the trial measured are compared with the same steps by
the script's clock:

- `trial`: its median step within the trial itself. That has the work between two steps in it
  (ranks agree on a step's time, memory is looked at), which the trial's figure leaves out.
- `median`: its median step in the plain run.
- `mean`: its mean step in the plain run, as somebody sees it who waits for the training.

The ratios are geometric means over the rounds, with their 95% intervals.
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

from autotune.app.own_script import open_command_session, own_candidate
from autotune.contract import Role
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.search.session import Session
from autotune.search.trial_spec import Run

SCRIPT = Path(__file__).with_name("clocked_script.py")
CLOCKS = ("trial", "median", "mean")
"""Ways to read the script's clock; see above."""


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
    clock = scratch / "clock"
    script = [str(SCRIPT), "--kind", kind, "--clock", str(clock)]
    command = ["torchrun", "--nproc-per-node", "2", *script]
    session = open_command_session(
        command, {"diagnose": False}, results=scratch / "results", note=lambda _: None
    )
    fleet = local_fleet(session.environment, world=session.job.world)
    try:
        figures = [one_round(session, fleet, command, clock) for _ in range(rounds)]
    finally:
        fleet.close()
    return {
        "steps_s": figures,
        **{
            name: compared([math.log(each[name] / each["figure"]) for each in figures])
            for name in CLOCKS
        },
    }


def one_round(
    session: Session, fleet: GangFleet, command: list[str], clock: Path
) -> dict[str, float]:
    """Seconds of a step: the figure of a trial, and by the script's clock."""
    run = Run(candidate=own_candidate(session), role=Role.SEARCH)
    result = run_trial(session, fleet, run)
    assert result.step_time_s is not None, "it was measured"
    n_warm_up, n_steps = len(result.warmup_step_times_s), len(result.step_times_s)
    in_trial_s = steps_by(clock)[n_warm_up - 1 :][:n_steps]
    environment = {**os.environ, **extensions_environment("cpu", os.environ)}
    ran = subprocess.run(
        [*command, "--steps", str(n_warm_up + n_steps)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        sys.exit(f"the plain run failed:\n{ran.stderr[-2000:]}")
    plain_s = steps_by(clock)[n_warm_up - 1 :]
    return {
        "figure": result.step_time_s,
        "trial": statistics.median(in_trial_s),
        "median": statistics.median(plain_s),
        "mean": statistics.fmean(plain_s),
    }


def steps_by(clock: Path) -> list[float]:
    """Seconds of each step but the first."""
    lines = clock.read_text(encoding="utf-8").splitlines()
    return [end - begin for begin, end in pairwise(map(float, lines))]


def worded(found: dict[str, Any]) -> str:
    """One line, for people."""
    typical = {
        name: 1e3 * statistics.median(each[name] for each in found["steps_s"])
        for name in ("figure", *CLOCKS)
    }
    steps = ", ".join(f"{name} {value:.1f}" for name, value in typical.items())
    by_name = {name: found[name] for name in CLOCKS}
    ratios = ", ".join(
        f"{name} {ratio['ratio']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})"
        for name, ratio in by_name.items()
    )
    return f"ms a step: {steps}; the figure's samples/s over those by the {ratios}"


if __name__ == "__main__":
    sys.exit(main())
