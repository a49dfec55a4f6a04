"""How fast the cost model judges candidates, and how long a large plan takes.

The first figure is of memory and time together, on one core, for candidates that differ in their
layout. The second is of a whole search for a model of 10^12 parameters on 16,384 H100: every legal
Megatron layout is made, judged, screened by memory and ranked, as `plan --engine megatron` does.
The third is of `plan` where nobody names a space, for Llama-3-8B on eight H100.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from autotune.app.planning import open_outlook
from autotune.cost.plans import Plans
from autotune.cost.predict import predict
from autotune.engines.megatron.layouts import Layouts, lay_out
from autotune.planning.outlook import FleetWishes
from autotune.planning.ranking import rank_lattice

_WORLD = 16_384
_MIN_FIT = 0.5
_TRILLION = {
    # Narayanan et al. (arXiv:2104.04473), table 1, last row.
    "model_type": "gpt2",
    "n_layer": 128,
    "n_embd": 25_600,
    "n_inner": 102_400,
    "n_head": 160,
    "vocab_size": 51_200,
    "n_positions": 2048,
}


def job_keys(folder: Path) -> dict[str, object]:
    """The job, with its model as a file."""
    config = folder / "config.json"
    config.write_text(json.dumps(_TRILLION))
    return {"model": str(config), "seq_len": 2048, "global_batch": _WORLD, "world": _WORLD}


def measure_rate(plans: Plans, n: int, repeats: int) -> float:
    """Candidates per second: the best of some runs, since others use the machine too."""
    random = np.random.default_rng(0)
    drawn = plans.take(random.integers(0, len(plans), n))
    predict(drawn)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        predict(drawn)
        times.append(time.perf_counter() - started)
    return n / min(times)


def measure_default(repeats: int) -> dict[str, float]:
    """A plan of all that can be predicted well under DeepSpeed."""
    job = {"model": "llama-3-8b", "seq_len": 4096, "global_batch": 256, "world": 8}
    times, n = [], 0
    for _ in range(repeats):
        started = time.perf_counter()
        outlook = open_outlook(None, job, FleetWishes(gpu="H100"))
        rank_lattice(outlook)
        times.append(time.perf_counter() - started)
        n = outlook.lattice.grid_size
    return {"default_plan_s": min(times), "default_plan_grid": n}


def measure(n: int, repeats: int) -> dict[str, float]:
    """The rate, and one whole search."""
    wishes = FleetWishes(gpu="H100")
    with tempfile.TemporaryDirectory() as folder:
        outlook = open_outlook(None, {**job_keys(Path(folder)), "engine": "megatron"}, wishes)
    layouts = outlook.lattice.candidates
    assert isinstance(layouts, Layouts), "they are made in columns"
    rate = measure_rate(outlook.plans(layouts), n, repeats)
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        lay_out(layouts.task)
        found = rank_lattice(outlook, min_fit=_MIN_FIT)
        times.append(time.perf_counter() - started)
    best = int(found.order[0])
    chosen = layouts.row(best)
    names = ("dp", "tp", "pp", "vp", "cp", "micro_batch", "recompute")
    return {
        "candidates_per_s": round(rate),
        "plan_1t_16384_s": min(times),
        "plan_candidates": len(layouts),
        "plan_fitting": found.n_likely,
        "plan_step_time_s": float(found.prediction.step_time_s[best]),
        **{f"plan_{name}": chosen[name] for name in names},
        "plan_zero_stage": chosen["distributed_optimizer"],
        **measure_default(repeats),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=500_000, help="of the first figure")
    parser.add_argument(
        "--repeats", type=int, default=5, help="runs of each, of which the best counts"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    figures = {
        name: round(value, 4)
        for name, value in measure(options.candidates, options.repeats).items()
    }
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:22} {value:g}")


if __name__ == "__main__":
    main()
