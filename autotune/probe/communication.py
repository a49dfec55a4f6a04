"""What the ranks do with each other: collectives by size, and every pair by itself."""

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from autotune.probe.clock import Clock

SIZES = (2**16, 2**19, 2**22, 2**25)
LARGEST = 2**26
"""Beside those of a factor of eight."""
_PAIR_BYTES = 2**22
_MOST_IN_PAIRS = 8
"""Of more ranks only neighbours are paired: all pairs would take too long."""
_SAMPLE_BYTES = 2**20
"""Smaller messages are timed several at once."""


def collectives(clock: Clock) -> list[dict[str, Any]]:
    """All of them by size; `bytes` as the cost model counts them.

    Those are: of an all-reduce its buffer, of an all-gather and a reduce-scatter the whole, of an
    all-to-all what a rank hands out, its own part included, of a send the message.
    """
    points = []
    for size_bytes in SIZES if clock.is_quick else (*SIZES, LARGEST):
        calls = max(1, _SAMPLE_BYTES // size_bytes)
        for kind, (work, moved_bytes) in _works(clock, size_bytes).items():
            timed = clock.together(work, calls=calls)
            points.append({"kind": kind, "bytes": moved_bytes, **timed})
    return points


def pairs(clock: Clock) -> list[dict[str, Any]]:
    """A message there and one back between two ranks, while the others wait; half of that."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    couples = list(itertools.combinations(range(world), 2))
    if world > _MOST_IN_PAIRS:
        couples = [(first, (first + 1) % world) for first in range(world)]
    buffer = torch.zeros(_PAIR_BYTES // 4, device=clock.device)
    points = []
    for first, second in couples:
        work = _ping(buffer, rank, first, second)
        timed = clock.together(work, calls=1)
        if rank in (first, second):
            timed = {**timed, "seconds": timed["seconds"] / 2}
            points.append(
                {"kind": "pair", "ranks": [first, second], "bytes": _PAIR_BYTES, **timed}
            )
    return points


def _works(clock: Clock, size_bytes: int) -> dict[str, tuple[Callable[[], object], int]]:
    """Kind -> one call of it, and what it moves."""
    rank, world = distributed.get_rank(), distributed.get_world_size()
    part = max(1, size_bytes // 4 // world)
    whole, other = (torch.zeros(part * world, device=clock.device) for _ in range(2))
    shard = torch.zeros(part, device=clock.device)
    whole_bytes = 4 * part * world

    def shift() -> None:
        """To the next rank and from the last, as the stages of a pipeline do."""
        sent = distributed.P2POp(distributed.isend, whole, (rank + 1) % world)
        taken = distributed.P2POp(distributed.irecv, other, (rank - 1) % world)
        for request in distributed.batch_isend_irecv([sent, taken]):
            request.wait()

    return {
        "all_reduce": (lambda: distributed.all_reduce(whole), whole_bytes),
        "all_gather": (lambda: _gather(other, shard), whole_bytes),
        "reduce_scatter": (lambda: _scatter(shard, whole), whole_bytes),
        "all_to_all": (lambda: distributed.all_to_all_single(other, whole), whole_bytes),
        "send": (shift, whole_bytes),
    }


# Newer torch calls them so, and warns of the older names at every call.
_gather = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
_scatter = getattr(distributed, "reduce_scatter_single", None) or distributed.reduce_scatter_tensor


def _ping(buffer: Any, rank: int, first: int, second: int) -> Callable[[], None]:
    def work() -> None:
        if rank == first:
            distributed.send(buffer, second)
            distributed.recv(buffer, second)
        elif rank == second:
            distributed.recv(buffer, first)
            distributed.send(buffer, first)

    return work
