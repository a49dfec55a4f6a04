"""What the memory meter of a CPU rank takes from a training step.

    python benchmarks/meter_cost.py EXPORT_DIR [--steps N] [--period SECONDS] [--json]

Trains an exported configuration on CPU ranks; in every second optimizer step the meter's thread
watches as it does while steps are measured, in the others it rests. The ratio is the geometric
mean over pairs of neighbouring steps, with its 95% interval: it is 1 where the meter changes
nothing. A small model at micro-batch 1 shows the most.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from plain_agreement import compared
from plain_training import load

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.trial.memory import CpuMeter

WARMUP_STEPS = 4


class PausedMeter(CpuMeter):
    """A meter that watches only while it is told to."""

    def __init__(self, period_s: float) -> None:
        super().__init__()
        self._rest_s = period_s
        self.resume = threading.Event()

    def _watch(self) -> None:
        while True:
            self.resume.wait()
            time.sleep(self._rest_s)
            self._sample()


def main() -> int:
    options = parse_arguments()
    if "RANK" in os.environ:
        train(options)
        return 0
    settings = json.loads((options.export / "settings.json").read_text(encoding="utf-8"))
    if settings["accelerator"] != "cpu":
        sys.exit(f"{options.export}: is for {settings['accelerator']}, CPU ranks have this meter")
    build("cpu", lambda line: print(line, file=sys.stderr))
    ranks = str(settings["world"])
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
    environment = {
        **os.environ,
        **extensions_environment("cpu"),
        "LOCAL_SIZE": ranks,
        "OMP_NUM_THREADS": "1",
    }
    return subprocess.run([*run, ranks, *sys.argv], env=environment).returncode


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("export", type=Path, help="folder written by `autotune export`")
    parser.add_argument("--steps", type=int, default=160, help="optimizer steps that are timed")
    parser.add_argument(
        "--period",
        type=float,
        default=CpuMeter.settled_period_s,
        help="seconds between two readings (default: the meter's own)",
    )
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    return parser.parse_args()


def train(options: argparse.Namespace) -> None:
    script = load(options.export / "train.py")
    engine, settings, ds_config = script.start()
    losses = script.steps(engine, settings, ds_config)
    meter = PausedMeter(options.period)
    meter.start(None)
    times_s: dict[bool, list[float]] = {True: [], False: []}
    for step in range(WARMUP_STEPS + options.steps):
        watches = step % 2 == 1
        (meter.resume.set if watches else meter.resume.clear)()
        start = time.perf_counter()
        next(losses).item()
        if step >= WARMUP_STEPS:
            times_s[watches].append(time.perf_counter() - start)
    if engine.global_rank == 0:
        report(times_s, options)
    script.leave()


def report(times_s: dict[bool, list[float]], options: argparse.Namespace) -> None:
    logs = [math.log(on / off) for on, off in zip(times_s[True], times_s[False], strict=False)]
    found = {**compared(logs), "pairs": len(logs)}
    if options.json:
        print(json.dumps(found))
        return
    print(
        f"watched steps take {found['ratio']:.4f} of the others "
        f"({found['low']:.4f} to {found['high']:.4f}, {len(logs)} pairs)"
    )


if __name__ == "__main__":
    sys.exit(main())
