"""The charts of candidates: what is fast and small, and which settings lead there."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from autotune.base.units import format_bytes
from autotune.contract import KnobValue
from autotune.report.page.charts import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Chart,
    Standings,
    make_chart,
)
from autotune.report.results.details import describe_front, pareto_front
from autotune.report.results.rows import Row
from autotune.report.results.study import StudyReport
from autotune.space.candidate import format_value
from autotune.space.knob import Knob
from autotune.space.knobs import describe_candidate, settings_of

_MIB, _GIB = 2**20, 2**30
_SCALE = [[0.0, GREY], [0.5, BLUE], [1.0, ORANGE]]
"""From slow to fast; plotly's own scales end in colours that one of the two themes swallows."""
_WIDTH_PER_AXIS = 130
"""Pixels that an axis of the parallel coordinates needs for its labels."""


def speed_and_memory(report: StudyReport, standings: Standings) -> Chart | None:
    """Samples/s against peak memory, with the candidates that nothing beats in both."""
    rows = [row for row in report.rows if row.figure and row.figure.peak_memory_bytes is not None]
    if not rows:
        return None
    kinds = {row.trial: _kind(row, standings) for row in rows}
    figure = go.Figure()
    front = pareto_front(rows)
    largest_bytes = max(row.peak_bytes for row in rows)
    unit, unit_bytes = ("GiB", _GIB) if largest_bytes >= 2 * _GIB else ("MiB", _MIB)
    figure.add_scatter(
        x=[row.peak_bytes / unit_bytes for row in front],
        y=[row.rate for row in front],
        mode="lines",
        line={"shape": "vh", "color": GREY, "dash": "dot"},
        name="Pareto front",
        hoverinfo="skip",
    )
    for name, colour, symbol in (
        ("candidate", BLUE, "circle"),
        ("over limit", RED, "x"),
        ("baseline", ORANGE, "diamond"),
        ("best", GREEN, "star"),
    ):
        own = [row for row in rows if kinds[row.trial] == name]
        figure.add_scatter(
            x=[row.peak_bytes / unit_bytes for row in own],
            y=[row.rate for row in own],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 14 if name == "best" else 9},
            name=name,
            text=[_said_of(row, report) for row in own],
            hovertemplate=f"%{{text}}<br>%{{y:.4g}} samples/s, %{{x:.4g}} {unit}<extra></extra>",
        )
    limit_bytes = report.objective.allowed_bytes
    # Far beyond the candidates it would only squeeze them together.
    if is_limit_drawn := limit_bytes <= 2 * largest_bytes:
        figure.add_vline(x=limit_bytes / unit_bytes, line={"color": RED, "dash": "dash"})
    figure.update_layout(
        height=400,
        xaxis={"title": f"peak memory per device ({unit})"},
        yaxis={"title": "samples/s"},
    )
    alt = f"{len(rows)} candidates"
    if front:
        alt += f"; {describe_front(front)}"
    if is_limit_drawn:
        alt += f". Dashed: the limit of {format_bytes(limit_bytes)}"
    return make_chart("memory", alt, figure)


def parallel_coordinates(report: StudyReport) -> Chart | None:
    """The candidates with a figure, each a line through the knobs that vary."""
    rows = [row for row in report.rows if row.figure]
    settings = [settings_of(row.candidate, report.context) for row in rows]
    varying = [
        name for name in report.context.knobs if len({chosen.get(name) for chosen in settings}) > 1
    ]
    axes = {name: _values_of(rows, report.context.knobs[name]) for name in varying}
    if not axes:
        return None
    rates = [row.rate for row in rows]
    dimensions: list[dict[str, Any]] = [
        {
            "label": name.rpartition(".")[2],
            "values": [values.index(row.candidate.get(name)) for row in rows],
            "tickvals": list(range(len(values))),
            "ticktext": [format_value(value) for value in values],
            "range": [0, len(values) - 1],
        }
        for name, values in axes.items()
    ]
    dimensions.append({"label": "samples/s", "values": rates})
    figure = go.Figure(
        go.Parcoords(
            dimensions=dimensions,
            line={"color": rates, "colorscale": _SCALE, "showscale": False},
        )
    )
    figure.update_layout(height=420, margin={"l": 60, "r": 60, "t": 50, "b": 20})
    alt = f"{len(rows)} candidates over {', '.join(axes)}; the more orange a line, the faster"
    return make_chart("knobs", alt, figure, min_width=_WIDTH_PER_AXIS * (len(axes) + 1))


def _values_of(rows: Sequence[Row], knob: Knob) -> list[KnobValue | None]:
    """The values of a knob over the rows: in order, those of a choice as it lists them."""
    seen = list(dict.fromkeys(row.candidate.get(knob.name) for row in rows))
    choices = knob.choices

    def place(value: KnobValue | None) -> tuple[int, float, str]:
        if value is None:
            return (0, 0.0, "")
        if isinstance(value, str):
            listed = choices.index(value) if value in choices else len(choices)
            return (1, float(listed), value)
        return (1, float(value), "")

    return sorted(seen, key=place)


def _kind(row: Row, standings: Standings) -> str:
    for name in ("best", "baseline"):
        standing = standings[name]
        if standing is not None and standing.trial == row.trial:
            return name
    return "candidate" if row.fits else "over limit"


def _said_of(row: Row, report: StudyReport) -> str:
    return f"trial {row.trial}: {describe_candidate(row.candidate, report.context)}"
