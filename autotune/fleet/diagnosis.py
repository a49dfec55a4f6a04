"""Diagnoses of the ranks of a trial, joined: whose time is shown, and what a collective took."""

import itertools
import statistics
from collections.abc import Mapping, Sequence

from autotune.contract import (
    Collective,
    CollectiveCalls,
    Diagnosis,
    GpuUse,
    Phase,
    RankDiagnosis,
    RankReport,
    Use,
)
from autotune.fleet.node.telemetry import combined

MAX_COLLECTIVES = 40
"""Collectives that a trial's result keeps: those that take longest."""


def diagnosis_of(reports: Sequence[RankReport]) -> Diagnosis | None:
    """The diagnosis of a trial; None where no rank had a diagnostic pass."""
    seen = {r.rank: r.diagnosis for r in reports if r.diagnosis is not None}
    for cut_off in (r for r in reports if r.diagnosis is None and r.phase is Phase.DIAGNOSE):
        seen[cut_off.rank] = RankDiagnosis(problem=f"rank {cut_off.rank} did not finish it")
    if not seen:
        return None
    problems = sorted({report.problem for report in seen.values() if report.problem})
    collectives = _collectives([report.calls for report in seen.values()])
    splits = {rank: report.split for rank, report in seen.items() if report.split is not None}
    if not splits:
        return Diagnosis(collectives=collectives, problem="; ".join(problems))
    # The others wait for the rank that waits least: its time is the trial's.
    busiest = min(splits, key=lambda rank: (splits[rank].communication_s, rank))
    split = splits[busiest]
    others = [s.communication_s for rank, s in splits.items() if rank != busiest]
    return Diagnosis(
        steps=seen[busiest].steps,
        rank=busiest,
        split=split,
        waiting_s=statistics.mean(others) - split.communication_s if others else 0.0,
        collectives=collectives,
        problem="; ".join(problems),
    )


def use_of(reports: Sequence[RankReport], gpus: Sequence[GpuUse]) -> Use | None:
    """Resources that the measured steps took; None where a rank did not say."""
    measured_s = reports[0].measured_s if reports else None
    cpu_s = [r.cpu_s for r in reports if r.cpu_s is not None]
    if not measured_s or len(cpu_s) < len(reports):
        return None
    samples = [gpu.samples for gpu in gpus]
    return Use(
        cpu_s=sum(cpu_s),
        cpu_utilization=statistics.mean(cpu_s) / measured_s,
        gpu=combined(gpus, min(samples), [gpu.energy_j for gpu in gpus]) if gpus else None,
    )


def _collectives(ranks: Sequence[Sequence[CollectiveCalls]]) -> list[Collective]:
    groups: dict[tuple[str, int, int], list[list[float]]] = {}
    for call in itertools.chain.from_iterable(ranks):
        key = (call.name, call.message_bytes, call.group_size)
        groups.setdefault(key, []).append(call.seconds)
    found = [_collective(*key, times) for key, times in groups.items()]
    found.sort(key=lambda c: (-c.transfer_s - c.waiting_s, c.name, c.message_bytes))
    return found[:MAX_COLLECTIVES]


def _collective(
    name: str, message_bytes: int, group_size: int, times: Sequence[Sequence[float]]
) -> Collective:
    """One collective from the times of its calls, rank by rank.

    The last rank to arrive waits for nobody, so the shortest time of a call is that of the
    transfer. A receive has no other rank to compare it with: all of it counts as waiting. Ranks
    that made different numbers of calls, such as the stages of a pipeline, are not comparable call
    by call: the ranks that made the most are looked at.
    """
    n_calls = max(len(of_rank) for of_rank in times)
    alike = [of_rank for of_rank in times if len(of_rank) == n_calls]
    transfers = [min(call) for call in zip(*alike, strict=True)]
    transfer_s = 0.0 if name in _RECEIVES else sum(transfers)
    waiting_s = statistics.mean(sum(of_rank) for of_rank in alike) - transfer_s
    algbw, busbw = _bandwidths(name, message_bytes, group_size, transfer_s / n_calls)
    return Collective(
        name=name,
        message_bytes=message_bytes,
        group_size=group_size,
        calls=n_calls,
        transfer_s=transfer_s,
        waiting_s=waiting_s,
        algbw_bytes_per_s=algbw,
        busbw_bytes_per_s=busbw,
    )


_RECEIVES = ("recv", "irecv")
_GATHERS = ("all_gather", "all_gather_into_tensor")
_ONCE = (*_GATHERS, "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single")
_BUS: Mapping[str, int] = {
    **dict.fromkeys(("all_reduce", "inference_all_reduce", "all_reduce_coalesced"), 2),
    **dict.fromkeys(_ONCE, 1),
}
"""How often a link carries the (n - 1)/n of the result that is not its rank's own; the result of
other collectives passes a link once, whole."""


def _bandwidths(
    name: str, message_bytes: int, group_size: int, call_s: float
) -> tuple[float | None, float | None]:
    """Algorithm and bus bandwidth as nccl-tests defines them (doc/PERFORMANCE.md).

    The message is what a rank hands in. The result of a gather is as large as all of those.
    """
    total_bytes = message_bytes * (group_size if name in _GATHERS else 1)
    if not total_bytes or call_s <= 0:
        return None, None
    algbw = total_bytes / call_s
    share = _BUS[name] * (group_size - 1) / group_size if name in _BUS else 1
    return algbw, algbw * share
