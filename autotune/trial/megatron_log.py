"""What Megatron-LM prints while it trains: iterations and memory, as values.

Source: NVIDIA/Megatron-LM, megatron/training/training.py (training_log) and megatron/training/
utils.py (report_memory; from 0.18 on utils/common_utils.py), which print the same from Megatron
Core 0.14 to 0.20.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MEBIBYTE = 1024 * 1024
_ITERATION = re.compile(r"\biteration +(\d+)/ *\d+ \|(.*)")
_MEMORY = re.compile(r"\[Rank (\d+)\] \(after (\d+) iterations\) memory \(MB\) \|(.*)")
_FIELD = re.compile(r" *([^|:]+?): *([-+.\w]+) *(?:\||$)")
_LOSS = "lm loss"
_TIME = "elapsed time per iteration (ms)"


@dataclass(frozen=True, kw_only=True)
class LoggedIteration:
    """A line of the last rank: the iterations since the line before it, on average."""

    iteration: int
    """Number of the last one, from 1."""
    time_s: float
    """Seconds of one iteration."""
    global_batch: int
    loss: float | None = None
    """Mean loss; None where every iteration was skipped."""
    flops_per_s: float | None = None
    """FLOP/s of one accelerator, as Megatron counts them; None without `--log-throughput`."""
    grad_norm: float | None = None
    n_skipped: int = 0
    """Iterations among them whose update was not applied, such as for an overflow in fp16."""
    n_nan: int = 0
    """Iterations among them whose loss was no number."""


@dataclass(frozen=True, kw_only=True)
class LoggedMemory:
    """A line of one rank of the first replica, after the first iteration that is logged."""

    rank: int
    iteration: int
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, kw_only=True)
class MegatronLog:
    """All that a run printed of its steps."""

    iterations: list[LoggedIteration] = field(default_factory=list)
    memory: list[LoggedMemory] = field(default_factory=list)

    @property
    def peak_reserved_bytes(self) -> int | None:
        """The most that any rank reserved; None where no line says it."""
        return max((entry.peak_reserved_bytes for entry in self.memory), default=None)


def read_log(lines: Iterable[str]) -> MegatronLog:
    """What the lines of a run say; one that another rank printed into is left out."""
    log = MegatronLog()
    for line in lines:
        if found := _ITERATION.search(line):
            log.iterations.extend(_iteration(int(found[1]), dict(_fields(found[2]))))
        elif found := _MEMORY.search(line):
            log.memory.extend(_memory(int(found[1]), int(found[2]), dict(_fields(found[3]))))
    return log


def _fields(text: str) -> Iterator[tuple[str, float]]:
    for name, value in _FIELD.findall(text):
        try:
            yield name, float(value)
        except ValueError:
            continue


def _iteration(number: int, figures: dict[str, float]) -> Iterator[LoggedIteration]:
    teraflops = figures.get("throughput per GPU (TFLOP/s/GPU)")
    if math.isfinite(figures.get(_TIME, math.nan)) and "global batch size" in figures:
        yield LoggedIteration(
            iteration=number,
            time_s=figures[_TIME] / 1e3,
            global_batch=int(figures["global batch size"]),
            loss=figures.get(_LOSS),
            flops_per_s=None if teraflops is None else teraflops * 1e12,
            grad_norm=figures.get("grad norm"),
            n_skipped=int(figures.get("number of skipped iterations", 0)),
            n_nan=int(figures.get("number of nan iterations", 0)),
        )


def _memory(rank: int, iteration: int, figures: dict[str, float]) -> Iterator[LoggedMemory]:
    names = ("allocated", "max allocated", "reserved", "max reserved")
    if all(math.isfinite(figures.get(name, math.nan)) for name in names):
        allocated, peak, reserved, peak_reserved = (round(figures[n] * _MEBIBYTE) for n in names)
        yield LoggedMemory(
            rank=rank,
            iteration=iteration,
            allocated_bytes=allocated,
            peak_allocated_bytes=peak,
            reserved_bytes=reserved,
            peak_reserved_bytes=peak_reserved,
        )
