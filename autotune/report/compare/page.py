"""A comparison of studies as one HTML file."""

from collections.abc import Collection, Iterable
from typing import Any

from autotune.base.templates import Templates
from autotune.base.units import format_gain_interval, format_rate, says_nothing
from autotune.report.compare.comparison import Against, StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.compare.terminal import (
    BEST_COLUMNS,
    FIGURES,
    about_ratios,
    best_rows,
    candidate_columns,
    candidate_rows,
    knob_rows,
    outcome_columns,
    outcome_rows,
)
from autotune.report.page.lead import banner_of
from autotune.report.page.page import page_values
from autotune.report.page.scale import scale_of
from autotune.report.page.shapes import Bar, Chart, LegendEntry
from autotune.report.page.words import capitalized

_MOST_RATIOS = 60
"""Candidates whose ratios are drawn; the table has them all."""
_POINT = 1.2
"""Width of a ratio's mark, in per cent of its track."""
_OWN_GAIN = "over its own baseline"
_TITLES = {"best of": "study", "speedup": _OWN_GAIN}
"""Headers of a terminal that a page has room to say in full."""


def render_comparison(comparison: StudyComparison, templates: Templates) -> str:
    """The page.

    Raises:
        RenderError: The template does not render.
    """
    banners = dict.fromkeys(banner_of(run.report) for run in comparison.runs)
    values = {
        **page_values(),
        "title": f"{comparison.runs[0].name} against "
        + ", ".join(run.name for run in comparison.runs[1:]),
        "refresh_s": None,
        "banners": [banner for banner in banners if banner],
        "runs": [(run.name, str(run.report.folder)) for run in comparison.runs],
        "warnings": list(comparison.warnings),
        # Of several, no one is the headline.
        "lead": _lead(comparison.verdicts[0]) if len(comparison.verdicts) == 1 else None,
        "verdicts": list(map(str, comparison.verdicts)),
        "named": {"bests": _bests(comparison), "ratios": _ratios(comparison)},
        "outcomes": _table(outcome_columns(comparison), outcome_rows(comparison)),
        "bests": _table([_TITLES.get(c, c) for c in BEST_COLUMNS], best_rows(comparison)),
        "kinds": describe_kinds(comparison.kinds),
        "knobs": _table(["knob of the best", *comparison.knobs], knob_rows(comparison)),
        "own_knobs": comparison.own_knobs,
        # Two studies' columns hold their rates; of several, one names the other beside its rate.
        "candidates": _table(
            candidate_columns(comparison),
            candidate_rows(comparison),
            [run.name for run in comparison.runs] if len(comparison.runs) == 2 else [],
        ),
        "about_ratios": about_ratios(comparison),
    }
    return templates.text("report/compare.html.j2", values)


def _lead(verdict: Against) -> tuple[str, str, str]:
    """Large print, the sentence under it, and its tone."""
    ratio, low, high = verdict.ratio, verdict.low, verdict.high
    slower = verdict.first
    if verdict.faster == verdict.first:
        ratio, low, high, slower = 1 / ratio, 1 / high, 1 / low, verdict.name
    interval = format_gain_interval(low, high, before="95% interval ")
    if verdict.basis:
        interval += f", {verdict.basis}"
    if not verdict.faster:
        words = f"{verdict.name} is {ratio:.2f}x as fast as {verdict.first}, {interval}."
        if verdict.unproven:
            words += f" {capitalized(verdict.unproven)}."
        return "No proven difference", words, ""
    if verdict.undecided:
        words = f"{capitalized(interval)}. {capitalized(verdict.undecided)}."
        return f"{verdict.faster}: {ratio:.2f}x as fast as {slower}", words, ""
    return (
        f"{verdict.faster}: {ratio:.2f}x {slower}",
        f"{capitalized(interval)}. Use {verdict.advice}.",
        "good",
    )


def _table(
    columns: Iterable[Any], rows: list[list[str]], figures: Collection[str] = ()
) -> dict[str, Any]:
    """A table whose columns of figures stand to the right; `figures` are headers of such."""
    names = [str(column) for column in columns]
    right = {*FIGURES, _OWN_GAIN, *figures}
    numbers = [i for i, name in enumerate(names) if name in right]
    return {"columns": names, "rows": rows, "numbers": numbers}


def _bests(comparison: StudyComparison) -> Chart | None:
    frame = comparison.bests.dropna(subset=["samples_per_s"])
    if frame.empty:
        return None
    rows = frame.to_dict("records")
    scale = scale_of((float(row["samples_per_s_high"]) for row in rows), zero=True, margin=0.02)
    bars = [
        Bar(
            label=str(row["run"]),
            value=format_rate(float(row["samples_per_s"])),
            tone="candidate",
            width=scale.at(float(row["samples_per_s"])),
            ends=(
                scale.at(float(row["samples_per_s_low"])),
                scale.at(float(row["samples_per_s_high"])),
            ),
        )
        for row in rows
    ]
    said = ", ".join(f"{bar.label} {bar.value} samples/s" for bar in bars)
    return Chart(
        name="bests",
        alt=said,
        is_plain=True,
        kind="bars",
        bars=bars,
        x_title="samples/s of the best, with the 95% interval",
    )


def _ratios(comparison: StudyComparison) -> Chart | None:
    """One line per shared candidate: its ratio and its interval, against 1."""
    frame = comparison.candidates.head(_MOST_RATIOS)
    if frame.empty:
        return None
    rows = frame.to_dict("records")
    # An interval that says nothing is not drawn: all others would be points on its scale.
    drawn = [None if says_nothing(*_interval(row)) else _interval(row) for row in rows]
    ends = [end for each in drawn if each is not None for end in each]
    scale = scale_of([1.0, *(float(row["ratio"]) for row in rows), *ends])
    others = list(dict.fromkeys(str(row["other"]) for row in rows))
    tones = {other: f"part-{i % 5}" for i, other in enumerate(others)}
    bars = [
        Bar(
            label=str(row["settings"]),
            value=f"{row['ratio']:.2f}x ({_ends(row)})",
            tone=tones[str(row["other"])],
            start=round(max(0.0, scale.at(float(row["ratio"])) - _POINT / 2), 2),
            width=_POINT,
            ends=None if interval is None else (scale.at(interval[0]), scale.at(interval[1])),
        )
        for row, interval in zip(rows, drawn, strict=True)
    ]
    first, n_shared = comparison.runs[0].name, len(comparison.candidates)
    some = f"{len(rows)} of {n_shared}" if len(rows) < n_shared else str(n_shared)
    return Chart(
        name="ratios",
        alt=f"{some} shared candidates: samples/s over those of {first}, with the 95% interval. "
        "Where the interval holds the dashed line, no difference is proven.",
        kind="bars",
        keys=[
            LegendEntry(text=f"{other} over {first}", tone=tones[other], symbol="block")
            for other in others
        ],
        bars=bars,
        limit=scale.at(1.0),
    )


def _ends(row: dict[Any, Any]) -> str:
    return format_gain_interval(*_interval(row))


def _interval(row: dict[Any, Any]) -> tuple[float, float]:
    return float(row["ratio_low"]), float(row["ratio_high"])
