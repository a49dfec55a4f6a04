"""The charts of trials and figures, for plotly; the page gives them the colours of its theme.

Each comes with a sentence that says what it shows, for those who do not see it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from autotune.contract import Outcome, Phase, Role, TrialResult
from autotune.record.answer import Standing
from autotune.record.bottleneck import shares_of_calls
from autotune.record.spread import is_figure
from autotune.report.results.details import (
    LEAST_SHARE,
    describe_importance,
    describe_phases,
    with_phases,
)
from autotune.report.results.ratios import telling_runs
from autotune.report.results.study import StudyReport
from autotune.report.words import format_rate

BLUE, ORANGE, GREEN, RED, GREY = "#4a8fe7", "#e58a2e", "#2aa876", "#d9534f", "#8b93a1"
"""Each is told from both a white and a nearly black ground, and from the others by most eyes."""
INK = "#010203"
"""Stands for the colour of the page's text in either theme: the page's script puts it in."""
_PHASE_COLOURS = (
    GREY,
    "#b07aa1",
    "#76b7b2",
    "#9c755f",
    ORANGE,
    "#edc948",
    GREEN,
    BLUE,
    "#c4c9d1",
)
"""In the order of `Phase`."""
_PART_COLOURS = {
    "forward": BLUE,
    "backward": "#76b7b2",
    "optimizer": GREEN,
    "communication": ORANGE,
    "data": GREY,
}

Standings = Mapping[str, Standing | None]
"""`best` and `baseline`, by these names."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart of a page."""

    name: str
    """Identifies it in the page."""
    alt: str
    """What it shows, in a sentence or two."""
    figure: dict[str, Any]
    """`data` and `layout` for plotly."""
    min_width: int = 0
    """Pixels below which it scrolls sideways in its own frame."""


def best_and_baseline(report: StudyReport, standings: Standings) -> Chart | None:
    """Figures with their intervals, and the runs that they rest on."""
    named = {name: standing for name, standing in standings.items() if standing}
    if not named:
        return None
    labels = [f"{name}<br>trial {s.trial}" for name, s in named.items()]
    rates = [s.samples_per_s for s in named.values()]
    figure = go.Figure()
    figure.add_bar(
        y=labels,
        x=rates,
        orientation="h",
        marker_color=[_colour_of(name) for name in named],
        opacity=0.85,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [s.samples_per_s_high - s.samples_per_s for s in named.values()],
            "arrayminus": [s.samples_per_s - s.samples_per_s_low for s in named.values()],
            "color": INK,
        },
        hovertemplate="%{x:.4g} samples/s<extra></extra>",
        showlegend=False,
    )
    runs = [
        (label, run.samples_per_s)
        for label, s in zip(labels, named.values(), strict=True)
        for run in _runs_of(report, s)
    ]
    figure.add_scatter(
        y=[label for label, _ in runs],
        x=[rate for _, rate in runs],
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 16, "color": INK, "line": {"width": 1}},
        name="one run",
        hovertemplate="one run: %{x:.4g} samples/s<extra></extra>",
    )
    figure.update_layout(
        height=110 + 62 * len(named),
        xaxis={"title": "samples/s", "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
    )
    said = "; ".join(
        f"{name}: {format_rate(s.samples_per_s)} samples/s, 95% interval "
        f"{format_rate(s.samples_per_s_low)} to {format_rate(s.samples_per_s_high)}"
        for name, s in named.items()
    )
    return make_chart("standings", said, figure)


def history(report: StudyReport) -> Chart | None:
    """Every trial in the order in which it was started, and the best so far."""
    trials = [t for t in report.history.trials if t.result is not None]
    if not trials:
        return None
    figure = go.Figure()
    for role, colour in ((Role.BASELINE, ORANGE), (Role.SEARCH, BLUE), (Role.CONFIRM, GREEN)):
        spread = report.history.spread
        rates = [
            (t.spec.identity.number, spread.interval([t.result]))
            for t in trials
            if t.spec.identity.role is role and t.result is not None and is_figure(t.result)
        ]
        figure.add_scatter(
            x=[number for number, _ in rates],
            y=[interval.rate for _, interval in rates],
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [interval.high - interval.rate for _, interval in rates],
                "arrayminus": [interval.rate - interval.low for _, interval in rates],
                "thickness": 1,
                "width": 2,
            },
            mode="markers",
            marker={"color": colour, "size": 8},
            name=role.value,
            hovertemplate="trial %{x}: %{y:.4g} samples/s<extra></extra>",
        )
    failed = [
        (t.spec.identity.number, t.result)
        for t in trials
        if t.result and not t.result.samples_per_s
    ]
    figure.add_scatter(
        x=[number for number, _ in failed],
        y=[0] * len(failed),
        mode="markers",
        marker={"symbol": "x", "color": RED, "size": 8},
        name="no figure",
        cliponaxis=False,
        text=[result.outcome.value for _, result in failed],
        hovertemplate="trial %{x}: %{text}<extra></extra>",
    )
    steps = _best_so_far(report)
    figure.add_scatter(
        x=[number for number, _ in steps],
        y=[rate for _, rate in steps],
        mode="lines",
        line={"shape": "hv", "color": GREY, "dash": "dot"},
        name="best so far",
        hovertemplate="best so far: %{y:.4g} samples/s<extra></extra>",
    )
    figure.update_layout(
        height=360,
        xaxis={"title": "trial"},
        yaxis={"title": "samples/s", "rangemode": "tozero"},
    )
    alt = f"{len(trials)} trials by number"
    if failed:
        alt += f"; {len(failed)} have no figure"
    return make_chart("history", alt, figure)


