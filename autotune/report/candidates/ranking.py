"""What was predicted of a job's candidates: as people read it in a terminal, and as data."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_bytes, format_seconds
from autotune.cost import Prediction
from autotune.planning.ranking import Ranking
from autotune.report.words import format_rate

_NORMAL_95 = 1.96
"""Quantile of the normal distribution: a 95% interval reaches so many deviations either way."""
_TIME_PARTS = {
    "matmul_s": "matrix products",
    "attention_s": "attention",
    "elementwise_s": "element-wise kernels",
    "logits_s": "logits and loss",
    "recompute_s": "recomputation",
    "optimizer_s": "optimizer",
    "tensor_comm_s": "tensor parallel communication",
    "expert_comm_s": "expert parallel communication",
    "context_comm_s": "sequence parallel communication",
    "pipeline_comm_s": "pipeline sends",
    "data_comm_s": "gradients and parameters between ranks",
    "offload_s": "offload",
    "bubble_s": "pipeline bubble",
    "pages_s": "pages cleared by the kernel",
    "host_s": "host: launches and the loop",
}
MEMORY_PARTS = {
    "params_bytes": "parameters",
    "grads_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
    "activations_bytes": "activations",
    "logits_bytes": "logits",
    "buckets_bytes": "communication buckets",
    "gathered_bytes": "gathered parameters",
    "workspace_bytes": "workspace",
    "fragmentation_bytes": "fragmentation",
    "context_bytes": "driver and NCCL",
}
"""Field of `Memory` -> what people call it; together they are the peak."""


def ranking_as_dict(ranking: Ranking, ranks: Sequence[int]) -> dict[str, Any]:
    """For programs: the fleet, and the candidates of some ranks (from 1).

    Every figure is predicted; the keys say so.
    """
    return {
        "is_predicted": True,
        "device_name": ranking.environment.device_name,
        "world": ranking.job.world,
        "n_candidates": len(ranking.candidates),
        "n_likely_to_fit": ranking.n_likely,
        "pred_time_sigma": ranking.time_sigma,
        "candidates": [_row(ranking, rank) for rank in ranks],
        "what_if": [
            {**dataclasses.asdict(variant), "best": ranking.candidates[variant.best].values}
            for variant in ranking.variants
        ],
    }


def print_ranking(console: Console, ranking: Ranking, *, top: int) -> None:
    """Print the best candidates, and how other fleets compare."""
    job, environment = ranking.job, ranking.environment
    low, high = (math.exp(sign * _NORMAL_95 * ranking.time_sigma) for sign in (-1, 1))
    lines = (
        f"predicted, nothing was run: {job.model.name}, {job.seq_len} tokens, global batch "
        f"{job.global_batch}, {job.precision}, on {job.world} x {environment.device_name}",
        f"{len(ranking.candidates)} legal candidates, {ranking.n_likely} fit with a "
        f"probability of {ranking.min_fit:.0%} or more; step times hold within x{low:.2f} to "
        f"x{high:.2f} (95%)",
    )
    console.print(Text("\n".join(lines)), soft_wrap=False)
    shown = [int(index) for index in ranking.order[:top]]
    console.print(_table(ranking, shown))
    console.print(fact("*", "no other that fits is faster and takes less memory as well"))
    for index in shown[:1]:
        for name, text in _dominant(ranking.prediction, index):
            console.print(fact(name, text))
    if ranking.variants:
        console.print(_variants(ranking))


def parts_of(prediction: Prediction, index: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes of a candidate by part in words, largest first, without empty ones."""
    one = prediction.take(np.array([index]))
    sides = ((one.times, _TIME_PARTS), (one.memory, MEMORY_PARTS))
    found = [
        {words: float(getattr(side, name)[0]) for name, words in names.items()}
        for side, names in sides
    ]
    seconds, sizes = (
        dict(sorted(((k, v) for k, v in part.items() if v > 0), key=lambda kv: -kv[1]))
        for part in found
    )
    return seconds, sizes


