"""A comparison of studies in a terminal, down to 80 columns."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from autotune.base.units import format_bytes
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.terminal.tables import plain_table, print_facts
from autotune.report.words import format_interval, format_rate


def print_comparison(console: Console, comparison: StudyComparison) -> None:
    """Print who is who, then the outcomes, the bests, their knobs and what they share."""
    for run in comparison.runs:
        console.print(Text(f"{run.key}  {run.report.folder}"), soft_wrap=True)
    console.print()
    _print(console, ["outcome", *comparison.outcomes], indexed_rows(comparison.outcomes))
    _print(console, BEST_COLUMNS, best_rows(comparison))
    if comparison.kinds:
        print_facts(console, describe_kinds(comparison.kinds))
        console.print()
    if len(comparison.knobs):
        _print(console, ["knob of the best", *comparison.knobs], indexed_rows(comparison.knobs))
    for verdict in comparison.verdicts:
        console.print(Text(verdict))
    if comparison.candidates.empty:
        console.print("no candidate was measured for the same job in two of them")
        return
    _print(console, candidate_columns(comparison), candidate_rows(comparison))
    console.print(Text(about_ratios(comparison), style="dim"))


def about_ratios(comparison: StudyComparison) -> str:
    """What the ratios of the shared candidates are, and what their intervals do not cover."""
    return (
        f"Ratios are the other's samples/s over those of {comparison.runs[0].key}. Intervals "
        "(95%) of `runs` come from the spread between runs of the two studies; `assumed`: that "
        "was measured elsewhere, one of them ran nothing twice. The studies ran at different "
        "times: drift of the machine between them is in neither. A star: the configuration files "
        "differ."
    )


BEST_COLUMNS = ("best", "trial", "samples/s", "95% interval", "memory", "speedup", "interval")


def best_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per study."""
    return [_best(row) for row in comparison.bests.to_dict("records")]


def indexed_rows(frame: pd.DataFrame) -> list[list[str]]:
    """A row per outcome or knob: its name, and a cell per study."""
    return [[str(name), *map(str, frame.loc[name])] for name in frame.index]


def candidate_columns(comparison: StudyComparison) -> list[str]:
    """The headers of `candidate_rows`; with two studies, their keys say it all."""
    two = len(comparison.runs) == 2
    first, other = comparison.runs[0].key, comparison.runs[1].key if two else "other"
    return [first, other, f"{other}/{first}", "95% interval", "from", "settings"]


def candidate_rows(comparison: StudyComparison) -> list[list[str]]:
    """A row per candidate and other study; a star where the configuration files differ."""
    two = len(comparison.runs) == 2
    return [_candidate(row, two) for row in comparison.candidates.to_dict("records")]


def _best(row: dict[Any, Any]) -> list[str]:
    figures = {key: None if pd.isna(value) else value for key, value in row.items()}
    trial, speedup = figures["trial"], figures["speedup"]
    ends = "{speedup_low:.2f} to {speedup_high:.2f}"
    return [
        str(row["run"]),
        "-" if trial is None else f"{trial:.0f}",
        format_rate(figures["samples_per_s"]),
        format_interval(figures["samples_per_s_low"], figures["samples_per_s_high"]),
        format_bytes(figures["peak_memory_bytes"]),
        *(("-", "-") if speedup is None else (f"{speedup:.2f}x", ends.format(**figures))),
    ]


def _candidate(row: dict[Any, Any], two: bool) -> list[str]:
    rate = format_rate(row["other_samples_per_s"])
    return [
        format_rate(row["first_samples_per_s"]),
        rate if two else f"{row['other']} {rate}",
        f"{row['ratio']:.2f}" + ("" if row["same_config"] else "*"),
        f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}",
        str(row["interval_from"]),
        str(row["settings"]),
    ]


def _print(console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    # Settings alone may wrap: a figure that is cut short is a wrong one.
    table = plain_table(*(f"*{name}" if name == "settings" else name for name in columns))
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
