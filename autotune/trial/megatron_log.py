"""What Megatron-LM prints while it trains, as values.

Source: NVIDIA/Megatron-LM, megatron/training/training.py (training_log), which prints the same
from Megatron Core 0.14 to 0.20.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

_ITERATION = re.compile(
    r"\biteration +(\d+)/ *\d+ \|.*elapsed time per iteration \(ms\): *([\d.]+) *\|(.*)"
)
_LOSS = re.compile(r" lm loss: *([-+.\w]+) *\|")


@dataclass(frozen=True, kw_only=True)
class LoggedIteration:
    """A line of the last rank: the iterations since the line before it, on average."""

    iteration: int
    """Number of the last one, from 1."""
    time_s: float
    """Seconds of one iteration."""
    loss: float | None = None
    """Mean loss; None where every iteration was skipped."""


def read_log(lines: Iterable[str]) -> list[LoggedIteration]:
    """What the lines of a run say; one that another rank printed into is left out."""
    found = []
    for line in lines:
        if match := _ITERATION.search(line):
            loss = _LOSS.search(match[3])
            with suppress(ValueError):
                found.append(
                    LoggedIteration(
                        iteration=int(match[1]),
                        time_s=float(match[2]) / 1e3,
                        loss=float(loss[1]) if loss else None,
                    )
                )
    return found
