"""A comparison of studies as one HTML file."""

from typing import Any

import plotly.graph_objects as go

from autotune.base.templates import Templates
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.compare.terminal import (
    ABOUT_RATIOS,
    BEST_COLUMNS,
    best_rows,
    candidate_columns,
    candidate_rows,
    indexed_rows,
)
from autotune.report.page.charts import BLUE, GREY, INK, Chart, error_bars, lay_bars, make_chart
from autotune.report.page.page import page_values
from autotune.report.words import format_rate


def render_comparison(comparison: StudyComparison, templates: Templates) -> str:
    """The page.

    Raises:
        RenderError: The template does not render.
    """
    drawn = [chart for chart in (_bests(comparison), _ratios(comparison)) if chart is not None]
    values = {
        **page_values(drawn),
        "title": "StudyComparison of " + ", ".join(run.report.study for run in comparison.runs),
        "refresh_s": None,
        "runs": [(run.key, str(run.report.folder)) for run in comparison.runs],
        "warnings": list(comparison.warnings),
        "verdicts": list(comparison.verdicts),
        "named": {"bests": None, "ratios": None} | {chart.name: chart for chart in drawn},
        "outcomes": _table(["outcome", *comparison.outcomes], indexed_rows(comparison.outcomes)),
        "bests": _table(BEST_COLUMNS, best_rows(comparison)),
        "kinds": describe_kinds(comparison.kinds),
        "knobs": _table(["knob of the best", *comparison.knobs], indexed_rows(comparison.knobs)),
        "candidates": _table(candidate_columns(comparison), candidate_rows(comparison)),
        "about_ratios": ABOUT_RATIOS,
    }
    return templates.text("report/compare.html.j2", values)


def _table(columns: Any, rows: list[list[str]]) -> dict[str, Any]:
    return {"columns": list(columns), "rows": rows}


def _bests(comparison: StudyComparison) -> Chart | None:
    frame = comparison.bests.dropna(subset=["samples_per_s"])
    if frame.empty:
        return None
    rates = frame["samples_per_s"].astype(float)
    ends = (frame[f"samples_per_s_{end}"].astype(float) for end in ("low", "high"))
    figure = go.Figure()
    lay_bars(
        figure,
        frame["run"].tolist(),
        rates.tolist(),
        height=110 + 40 * len(frame),
        xaxis={"title": "samples/s of the best"},
        marker_color=BLUE,
        error_x=error_bars(zip(rates, *ends, strict=True), color=INK),
        hovertemplate="%{y}: %{x:.4g} samples/s<extra></extra>",
    )
    pairs = zip(frame["run"], rates, strict=True)
    said = ", ".join(f"{key} {format_rate(rate)} samples/s" for key, rate in pairs)
    return make_chart("bests", said, figure)


def _ratios(comparison: StudyComparison) -> Chart | None:
    """One line per shared candidate: its ratio and its interval, against 1."""
    frame = comparison.candidates
    if frame.empty:
        return None
    figure = go.Figure()
    for key, own in frame.groupby("other"):
        ratios = own["ratio"]
        figure.add_scatter(
            x=ratios.tolist(),
            y=own.index.tolist(),
            error_x=error_bars(
                zip(ratios, own["ratio_low"], own["ratio_high"], strict=True), color=GREY
            ),
            mode="markers",
            marker={"size": 9},
            name=f"{key} over A",
            text=own["settings"].tolist(),
            hovertemplate="%{text}<br>%{x:.3f}<extra></extra>",
        )
    figure.add_vline(x=1, line={"color": GREY, "dash": "dot"})
    figure.update_layout(
        height=min(900, 110 + 26 * len(frame)),
        xaxis={"title": "samples/s over A's"},
        yaxis={"autorange": "reversed", "showticklabels": False, "title": ""},
        showlegend=frame["other"].nunique() > 1,
    )
    alt = f"{len(frame)} shared candidates: ratio of samples/s with its 95% interval"
    return make_chart("ratios", alt, figure)
