"""One rank of a probe: `python -m autotune.probe.rank FOLDER`.

All ranks measure the same at the same time, as they do in training: what one device does alone it
may not do while the others want the same memory. They are asked a `ProbeRequest`. An answer has
a list of points; one is

    {"kind": "matmul", "dtype": "fp32", "shape": [64, 64, 64], "seconds": 1e-5, "scatter": 0.02}

with `bytes` instead of `dtype` and `shape` for what moves data, `span` for what the ranks do with
each other, `ranks` where not all take part,
the median in `seconds`, and in `scatter` the middle half's width over it.
"""

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from autotune.base.errors import JobError
from autotune.base.keeper import end_with_parent
from autotune.contract import PARENT_ENV, RANKS_DIR, Phase, read_json, write_json
from autotune.trial.rank import Rank, pin

REQUEST_FILE = "request.json"
FOUND_FILE = "{rank:02d}.found.json"
"""File below `RANKS_DIR`: what a rank measured."""


def main(folder: Path) -> NoReturn:
    """Measure, write, and leave without waiting for destructors."""
    end_with_parent(int(os.environ[PARENT_ENV]))
    pin(int(os.environ["LOCAL_RANK"]))
    rank = Rank(folder, int(os.environ["RANK"]))
    rank.reporter.enter(Phase.IMPORT)
    began_s = time.monotonic()
    try:
        rank.store.open()
        found = _measure(read_json(folder / REQUEST_FILE), rank.spec.layout.accelerator)
        number = rank.reporter.report.rank
        write_json(folder / RANKS_DIR / FOUND_FILE.format(rank=number), found)
    except BaseException as error:
        rank.fail(error)
    rank.reporter.report.step_times_s = [time.monotonic() - began_s]
    rank.finish()


def _measure(wanted: Mapping[str, Any], accelerator: str) -> dict[str, Any]:
    if (disk := wanted["disk"]) is not None and not Path(disk).is_dir():
        raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")

    import torch

    from autotune.probe import communication, kernels
    from autotune.probe.clock import Clock

    place = int(os.environ["LOCAL_RANK"])
    if accelerator == "cuda":
        torch.cuda.init()  # says in words what is wrong with the driver or the build
        torch.cuda.set_device(place)
        device = torch.device("cuda", place)
        wait, backend, name = torch.cuda.synchronize, "nccl", torch.cuda.get_device_name(device)
    else:
        device, wait, backend, name = torch.device("cpu"), _nothing, "gloo", ""
        torch.set_num_threads(1)
        (place,) = os.sched_getaffinity(0)  # the core that it is bound to
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
        if disk is not None:
            points += kernels.disk(clock, disk, rank)
        for ring in communication.rings(per_node) if world > 1 else ():
            points += communication.collectives(clock, ring)
    if world > 1 and wanted["only"] != "speed":
        points += communication.pairs(clock, per_node)
    torch.distributed.barrier()
    return {"host": platform.node(), "device": name, "place": place, "points": points}


def _nothing() -> None:
    """Work on the CPU is done when the call returns."""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
