"""Where the ranks of a job lie, and over how many such places its parallel groups reach.

Engines number ranks alike: neighbours in a tensor or sequence parallel group have neighbouring
ranks, then come the replicas of data parallelism, and the stages of a pipeline are furthest apart.
Source: DeepSpeed, runtime/pipe/topology.py (axes pipe, data, model); Megatron-LM,
core/parallel_state.py (order tp-cp-ep-dp-pp). Megatron's knob `order` puts stages before replicas.
Experts have groups of their own over the ranks of a stage: neighbours share a matrix (etp), then
come those with other experts (ep), then replicas. Source: core/parallel_state.py,
expert_decoder_rank_generator; DeepSpeed, utils/groups.py.
"""

from collections.abc import Sequence
from itertools import groupby

from autotune.contract import KnobValue
from autotune.space.candidate import Candidate

_SHOWN = 8
"""Places that are named, at most."""


def describe_places(places: Sequence[str]) -> str:
    """`ranks 0 to 7 on worker-1; 8 to 15 on worker-2`; `places` has that of each rank."""
    parts = []
    for place, ranks in groupby(range(len(places)), key=places.__getitem__):
        parts.append(f"{_span(list(ranks))} on {place}")
    if len(parts) > _SHOWN:
        parts[_SHOWN - 1 : -1] = ["..."]
    return f"ranks {'; '.join(parts)}"


def machine_places(world: int, per_node: int) -> tuple[str, ...]:
    """Places of ranks on machines that have no names yet: `machine-1`, `machine-2`, ..."""
    return tuple(f"machine-{1 + rank // per_node}" for rank in range(world))


def describe_groups(candidate: Candidate, places: Sequence[str]) -> list[str]:
    """Each kind of parallel group of a layout: its ranks, and over how many places they reach.

    Degrees that do not divide the world make no groups.
    """
    inner = candidate.tp * candidate.sp * candidate.cp
    if inner * candidate.pp * candidate.dp != len(places):
        return []
    stages_first = are_stages_first(candidate.get("order"))
    apart = candidate.pp if stages_first else 1
    etp, ep = int(candidate.get("etp") or candidate.tp), int(candidate.get("ep") or 1)
    replicas, rest = divmod(len(places), etp * ep * candidate.pp)
    spreads = ep > 1 and not rest
    kinds = (
        ("tensor parallel", candidate.tp, 1),
        ("context parallel", candidate.cp, candidate.tp),
        ("sequence parallel", candidate.sp, candidate.tp * candidate.cp),
        ("data parallel", candidate.dp, inner * apart),
        ("pipeline", candidate.pp, inner * (1 if stages_first else candidate.dp)),
        ("expert parallel", ep if spreads else 1, etp),
        ("expert tensor parallel", etp if spreads else 1, 1),
        ("expert data parallel", replicas if spreads else 1, etp * ep * apart),
    )
    return [
        f"{name} groups of {size} ranks, such as {_span([stride * k for k in range(size)])}: "
        f"{describe_reach(size, stride, places)}"
        for name, size, stride in kinds
        if size > 1
    ]


def describe_ranks(candidate: Candidate, places: Sequence[str]) -> list[str]:
    """Where the ranks of a layout lie and how far its groups reach; empty in one place."""
    if len(set(places)) < 2:
        return []
    return [describe_places(places), *describe_groups(candidate, places)]


def are_stages_first(order: KnobValue | None) -> bool:
    """Whether an order of axes, the nearest first, has the stages of a pipeline before replicas.

    None is that of an engine that knows one alone.
    """
    axes = "" if order is None else str(order)
    return "pp-dp" in axes


def describe_reach(size: int, stride: int, places: Sequence[str]) -> str:
    """`each in one place`, or over how many the widest of the groups of a kind reaches.

    Args:
        size: Ranks of a group.
        stride: From one rank of a group to the next.
        places: Place of each rank.
    """
    block = size * stride
    firsts = (r for start in range(0, len(places), block) for r in range(start, start + stride))
    reach = max(len({places[r + k * stride] for k in range(size)}) for r in firsts)
    return "each in one place" if reach == 1 else f"over {reach} places"


def _span(ranks: Sequence[int]) -> str:
    """`0 to 7`, `0, 4`, or `0, 4, 8, ...`."""
    if len(ranks) > 1 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"{ranks[0]} to {ranks[-1]}"
    shown = ", ".join(map(str, ranks[:4]))
    return shown if len(ranks) <= 4 else f"{shown}, ..."
