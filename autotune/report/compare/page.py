"""A comparison of studies as one HTML file."""

from collections.abc import Collection, Iterable
from typing import Any

from autotune.base.templates import Templates
from autotune.base.units import format_gain_interval
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
from autotune.report.page import charts
from autotune.report.page.page import page_values
from autotune.report.verdict import verdict_of

_OWN_GAIN = "over its own baseline"
_TITLES = {"best of": "study", "speedup": _OWN_GAIN}
"""Headers of a terminal that a page has room to say in full."""


def render_comparison(comparison: StudyComparison, templates: Templates) -> str:
    """The page.

    Raises:
        RenderError: The template does not render.
    """
    banners = dict.fromkeys(verdict_of(run.report).about.get("banner") for run in comparison.runs)
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
        "chart_of_bests": charts.comparison(
            [
                (run.name, "candidate", run.report.answer.best)
                for run in comparison.runs
                if run.report.answer and run.report.answer.best
            ]
        ),
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


def capitalized(text: str) -> str:
    """A text as a sentence begins; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]


def _table(
    columns: Iterable[Any], rows: list[list[str]], figures: Collection[str] = ()
) -> dict[str, Any]:
    """A table whose columns of figures stand to the right; `figures` are headers of such."""
    names = [str(column) for column in columns]
    right = {*FIGURES, _OWN_GAIN, *figures}
    numbers = [i for i, name in enumerate(names) if name in right]
    return {"columns": names, "rows": rows, "numbers": numbers}
