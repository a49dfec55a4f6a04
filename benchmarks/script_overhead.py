"""What does a trial of a user's script cost besides the script's own start and steps?

    python benchmarks/script_overhead.py [--rounds N] [--json]

`examples/trainer` runs as a trial and plainly, in turns, for as many optimizer steps. The plain
run has nothing of autotune in it; its time ends with Trainer's log line of the last step. The
trial's time ends when its result is there; it has no diagnostic pass. The difference is the
overhead; a negative one says that a trial finds its extensions faster than DeepSpeed does.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from plain_agreement import run_trial

from autotune.app.own_script import open_command_session, own_candidate
from autotune.contract import Role
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.transports.local import local_fleet
from autotune.job.observed import filled_in
from autotune.search.session import Session
from autotune.search.trial_spec import Run

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "trainer"
COMMAND = (
    *("torchrun", "--nproc-per-node", "2", "train.py", "--deepspeed", "ds_config.json"),
    *("--use_cpu", "--bf16", "--per_device_train_batch_size", "4", "--logging_steps", "1"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    os.chdir(EXAMPLE)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out"
        session = open_command_session(
            [*COMMAND, "--output_dir", str(out)],
            {"diagnose": False},
            results=Path(scratch) / "results",
            note=lambda text: print(text, flush=True),
        )
        fleet = local_fleet(session.environment, world=session.job.world)
        try:
            overheads_s = [overhead_s(session, fleet, out) for _ in range(options.rounds)]
        finally:
            fleet.close()
    median_s = statistics.median(overheads_s)
    print(f"overhead: {median_s:.2f} s, median of {options.rounds}")
    if options.json:
        print(json.dumps({"overhead_s": median_s, "rounds_s": overheads_s}))
    return 0


def overhead_s(session: Session, fleet: GangFleet, out: Path) -> float:
    """Seconds of a trial that the plain run of as many steps did not take."""
    began_s = time.monotonic()
    own = Run(candidate=own_candidate(session), role=Role.SEARCH)
    result = run_trial(session, fleet, own)
    trial_s = time.monotonic() - began_s
    n_steps = len(result.warmup_step_times_s) + len(result.step_times_s)
    plain_s = until_step_s(n_steps, session.environment.accelerator, out)
    print(
        f"{n_steps} steps: {trial_s:.2f} s as a trial, {plain_s:.2f} s plainly: "
        f"{trial_s - plain_s:+.2f} s",
        flush=True,
    )
    return trial_s - plain_s


def until_step_s(n_steps: int, accelerator: str, out: Path) -> float:
    """Seconds from the start of a plain run to its log line of that step."""
    extra = ("--max_steps", str(n_steps), "--save_strategy", "no", "--output_dir", str(out))
    environment = {**os.environ, **extensions_environment(accelerator, os.environ)}
    began_s = time.monotonic()
    with subprocess.Popen(
        filled_in([*COMMAND, *extra], {}),
        env={**environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None, "it is a pipe"
        times_s = [time.monotonic() - began_s for line in process.stdout if "'loss':" in line]
    # A rank was seen to abort after its last line, where its figures have been printed.
    if len(times_s) < n_steps:
        sys.exit(f"the plain run ended with {process.returncode} after {len(times_s)} log lines")
    return times_s[n_steps - 1]


if __name__ == "__main__":
    sys.exit(main())
