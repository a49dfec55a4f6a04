"""The tables of a comparison, the same in a terminal and on a page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.base.units import format_bytes, format_gain_interval, format_interval, format_rate
from autotune.contract import Outcome
from autotune.report.compare.comparison import StudyComparison

_FIGURES = {"trial", "samples/s", "memory", "speedup", "ratio", *map(str, Outcome)}
"""Columns of numbers."""


@dataclass(frozen=True, kw_only=True)
class ComparisonTable:
    """Cells with their headers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def numbers(self) -> list[int]:
        """Places of the columns of numbers."""
        return [i for i, column in enumerate(self.columns) if column in _FIGURES]


def outcomes(comparison: StudyComparison) -> ComparisonTable:
    """A row per study: its name, and how many of its trials had each outcome."""
    frame = comparison.outcomes
    return ComparisonTable(
        columns=["trials of", *map(str, frame.index)],
        rows=[[str(name), *map(str, frame[name])] for name in frame.columns],
    )


def bests(comparison: StudyComparison) -> ComparisonTable:
    """A row per study: its best, and the gain over its own baseline."""
    columns = ["best of", "trial", "samples/s", "95% interval", "memory", "speedup", "interval"]
    rows = comparison.bests.to_dict("records")
    return ComparisonTable(columns=columns, rows=list(map(_best, rows)))


def knobs(comparison: StudyComparison) -> ComparisonTable:
    """A row per knob that differs and acts in all: its name, and a cell per study."""
    frame = comparison.shared_knobs
    return ComparisonTable(
        columns=["knob of the best", *map(str, frame)],
        rows=[[str(name), *map(str, frame.loc[name])] for name in frame.index],
    )


def candidates(comparison: StudyComparison) -> ComparisonTable:
    """A row per candidate and other study; a star where the configuration files differ."""
    first, second, *more = comparison.stories
    other = "other" if more else second  # with two studies, their names say it all
    return ComparisonTable(
        columns=[first, other, "ratio", "95% interval", "from", "settings"],
        rows=[
            [
                format_rate(row["first_samples_per_s"]),
                f"{row['other']} " * bool(more) + format_rate(row["other_samples_per_s"]),
                f"{row['ratio']:.2f}" + ("" if row["same_config"] else "*"),
                _ends(row["ratio_low"], row["ratio_high"]),
                str(row["interval_from"]),
                str(row["settings"]),
            ]
            for row in comparison.candidates.to_dict("records")
        ],
    )


def _best(row: dict[Any, Any]) -> list[str]:
    figures: dict[Any, Any] = {k: None if pd.isna(value) else value for k, value in row.items()}
    trial, speedup = figures["trial"], figures["speedup"]
    gain = ["-", "-"]
    if speedup is not None:
        gain = [f"{speedup:.2f}x", _ends(figures["speedup_low"], figures["speedup_high"])]
    return [
        str(row["run"]),
        "-" if trial is None else f"{trial:.0f}",
        format_rate(figures["samples_per_s"]),
        format_interval(figures["samples_per_s_low"], figures["samples_per_s_high"]),
        format_bytes(figures["peak_memory_bytes"]),
        *gain,
    ]


def _ends(low: float, high: float) -> str:
    """A cell of a gain's interval, short enough for 80 columns."""
    return format_gain_interval(low, high, too_wide="too wide")
