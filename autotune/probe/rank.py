"""One rank of a probe: `python -m autotune.probe.rank FOLDER ACCELERATOR DEVICES WANTED`.

All ranks measure the same at the same time, as they do in training: what one device does alone it
may not do while the others want the same memory. WANTED is a `ProbeRequest` as JSON. An answer has
a list of points; one is

    {"kind": "matmul", "dtype": "fp32", "shape": [64, 64, 64], "seconds": 1e-5, "scatter": 0.02}

with `bytes` instead of `dtype` and `shape` for what moves data, `span` for what the ranks do with
each other, `ranks` where not all take part,
the median in `seconds`, and in `scatter` the middle half's width over it.
"""

import json
import os
import platform
import sys
from typing import Any

from autotune.trial.report_rank import report


def main() -> None:
    """Measure, write, and leave."""
    report(_measure)


def _measure(accelerator: str, local_rank: int) -> dict[str, Any]:
    wanted = json.loads(sys.argv[4])

    import torch

    from autotune.probe import communication, kernels
    from autotune.probe.clock import Clock

    if accelerator == "cuda":
        torch.cuda.init()  # says in words what is wrong with the driver or the build
        torch.cuda.set_device(local_rank)
        device = torch.device("cuda", local_rank)
        wait, backend, name = torch.cuda.synchronize, "nccl", torch.cuda.get_device_name(device)
    else:
        device, wait, backend, name = torch.device("cpu"), _nothing, "gloo", ""
        torch.set_num_threads(1)
    per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    torch.distributed.init_process_group(backend)
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    clock = Clock(device, wait, is_quick=wanted["is_quick"])
    points: list[dict[str, Any]] = []
    if wanted["only"] == "speed":
        points += kernels.one_product(clock)
        points += communication.one_all_reduce(clock) if world > 1 else ()
    elif not wanted["only"]:
        points += kernels.products(clock, wanted["precisions"])
        points += kernels.streams(clock)
        if accelerator == "cuda":
            points += kernels.copies(clock)
        else:
            points += kernels.layers(clock)
            points += kernels.attention(clock, wanted["precisions"])
            points += kernels.losses(clock, wanted["precisions"])
        if wanted["disk"] is not None:
            points += kernels.disk(clock, wanted["disk"], rank)
        for ring in communication.rings(per_node) if world > 1 else ():
            points += communication.collectives(clock, ring)
    if world > 1 and wanted["only"] != "speed":
        points += communication.pairs(clock, per_node)
    torch.distributed.barrier()
    return {
        "host": platform.node(),
        "device": name,
        "place": int(sys.argv[3].split(",")[local_rank]),
        "points": points,
    }


def _nothing() -> None:
    """Work on the CPU is done when the call returns."""


if __name__ == "__main__":
    main()
