"""Fit the cost model's constants of CPU ranks to studies of this repository, and write them.

    python benchmarks/fit_cpu_constants.py STUDY... [--held-out STUDY...] [--dry-run]

A study is a folder in which a search with `--sampler grid` tried every candidate on CPU ranks, as
`search_wall_clock.py` leaves one. Each weighs the same. Those held out only say what the constants
are worth: rank correlation of predicted and measured step times, how far these and peak memory are
off in the median, the spread of the step times' ratio, and by how much the fastest of the N
candidates that are predicted to be the fastest misses the best. The memory of CPU ranks is not
fitted.
"""

import argparse
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from calibrate import TIME_PRIORS, calibrate_constants
from fit_constants import write_constants
from numpy.typing import NDArray
from wall_clock_searches import Table

from autotune.app.session import open_session
from autotune.cost.constants import SHIPPED_CPU, Constants, constants_of, load_constants
from autotune.cost.plans import Plans
from autotune.cost.predict import predict
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.plans import plans_of
from autotune.job.job import JobText
from autotune.search.session import RecordedPlace

START = dataclasses.replace(
    load_constants(),
    # A core's rates: the products of small models are small, and nothing is fused.
    matmul_share=0.7,
    memory_share=0.6,
    unfused_traffic=2.5,
    # A kernel's dispatch; Python round a micro-batch, a step, and stage 3's modules.
    launch_s=2.5e-5,
    micro_batch_s=3e-3,
    step_s=9e-3,
    fetch_s=3.5e-3,
    device_fetch_s=7e-4,
    page_s=3e-6,
    # gloo over the loopback device, through the kernel and back.
    nvlink_share=0.15,
    nvlink_latency_s=5e-4,
    # Above its imports a rank holds gloo's buffers, threads and the heap: not fitted here, but as
    # the smallest trials of `make demo` on two cores had it.
    context_bytes=240e6,
    # Nor these: what trials with `host_allocator=keep` held more than their twins in the space of
    # search_wall_clock.py and in `make demo`.
    heap_bytes=200e6,
    heap_share=0.6,
    # What is computed and what communicates share the core: nothing is hidden.
    overlap_share=1.0,
    attention_start_tokens=1.0,
    host_optimizer_share=0.6,
)
"""What is known before a fit, rounded: from the processor time of trials on a busy machine."""
_AS_ELSEWHERE = (
    *("matmul_share", "matmul_traffic", "attention_share", "attention_backward_share"),
    *("optimizer_traffic_bytes", "host_optimizer_share"),
)
PRIORS = {
    **{name: TIME_PRIORS[name] for name in _AS_ELSEWHERE},
    "memory_share": 0.5,
    "unfused_traffic": 0.5,
    "launch_s": 0.7,
    "micro_batch_s": 0.7,
    "step_s": 0.7,
    "fetch_s": 0.7,
    "page_s": 0.7,
    "nvlink_share": 0.7,
    "nvlink_latency_s": 0.7,
}
"""As `TIME_PRIORS`; wider where a core was never asked."""
_SIGMA = 0.1
"""Noise of a trial, with what the model leaves out."""
_WEIGHT = 40.0
"""Candidates that a study counts as."""
_FIRST = (1, 3, 5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """The candidates of a study that ran."""

    name: str
    plans: Plans
    step_times_s: NDArray[np.float64]
    memory_error: float
    """Median of |predicted / measured - 1| of the peak memory, by the shipped constants."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY", help="to fit to")
    parser.add_argument("--held-out", nargs="+", type=Path, default=[], metavar="STUDY")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--json", action="store_true", help="last line: one JSON object")
    options = parser.parse_args()
    fitted_on = [read_study(folder) for folder in options.studies]
    held_out = [read_study(folder) for folder in options.held_out]
    constants = fit(fitted_on)
    for name in PRIORS:
        print(f"{name:26} {getattr(START, name):<10.4g} -> {getattr(constants, name):.4g}")
    found = {
        each.name: {"split": split, **worth(each, constants)}
        for split, studies in (("fitted", fitted_on), ("held out", held_out))
        for each in studies
    }
    for name, figures in found.items():
        first = ", ".join(f"{n}: {figures[f'first_{n}_misses']:.1%}" for n in _FIRST)
        print(
            f"{name}: {figures['split']}, {figures['candidates']} candidates, rank correlation "
            f"{figures['rank_correlation']:.2f}, step time {figures['time_error']:.1%} and memory "
            f"{figures['memory_error']:.1%} off in the median, spread {figures['spread']:.1%}, "
            f"the best of the first {first} off"
        )
    if not options.dry_run:
        write_constants(constants, SHIPPED_CPU, by=Path(__file__).name)
    if options.json:
        print(json.dumps(found))


def read_study(folder: Path) -> Measured:
    """What a study measured, and what the model is told of it."""
    session = open_session(JobText.read(folder / "job.yaml"), {}, results=folder.parent)
    environment = Environment(**session.study.read_state()["environment"])
    session = dataclasses.replace(session, place=RecordedPlace(environment, {}))
    rows = [row for row in Table.of(session).rows.values() if row.samples_per_s is not None]
    rates = np.array([row.samples_per_s for row in rows], dtype=np.float64)
    plans = plans_of([row.candidate for row in rows], session.job, environment)
    peaks = predict(plans, constants_of(environment)).peak_memory_bytes
    measured_peaks = np.array([row.result.peak_memory_bytes for row in rows], dtype=np.float64)
    return Measured(
        name=folder.name,
        plans=plans,
        step_times_s=session.job.global_batch / rates,
        memory_error=float(np.median(np.abs(peaks / measured_peaks - 1.0))),
    )


def fit(studies: list[Measured]) -> Constants:
    """The constants of the step time."""
    plans = join([study.plans for study in studies])
    times_s = np.concatenate([study.step_times_s for study in studies])
    weights = np.concatenate(
        [np.full(len(study.plans), _WEIGHT / len(study.plans)) for study in studies]
    )
    return calibrate_constants(plans, times_s, START, sigma=_SIGMA, weights=weights, priors=PRIORS)


def join(parts: list[Plans]) -> Plans:
    """The candidates of all of them."""
    return Plans(
        **{
            name: np.concatenate(
                [np.broadcast_to(part.columns()[name], len(part)) for part in parts]
            )
            for name in parts[0].columns()
        }
    )


def worth(study: Measured, constants: Constants) -> dict[str, float | int]:
    """What the predictions of a study are worth."""
    predicted = predict(study.plans, constants).step_time_s
    measured = study.step_times_s
    by_forecast = measured[np.argsort(predicted, kind="stable")]
    return {
        "candidates": len(measured),
        "rank_correlation": float(pd.Series(predicted).rank().corr(pd.Series(measured).rank())),
        "time_error": float(np.median(np.abs(predicted / measured - 1.0))),
        "memory_error": study.memory_error,
        "spread": float(np.std(np.log(measured / predicted))),
        **{
            f"first_{n}_misses": float(by_forecast[:n].min() / measured.min() - 1.0)
            for n in _FIRST
        },
    }


if __name__ == "__main__":
    main()