def importance(shares: Mapping[str, float]) -> Chart:
    """Bars, the largest on top; knobs that round to nothing are named in the caption."""
    shown = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    figure = go.Figure(
        go.Bar(
            x=list(shown.values()),
            y=list(shown),
            orientation="h",
            marker_color=BLUE,
            hovertemplate="%{y}: %{x:.0%}<extra></extra>",
        )
    )
    figure.update_layout(
        height=90 + 30 * len(shown),
        xaxis={"tickformat": ".0%", "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
    )
    return make_chart("importance", describe_importance(shares), figure)


def outcomes(report: StudyReport) -> Chart | None:
    """How the trials ended."""
    counts = {outcome: n for outcome in Outcome if (n := report.counts.get(outcome))}
    if not counts:
        return None
    figure = go.Figure(
        go.Bar(
            x=list(counts.values()),
            y=[outcome.value for outcome in counts],
            orientation="h",
            marker_color=[
                GREEN if o.is_measured else ORANGE if o.is_config_fault else RED for o in counts
            ],
            text=list(counts.values()),
            hovertemplate="%{y}: %{x} trials<extra></extra>",
        )
    )
    figure.update_layout(
        height=90 + 34 * len(counts),
        xaxis={"title": "trials", "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
    )
    alt = ", ".join(f"{outcome.value} {n}" for outcome, n in counts.items())
    return make_chart("outcomes", alt, figure)


def phases(report: StudyReport) -> Chart | None:
    """Where the seconds of each trial went."""
    ended = with_phases(report)
    if not ended:
        return None
    figure = go.Figure()
    for phase, colour in zip(Phase, _PHASE_COLOURS, strict=True):
        figure.add_bar(
            x=[result.number for result in ended],
            y=[result.phases_s.get(phase.value, 0.0) for result in ended],
            name=phase.value,
            marker_color=colour,
            hovertemplate=f"trial %{{x}}: {phase.value} %{{y:.1f}} s<extra></extra>",
        )
    figure.update_layout(
        height=380,
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis={"title": "trial"},
        yaxis={"title": "seconds"},
    )
    return make_chart("phases", describe_phases(ended), figure)


def steps(report: StudyReport) -> Chart | None:
    """Where the time of a step went, trial by trial, as shares."""
    seen = [
        (trial.spec.identity.number, shares_of_calls(trial.result.diagnosis.split))
        for trial in report.history.trials
        if trial.result is not None
        and trial.result.diagnosis is not None
        and trial.result.diagnosis.split is not None
    ]
    if not seen:
        return None
    figure = go.Figure()
    for part, colour in _PART_COLOURS.items():
        figure.add_bar(
            x=[number for number, _ in seen],
            y=[shares[part] for _, shares in seen],
            name=part,
            marker_color=colour,
            hovertemplate=f"trial %{{x}}: {part} %{{y:.0%}}<extra></extra>",
        )
    figure.update_layout(
        height=340,
        barmode="stack",
        legend={"traceorder": "normal"},
        xaxis={"title": "trial", "type": "category"},
        yaxis={"title": "share of a step", "tickformat": ".0%", "range": [0, 1]},
    )
    alt = f"Where the time of an optimizer step went, as shares, in {len(seen)} trials."
    return make_chart("steps", alt, figure)


def make_chart(name: str, alt: str, figure: go.Figure, *, min_width: int = 0) -> Chart:
    """A chart without plotly's default theme: the page brings its own."""
    plain = figure.update_layout(template="none").to_plotly_json()
    layout = {key: value for key, value in plain["layout"].items() if key != "template"}
    data = {"data": plain["data"], "layout": layout}
    return Chart(name=name, alt=alt, figure=data, min_width=min_width)


def _runs_of(report: StudyReport, standing: Standing) -> Sequence[TrialResult]:
    """The runs that a figure is made of; none where it is one trial's own."""
    row = report.row_of(standing.trial)
    tried = None if row is None else report.history.find(row.candidate)
    return telling_runs(tried.trials) if tried is not None and standing.n_runs > 1 else []


def _best_so_far(report: StudyReport) -> list[tuple[int, float]]:
    """The rate of the best feasible trial up to each; the final comparison is not a part of it."""
    steps: list[tuple[int, float]] = []
    best = 0.0
    for trial in report.history.explored.trials:
        result = trial.result
        if result is None:
            continue
        fits = result.outcome.is_measured and report.objective.fits(result.peak_memory_bytes)
        best = max(best, (result.samples_per_s or 0.0) if fits else 0.0)
        if best:
            steps.append((trial.spec.identity.number, best))
    return steps


def _colour_of(name: str) -> str:
    return {"best": GREEN, "baseline": ORANGE}.get(name, BLUE)
