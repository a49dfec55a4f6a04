"""A comparison of studies in a terminal."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from autotune.base.units import format_bytes, format_gain_interval, format_interval, format_rate
from autotune.contract import Outcome
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.terminal.tables import plain_table, print_facts


def print_comparison(console: Console, comparison: StudyComparison) -> None:
    """Print the verdicts, then the outcomes, the bests, their knobs and what they share."""
    for verdict in comparison.verdicts:
        console.print(Text(str(verdict), style="bold"))
    print_facts(console, [(run.name, str(run.report.folder)) for run in comparison.runs])
    console.print()
    for columns, rows in (
        (outcome_columns(comparison), outcome_rows(comparison)),
        (BEST_COLUMNS, best_rows(comparison)),
    ):
        _print(console, columns, rows)
    if comparison.kinds:
        print_facts(console, describe_kinds(comparison.kinds))
        console.print()
    if len(comparison.knobs):
        _print_knobs(console, comparison)
    if comparison.candidates.empty:
        console.print("no candidate was measured for the same job in two of them")
        return
    _print(console, candidate_columns(comparison), candidate_rows(comparison))
    console.print(Text(about_ratios(comparison), style="dim"))


def about_ratios(comparison: StudyComparison) -> str:
    """What the ratios of the shared candidates are, and what their intervals do not cover."""
    return (
        f"A ratio is the other's samples/s over those of {comparison.runs[0].name}. Its 95% "
        'interval comes from the spread between runs of both studies ("runs"). It is "assumed" '
        "where one of them ran nothing twice. The studies ran at different times: no interval "
        "covers drift of the machine between them. A star: the configuration files differ."
    )


def outcome_columns(comparison: StudyComparison) -> list[str]:
    """The headers of `outcome_rows`."""
    return ["trials of", *map(str, comparison.outcomes.index)]


def outcome_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per study: its name, and how many of its trials had each outcome."""
    frame = comparison.outcomes
    return [[str(name), *map(str, frame[name])] for name in frame.columns]


BEST_COLUMNS = ("best of", "trial", "samples/s", "95% interval", "memory", "speedup", "interval")


def best_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per study."""
    return [_best(row) for row in comparison.bests.to_dict("records")]


def knob_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per knob that differs and acts in all: its name, and a cell per study."""
    frame = comparison.shared_knobs
    return [[str(name), *map(str, frame.loc[name])] for name in frame.index]


def candidate_columns(comparison: StudyComparison) -> list[str]:
    """The headers of `candidate_rows`; with two studies, their names say it all."""
    other = comparison.runs[1].name if len(comparison.runs) == 2 else "other"
    return [comparison.runs[0].name, other, "ratio", "95% interval", "from", "settings"]


def candidate_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per candidate and other study; a star where the configuration files differ."""
    two = len(comparison.runs) == 2
    return [_candidate(row, two) for row in comparison.candidates.to_dict("records")]


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


def _candidate(row: dict[Any, Any], two: bool) -> list[str]:
    rate = format_rate(row["other_samples_per_s"])
    return [
        format_rate(row["first_samples_per_s"]),
        rate if two else f"{row['other']} {rate}",
        f"{row['ratio']:.2f}" + ("" if row["same_config"] else "*"),
        _ends(row["ratio_low"], row["ratio_high"]),
        str(row["interval_from"]),
        str(row["settings"]),
    ]


def _ends(low: float, high: float) -> str:
    """A cell of a gain's interval, short enough for 80 columns."""
    return format_gain_interval(low, high, too_wide="too wide")


FIGURES = {"trial", "samples/s", "memory", "speedup", "ratio", *map(str, Outcome)}
"""Columns of numbers."""
_MOST_IN_A_TABLE = 3
"""Studies whose knobs stand beside each other; of more, each has a line."""


def _print_knobs(console: Console, comparison: StudyComparison) -> None:
    """The knobs that the bests set differently, then those that do not act in all of them."""
    frame = comparison.shared_knobs
    if len(frame) and len(frame.columns) <= _MOST_IN_A_TABLE:
        _print(console, ["knob of the best", *frame], knob_rows(comparison))
    elif len(frame):
        console.print("knobs that the bests set differently")
        print_facts(
            console,
            [
                (str(name), " ".join(f"{knob}={value}" for knob, value in frame[name].items()))
                for name in frame.columns
            ],
        )
        console.print()
    if own := comparison.own_knobs:
        console.print("knobs that act in some of the bests alone")
        print_facts(console, own)
        console.print()


def _print(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # Settings alone may wrap: a figure that is cut short is a wrong one.
    headers = [f"*{name}" if name == "settings" else name for name in columns]
    headers = [f">{name}" if name in FIGURES else name for name in headers]
    table = plain_table(*headers)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
