"""What was predicted of a job's candidates: as people read it in a terminal, and as data."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.candidate import Candidate
from autotune.cost import Prediction
from autotune.hardware import Environment
from autotune.job import Job
from autotune.knobs import Context
from autotune.report.words import describe_candidate, format_rate
from autotune.units import format_bytes, format_seconds

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
    "host_s": "host: launches and the loop",
}
_MEMORY_PARTS = {
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


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The same lattice on another fleet."""

    change: str
    """`bandwidth=20Gbps`."""
    best: Candidate
    """The best there."""
    step_time_s: float
    fit_probability: float
    same_step_time_s: float
    """What the best of the fleet as it is would take there."""
    same_fit_probability: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Forecast:
    """The candidates of a lattice, ranked without a trial."""

    job: Job
    environment: Environment
    context: Context
    candidates: Sequence[Candidate]
    prediction: Prediction
    order: NDArray[np.intp]
    """Indices of candidates, best first."""
    on_front: frozenset[int]
    """Indices of those that no other beats in time and memory both."""
    min_fit: float
    price_per_hour: float | None
    """Of one accelerator."""
    time_sigma: float
    """Standard deviation of log(measured / predicted) step time."""
    variants: tuple[Variant, ...]

    @property
    def n_likely(self) -> int:
        """Candidates that fit at least as surely as `min_fit`."""
        return int((self.prediction.fit_probability >= self.min_fit).sum())


def as_dict(forecast: Forecast, ranks: Sequence[int]) -> dict[str, Any]:
    """For programs: the fleet, and the candidates of some ranks (from 1).

    Every figure is predicted; the keys say so.
    """
    return {
        "is_predicted": True,
        "device_name": forecast.environment.device_name,
        "world": forecast.job.world,
        "n_candidates": len(forecast.candidates),
        "n_likely_to_fit": forecast.n_likely,
        "pred_time_sigma": forecast.time_sigma,
        "candidates": [_row(forecast, rank) for rank in ranks],
        "what_if": [
            {**dataclasses.asdict(variant), "best": dict(variant.best.values)}
            for variant in forecast.variants
        ],
    }


def print_forecast(console: Console, forecast: Forecast, *, top: int) -> None:
    """Print the best candidates, and how other fleets compare."""
    job, environment = forecast.job, forecast.environment
    low, high = (math.exp(sign * _NORMAL_95 * forecast.time_sigma) for sign in (-1, 1))
    lines = (
        f"predicted, nothing was run: {job.model.name}, {job.seq_len} tokens, global batch "
        f"{job.global_batch}, {job.precision}, on {job.world} x {environment.device_name}",
        f"{len(forecast.candidates)} legal candidates, {forecast.n_likely} fit with a "
        f"probability of {forecast.min_fit:.0%} or more; step times hold within x{low:.2f} to "
        f"x{high:.2f} (95%)",
    )
    console.print(Text("\n".join(lines)), soft_wrap=False)
    shown = [int(index) for index in forecast.order[:top]]
    console.print(_table(forecast, shown))
    console.print(fact("*", "no other that fits is faster and takes less memory as well"))
    for index in shown[:1]:
        for name, text in _dominant(forecast.prediction, index):
            console.print(fact(name, text))
    if forecast.variants:
        console.print(_variants(forecast))


def parts_of(prediction: Prediction, index: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes of a candidate by part in words, largest first, without empty ones."""
    sides = (
        (prediction.times, _TIME_PARTS),
        (prediction.memory, _MEMORY_PARTS),
    )
    found = [
        {words: float(getattr(side, name)[index]) for name, words in names.items()}
        for side, names in sides
    ]
    seconds, sizes = (
        dict(sorted(((k, v) for k, v in part.items() if v > 0), key=lambda kv: -kv[1]))
        for part in found
    )
    return seconds, sizes


def _row(forecast: Forecast, rank: int) -> dict[str, Any]:
    index = int(forecast.order[rank - 1])
    found = forecast.prediction
    seconds, sizes = parts_of(found, index)
    return {
        "rank": rank,
        "candidate": dict(forecast.candidates[index].values),
        "pred_step_time_s": float(found.step_time_s[index]),
        "pred_samples_per_s": _samples_per_s(forecast, index),
        "pred_tokens_per_s_per_gpu": _tokens_per_s(forecast, index),
        "pred_peak_memory_bytes": float(found.peak_memory_bytes[index]),
        "pred_fit_probability": float(found.fit_probability[index]),
        "pred_host_memory_bytes": float(found.host_memory_bytes[index]),
        "pred_gpu_hours_per_billion_tokens": _gpu_hours(forecast, index),
        "pred_price_per_billion_tokens": _price(forecast, index),
        "is_on_front": index in forecast.on_front,
        "pred_time_parts_s": seconds,
        "pred_memory_parts_bytes": sizes,
    }


def _table(forecast: Forecast, shown: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("rank", "step", "tokens/s/GPU", "peak", "fits"):
        table.add_column(name, justify="right", no_wrap=True)
    if forecast.price_per_hour is not None:
        table.add_column("per 1e9 tokens", justify="right")
    table.add_column("candidate", overflow="fold")
    found = forecast.prediction
    for rank, index in enumerate(shown, start=1):
        price = _price(forecast, index)
        probability = found.fit_probability[index]
        table.add_row(
            f"{rank}{'*' if index in forecast.on_front else ' '}",
            format_seconds(found.step_time_s[index]),
            format_rate(_tokens_per_s(forecast, index)),
            format_bytes(found.peak_memory_bytes[index]),
            Text(f"{probability:.0%}", style="" if probability >= forecast.min_fit else "yellow"),
            *([] if price is None else [f"{price:.2f}"]),
            describe_candidate(forecast.candidates[index], forecast.context),
        )
    return table


def _variants(forecast: Forecast) -> Table:
    best = int(forecast.order[0])
    base_s = float(forecast.prediction.step_time_s[best])
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
        describe_candidate(forecast.candidates[best], forecast.context),
    )
    for variant in forecast.variants:
        same = "does not fit" if variant.same_fit_probability < forecast.min_fit else ""
        table.add_row(
            variant.change,
            format_seconds(variant.step_time_s),
            f"{base_s / variant.step_time_s:.2f}x",
            same or format_seconds(variant.same_step_time_s),
            describe_candidate(variant.best, forecast.context),
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


def _samples_per_s(forecast: Forecast, index: int) -> float:
    return forecast.job.global_batch / float(forecast.prediction.step_time_s[index])


def _tokens_per_s(forecast: Forecast, index: int) -> float:
    """Of one accelerator."""
    return _samples_per_s(forecast, index) * forecast.job.seq_len / forecast.job.world


def _gpu_hours(forecast: Forecast, index: int) -> float:
    """Accelerator hours per billion tokens."""
    return 1e9 / _tokens_per_s(forecast, index) / 3600


def _price(forecast: Forecast, index: int) -> float | None:
    """Of a billion tokens."""
    if forecast.price_per_hour is None:
        return None
    return _gpu_hours(forecast, index) * forecast.price_per_hour
