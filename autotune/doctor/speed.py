"""Measure the devices, all at once, in processes that start as the ranks of a trial do."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from autotune.base.errors import FleetError
from autotune.doctor.diagnosis import Speed
from autotune.fleet.measuring import measure_on_ranks

MAX_CORES = 16
"""Cores that take part at the most, evenly spread: each is a process that imports torch."""
TIMEOUT_S = 60.0


def measure_speed(accelerator: str, devices: Sequence[int]) -> Speed:
    """Run the matrix product and the all-reduce: gloo over cores, NCCL over GPUs.

    The devices are core numbers, or the indices of all visible GPUs. If a process failed or hung,
    there is a `problem` and no figures.
    """
    chosen = _spread(devices, MAX_CORES) if accelerator == "cpu" else tuple(devices)
    started_at_s = time.monotonic()
    problem, fix, reports = "", "", []
    try:
        reports = measure_on_ranks(
            "autotune.doctor.rank",
            accelerator=accelerator,
            devices=chosen,
            timeout_s=TIMEOUT_S,
        )
    except FleetError as error:
        problem, fix = error.message, error.hint
    wall_s = time.monotonic() - started_at_s
    return Speed(
        devices=chosen,
        matmul=reports[0]["matmul"] if reports else "",
        matmul_flops=tuple(2 * r["n"] ** 3 / statistics.median(r["matmul_s"]) for r in reports),
        all_reduce_bytes=reports[0]["all_reduce_bytes"] if reports else 0,
        all_reduce_busbw=_busbw(reports),
        wall_s=wall_s,
        problem=problem,
        fix=fix,
    )


def _busbw(reports: Sequence[dict[str, Any]]) -> float | None:
    n = len(reports)
    if n < 2:
        return None
    slowest_s = max(statistics.median(report["all_reduce_s"]) for report in reports)
    return float(2 * (n - 1) / n * reports[0]["all_reduce_bytes"] / slowest_s)


def _spread(devices: Sequence[int], at_most: int) -> tuple[int, ...]:
    n = min(len(devices), at_most)
    return tuple(devices[i * len(devices) // n] for i in range(n))
