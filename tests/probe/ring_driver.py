"""One of four ranks on two nodes, as far as `rings` and `pairs` know: `RANK STORE OUT`."""

import json
import sys
from pathlib import Path

import torch
from torch import distributed

from autotune.probe import communication
from autotune.probe.clock import Clock

PER_NODE, WORLD = 2, 4
SMALL = 2**16


def main() -> None:
    """Measure the smallest message of every ring, and all pairs."""
    rank, store, out = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, WORLD), rank=rank, world_size=WORLD
    )
    communication.SIZES = (SMALL,)
    communication.LARGEST = 2 * SMALL
    clock = Clock(torch.device("cpu"), lambda: None, is_quick=False)
    found = communication.rings(PER_NODE)
    points = [point for ring in found for point in communication.collectives(clock, ring)]
    points += communication.pairs(clock, PER_NODE)
    rings = {ring.span: list(ring.ranks) for ring in found}
    (out / f"{rank}.json").write_text(json.dumps({"rings": rings, "points": points}))
    distributed.barrier()


if __name__ == "__main__":
    main()
