"""Fit the constants of the cost model to published runs, and write them.

Only the sources that `benchmarks/sources.json` lists as fitted are looked at; `accuracy.py` reports
the others apart. Every source and device weighs the same, however many rows it has.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import numpy as np
import yaml
from accuracy import SPLIT
from published_runs import Runs, read_runs

from autotune.cost.calibrate import calibrate_memory, calibrate_time
from autotune.cost.constants import SHIPPED, Constants, load_constants
from autotune.cost.predict import predict

_START = Constants(
    matmul_share=0.85,
    matmul_traffic=1.0,
    low_precision_share=0.8,
    attention_share=0.7,
    attention_backward_share=0.6,
    memory_share=0.8,
    unfused_traffic=2.5,
    score_traffic_bytes=12.0,
    launch_s=1e-5,
    kernels_per_layer=20.0,
    micro_batch_s=1e-3,
    step_s=1e-2,
    nvlink_share=0.75,
    network_share=0.75,
    host_link_share=0.8,
    nvlink_latency_s=4e-6,
    network_latency_s=1.5e-5,
    overlap_share=0.15,
    scale_jitter=0.005,
    optimizer_traffic_bytes=8.0,
    host_optimizer_share=0.5,
    context_bytes=7e8,
    communicator_bytes=2e8,
    fragmentation=0.06,
    workspace_bytes=3e8,
    logit_bytes=8.0,
    time_sigma=0.15,
    memory_sigma=0.1,
)
"""What is known before any run: `autotune/cost/calibrate.py` says how well."""
_SIGMA = 0.06
"""Noise of a published step, with what the model leaves out."""
_WEIGHT = 12.0
"""Rows that a source and device count as."""


def fit_time(runs: Runs, start: Constants) -> Constants:
    """The constants of the step time."""
    ran = runs.part((runs.status == "ok") & np.isfinite(runs.times_s))
    weights = _WEIGHT * ran.weights()
    fitted = calibrate_time(ran.plans, ran.times_s, start, sigma=_SIGMA, weights=weights)
    misses = np.log(ran.times_s / predict(ran.plans, fitted).step_time_s)
    return dataclasses.replace(fitted, time_sigma=_spread(misses, ran.weights()))


def fit_memory(runs: Runs, start: Constants) -> Constants:
    """The constants of the peak memory, from what nvidia-smi showed."""
    known = (runs.status == "ok") & np.isfinite(runs.peaks_bytes)
    seen = runs.part(known & (runs.meters == "peak_bytes"))
    weights = _WEIGHT * seen.weights()
    fitted = calibrate_memory(seen.plans, seen.peaks_bytes, start, sigma=_SIGMA, weights=weights)
    misses = np.log(seen.peaks_bytes / predict(seen.plans, fitted).peak_memory_bytes)
    return dataclasses.replace(fitted, memory_sigma=max(0.08, _spread(misses, seen.weights())))


def _spread(misses: np.ndarray, weights: np.ndarray) -> float:
    """A standard deviation that outliers do not make: 1.48 times the median size, all alike."""
    order = np.argsort(np.abs(misses))
    share = np.cumsum(weights[order]) / weights.sum()
    return float(1.4826 * np.abs(misses)[order][np.searchsorted(share, 0.5)])


def write(constants: Constants, path: Path) -> None:
    """As YAML, four digits each."""
    values = {name: float(f"{value:.4g}") for name, value in dataclasses.asdict(constants).items()}
    head = (
        "# Written by benchmarks/fit_constants.py; autotune/cost/constants.py says what each is.\n"
    )
    path.write_text(head + yaml.safe_dump(values, sort_keys=True), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--out", type=Path, default=SHIPPED, help="file to write")
    options = parser.parse_args()
    runs = read_runs(options.published)
    fitted_on = json.loads(SPLIT.read_text(encoding="utf-8"))["fitted"]
    part = runs.part(np.isin(runs.sources, fitted_on))
    constants = fit_memory(part, fit_time(part, _START))
    write(constants, options.out)
    load_constants.cache_clear()
    for name, value in dataclasses.asdict(load_constants(options.out)).items():
        print(f"{name:26} {getattr(_START, name):<10.4g} -> {value:.4g}")


if __name__ == "__main__":
    main()