def _row(ranking: Ranking, rank: int) -> dict[str, Any]:
    index = int(ranking.order[rank - 1])
    found = ranking.prediction
    seconds, sizes = parts_of(found, index)
    return {
        "rank": rank,
        "candidate": ranking.candidates[index].values,
        "pred_step_time_s": float(found.step_time_s[index]),
        "pred_samples_per_s": _samples_per_s(ranking, index),
        "pred_tokens_per_s_per_gpu": _tokens_per_s(ranking, index),
        "pred_peak_memory_bytes": float(found.peak_memory_bytes[index]),
        "pred_fit_probability": float(found.fit_probability[index]),
        "pred_host_memory_bytes": float(found.host_memory_bytes[index]),
        "pred_gpu_hours_per_billion_tokens": _gpu_hours(ranking, index),
        "pred_price_per_billion_tokens": _price(ranking, index),
        "is_on_front": index in ranking.on_front,
        "pred_time_parts_s": seconds,
        "pred_memory_parts_bytes": sizes,
    }


def _table(ranking: Ranking, shown: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("rank", "step", "tokens/s/GPU", "peak", "fits"):
        table.add_column(name, justify="right", no_wrap=True)
    if ranking.price_per_hour is not None:
        table.add_column("per 1e9 tokens", justify="right")
    table.add_column("candidate", overflow="fold")
    found = ranking.prediction
    for rank, index in enumerate(shown, start=1):
        price = _price(ranking, index)
        probability = found.fit_probability[index]
        table.add_row(
            f"{rank}{'*' if index in ranking.on_front else ' '}",
            format_seconds(found.step_time_s[index]),
            format_rate(_tokens_per_s(ranking, index)),
            format_bytes(found.peak_memory_bytes[index]),
            Text(f"{probability:.0%}", style="" if probability >= ranking.min_fit else "yellow"),
            *([] if price is None else [f"{price:.2f}"]),
            ranking.describe(ranking.candidates[index]),
        )
    return table


def _variants(ranking: Ranking) -> Table:
    best = int(ranking.order[0])
    base_s = float(ranking.prediction.step_time_s[best])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("what if", "step", "against"):
        table.add_column(name, no_wrap=True, justify="left" if name == "what if" else "right")
    table.add_column("the best as it is", justify="right")
    table.add_column("the best there", overflow="fold")
    table.add_row(
        "as it is",
        format_seconds(base_s),
        "1.00x",
        "",
        ranking.describe(ranking.candidates[best]),
    )
    for variant in ranking.variants:
        same = "does not fit" if variant.same_fit_probability < ranking.min_fit else ""
        table.add_row(
            variant.change,
            format_seconds(variant.step_time_s),
            f"{base_s / variant.step_time_s:.2f}x",
            same or format_seconds(variant.same_step_time_s),
            ranking.describe(ranking.candidates[variant.best]),
        )
    return table


def _dominant(prediction: Prediction, index: int) -> list[tuple[str, str]]:
    seconds, sizes = parts_of(prediction, index)
    return [("time", shares(seconds)), ("memory", shares(sizes))]


def shares(parts: Mapping[str, float], most: int = 4) -> str:
    """`matrix products 52%, attention 20%`, the largest ones."""
    total = sum(parts.values()) or 1.0
    return ", ".join(f"{name} {part / total:.0%}" for name, part in list(parts.items())[:most])


def fact(name: str, text: str) -> Table:
    """A line with its name before it."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True, min_width=10)
    grid.add_column(overflow="fold")
    grid.add_row(name, text)
    return grid


def _samples_per_s(ranking: Ranking, index: int) -> float:
    return ranking.job.global_batch / float(ranking.prediction.step_time_s[index])


def _tokens_per_s(ranking: Ranking, index: int) -> float:
    """Tokens that one accelerator trains."""
    return _samples_per_s(ranking, index) * ranking.job.seq_len / ranking.job.world


def _gpu_hours(ranking: Ranking, index: int) -> float:
    """Accelerator hours per billion tokens."""
    return 1e9 / _tokens_per_s(ranking, index) / 3600


def _price(ranking: Ranking, index: int) -> float | None:
    """Price of a billion tokens."""
    if ranking.price_per_hour is None:
        return None
    return _gpu_hours(ranking, index) * ranking.price_per_hour
