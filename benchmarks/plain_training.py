"""Train an exported configuration with a plain loop and a wall clock: are the figures true?

    python benchmarks/plain_training.py EXPORT_DIR [--steps N] [--json] [--compare FILE]

Shares no code with what measures trials: it takes the model, the engine and the step from the
export's own `train.py`, starts itself under torchrun, and times whole optimizer steps on the host.
"""

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

WARMUP_STEPS = 3


def main() -> int:
    options = parse_arguments()
    if "RANK" in os.environ:
        train(options)
        return 0
    settings = json.loads((options.export / "settings.json").read_text(encoding="utf-8"))
    return subprocess.run(torchrun(settings["world"]), env=environment(settings)).returncode


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("export", type=Path, help="folder written by `autotune export`")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps that are timed")
    parser.add_argument(
        "--json", action="store_true", help="one JSON object as the last line on stdout"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="FILE",
        help="figures.json of the export or result.json of a trial: print the ratio to it",
    )
    return parser.parse_args()


def torchrun(world: int) -> list[str]:
    """The command that runs this script again, as every rank."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*run, "--nproc-per-node", str(world), *sys.argv]


def environment(settings: dict[str, Any]) -> dict[str, str]:
    """As the export's launch.sh sets it."""
    inherited = {**os.environ, **settings["environment_variables"]}
    if settings["accelerator"] != "cpu":
        threads = max(1, len(os.sched_getaffinity(0)) // settings["world"])
        return {"OMP_NUM_THREADS": str(threads), **inherited}
    return {
        **inherited,
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(settings["world"]),
        "OMP_NUM_THREADS": "1",
    }


def train(options: argparse.Namespace) -> None:
    """Time whole optimizer steps; training itself keeps the ranks in step."""
    script = load(options.export / "train.py")
    engine, settings, ds_config = script.start()
    losses = script.steps(engine, settings, ds_config)
    times_s: list[float] = []
    tries = 0
    while len(times_s) < WARMUP_STEPS + options.steps:
        start = time.perf_counter()
        next(losses).item()  # waits for the device
        elapsed_s = time.perf_counter() - start
        tries += 1
        if engine.was_step_applied():  # fp16 skips steps that overflow: they look fast
            times_s.append(elapsed_s)
        elif tries > 10 * (WARMUP_STEPS + options.steps):
            sys.exit("the optimizer applies no steps: the loss scale does not settle")
    if engine.global_rank == 0:
        report(times_s[WARMUP_STEPS:], settings.global_batch, options)
    script.leave()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("exported_train", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def report(times_s: list[float], global_batch: int, options: argparse.Namespace) -> None:
    step_time_s = statistics.median(times_s)
    found = {
        "step_time_s": step_time_s,
        "samples_per_s": global_batch / step_time_s,
        "steps": len(times_s),
    }
    if options.compare is not None:
        claimed = claimed_samples_per_s(options.compare)
        found |= {"claimed_samples_per_s": claimed, "ratio": claimed / found["samples_per_s"]}
    if options.json:
        print(json.dumps(found))
        return
    print(f"median step {step_time_s:.4f} s, {found['samples_per_s']:.4g} samples/s")
    if "ratio" in found:
        print(f"claimed {claimed:.4g} samples/s: {found['ratio']:.3f} of plain training")


def claimed_samples_per_s(path: Path) -> float:
    data = json.loads(path.read_text(encoding="utf-8"))
    return float(data.get("figures", data)["samples_per_s"])


if __name__ == "__main__":
    sys.exit(main())
