"""Measurements between ranks: collectives by size, and pairs by themselves."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed

from autotune.probe.clock import Clock
from autotune.probe.points import Span

SIZES = (2**16, 2**19, 2**22, 2**25)
LARGEST = 2**26
"""Sizes beside those of a factor of eight."""
_PAIR_BYTES = 2**22
_MOST_IN_PAIRS = 8
"""Number above which only neighbours (ranks, nodes) are paired: all pairs would take too long."""
_SLOW_S = 1.0
"""Beyond it no larger message is sent: a curve has its two sizes, and bandwidth decides there."""
_SAMPLE_BYTES = 2**20
"""Smaller messages are timed several at once."""


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Ranks that measure with each other, this one among them."""

    span: Span
    ranks: tuple[int, ...]
    group: Any
    """torch's; None: all ranks."""

    def beside(self, steps: int) -> int:
        """The rank so many steps on, round the ring."""
        here = self.ranks.index(distributed.get_rank())
        return self.ranks[(here + steps) % len(self.ranks)]


def rings(per_node: int) -> list[Ring]:
    """The rings that this rank is in: of its node, through the nodes, and through all ranks.

    Those of one rank are left out, and the last one where it is one of the others.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    if per_node in (1, world):
        return [Ring(span="node" if per_node == world else "nodes", ranks=_all(), group=None)]
    nodes = [tuple(range(first, first + per_node)) for first in range(0, world, per_node)]
    across = [tuple(range(first, world, per_node)) for first in range(per_node)]
    found = []
    spans: tuple[tuple[Span, list[tuple[int, ...]]], ...] = (("node", nodes), ("nodes", across))
    for span, all_of_it in spans:
        # Every rank has to hear of every group, its own or not.
        groups = [(ranks, distributed.new_group(list(ranks))) for ranks in all_of_it]
        found += [Ring(span=span, ranks=r, group=group) for r, group in groups if rank in r]
    return [*found, Ring(span="all", ranks=_all(), group=None)]


def _all() -> tuple[int, ...]:
    return tuple(range(distributed.get_world_size()))


def collectives(clock: Clock, ring: Ring) -> Iterator[dict[str, Any]]:
    """All of them by size, on all rings of a span at once; `bytes` as the cost model counts them.

    Those are the buffer of an all-reduce, the whole of an all-gather or a reduce-scatter, what a
    rank hands out in an all-to-all, its own part included, and the message of a send.
    """
    slow: set[str] = set()
    for number, size_bytes in enumerate(SIZES if clock.is_quick else (*SIZES, LARGEST)):
        calls = max(1, _SAMPLE_BYTES // size_bytes)
        part = max(1, size_bytes // 4 // len(ring.ranks))
        about = {"span": ring.span, "bytes": 4 * part * len(ring.ranks)}
        for kind, work in _works(clock, ring, part).items():
            if kind in slow:
                continue
            timed = clock.together(work, calls=calls)
            if number > 0 and clock.once_s > _SLOW_S:
                slow.add(kind)
            yield {"kind": kind, **about, **timed}


def one_all_reduce(clock: Clock) -> Iterator[dict[str, Any]]:
    """A large all-reduce over all ranks."""
    buffer = torch.zeros((2**28 if clock.is_cuda else SIZES[-1]) // 4, device=clock.device)
    timed = clock.together(lambda: distributed.all_reduce(buffer), calls=1)
    yield {"kind": "all_reduce", "bytes": 4 * buffer.numel(), **timed}


def pairs(clock: Clock, per_node: int) -> Iterator[dict[str, Any]]:
    """A message there and one back between two ranks; half of that.

    Within the nodes one pair of each at a time; between them all ranks of two nodes, each with the
    rank of its own number there, since each may have a network card of its own.
    """
    rank, world = distributed.get_rank(), distributed.get_world_size()
    node, place = divmod(rank, per_node)
    buffer = torch.zeros(_PAIR_BYTES // 4, device=clock.device)
    within = [("node", *(node * per_node + one for one in pair)) for pair in _couples(per_node)]
    nodes = _couples(world // per_node)
    between = [("nodes", *(one * per_node + place for one in pair)) for pair in nodes]
    for span, first, second in (*within, *between):
        timed = clock.together(_ping(buffer, rank, first, second), calls=1)
        if rank in (first, second):
            about = {"span": span, "ranks": [first, second], "bytes": _PAIR_BYTES}
            yield {"kind": "pair", **about, **timed, "seconds": timed["seconds"] / 2}


def _couples(n: int) -> list[tuple[int, int]]:
    if n > _MOST_IN_PAIRS:
        return [(first, (first + 1) % n) for first in range(n)]
    return list(itertools.combinations(range(n), 2))


def _works(clock: Clock, ring: Ring, part: int) -> dict[str, Callable[[], object]]:
    """Kind -> one call of it with so many elements for each rank."""
    group = ring.group
    whole, other = (torch.zeros(part * len(ring.ranks), device=clock.device) for _ in range(2))
    shard = torch.zeros(part, device=clock.device)

    def shift() -> None:
        """To the next rank and from the last, as the stages of a pipeline do."""
        sent = distributed.P2POp(distributed.isend, whole, ring.beside(1), group)
        taken = distributed.P2POp(distributed.irecv, other, ring.beside(-1), group)
        for request in distributed.batch_isend_irecv([sent, taken]):
            request.wait()

    return {
        "all_reduce": lambda: distributed.all_reduce(whole, group=group),
        "all_gather": lambda: _gather(other, shard, group=group),
        "reduce_scatter": lambda: _scatter(shard, whole, group=group),
        "all_to_all": lambda: distributed.all_to_all_single(other, whole, group=group),
        "send": shift,
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
