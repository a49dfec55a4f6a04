"""Measure the devices, all at once, in processes that start as the ranks of a trial do."""

import time
from collections.abc import Sequence
from typing import Any

from autotune.base.errors import FleetError
from autotune.devices.hardware import visible_gpus
from autotune.doctor.diagnosis import Speed
from autotune.fleet.base import THIS_MACHINE
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.local import LocalTransport
from autotune.probe.measuring import ProbeRequest, measure
from autotune.probe.points import Point

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
    gpus = () if accelerator == "cpu" else visible_gpus()
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    names = tuple(uuids.get(device, str(device)) for device in chosen)
    node, found = Node(name=THIS_MACHINE, devices=names), dict[str, Any]()
    wanted = ProbeRequest(precisions=(), only="speed")
    try:
        measured = measure(LocalTransport(node), [node], wanted, accelerator, timeout_s=TIMEOUT_S)
    except FleetError as error:
        found = {"problem": error.message, "fix": error.hint}
    else:
        for point in measured.points:
            if point.kind == "matmul":
                found["matmul"] = f"{point.shape[0]} x {point.shape[2]} {point.dtype}"
                found["matmul_flops"] = tuple(point.flops / s for s in point.seconds)
            elif point.kind == "all_reduce":
                found["all_reduce_bytes"] = point.size_bytes
                found["all_reduce_busbw"] = _busbw(point)
    return Speed(devices=chosen, wall_s=time.monotonic() - started_at_s, **found)


def _busbw(reduced: Point) -> float:
    n = len(reduced.ranks)
    return 2 * (n - 1) / n * reduced.size_bytes / reduced.slowest_s


def _spread(devices: Sequence[int], at_most: int) -> tuple[int, ...]:
    n = min(len(devices), at_most)
    return tuple(devices[i * len(devices) // n] for i in range(n))
