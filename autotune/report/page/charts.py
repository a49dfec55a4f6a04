"""The charts of a study, for plotly; the page gives them the colours of its theme.

Each comes with a sentence that says what it shows, for those who do not see it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from autotune.base.units import format_bytes
from autotune.contract import KnobValue, Outcome, Phase, Role, TrialResult
from autotune.record.answer import Standing
from autotune.record.bottleneck import shares_of_calls
from autotune.record.spread import is_figure
from autotune.report.results.details import (
    LEAST_SHARE,
    describe_front,
    describe_importance,
    describe_phases,
    pareto_front,
    with_phases,
)
from autotune.report.results.ratios import telling_runs
from autotune.report.results.rows import Row
from autotune.report.results.study import StudyReport
from autotune.report.words import format_rate
from autotune.space.candidate import format_value
from autotune.space.knob import Knob
from autotune.space.knobs import describe_candidate, settings_of

BLUE, ORANGE, GREEN, RED, GREY = "#4a8fe7", "#e58a2e", "#2aa876", "#d9534f", "#8b93a1"
"""Each is told from both a white and a nearly black ground, and from the others by most eyes."""
INK = "#010203"
"""Stands for the colour of the page's text in either theme: the page's script puts it in."""
_PURPLE, _TEAL, _BROWN, _YELLOW, _LIGHT = "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#c4c9d1"
_PHASE_COLOURS = (GREY, _PURPLE, _TEAL, _BROWN, ORANGE, _YELLOW, GREEN, BLUE, _LIGHT)
"""In the order of `Phase`."""
_PART_COLOURS = {
    "forward": BLUE,
    "backward": _TEAL,
    "optimizer": GREEN,
    "communication": ORANGE,
    "data": GREY,
}
_MIB, _GIB = 2**20, 2**30
_SCALE = [[0.0, GREY], [0.5, BLUE], [1.0, ORANGE]]
"""From slow to fast; plotly's own scales end in colours that one of the two themes swallows."""
_LINES = {
    "baseline": {"color": ORANGE, "dash": "dash"},
    "best": {"color": GREEN},
    "drifted": {"color": RED},
}
"""Lines of the chart of losses; the baseline's is laid over those that train alike."""
_BAND = "rgba(139, 147, 161, 0.35)"
_WIDTH_PER_AXIS = 130
"""Pixels that an axis of the parallel coordinates needs for its labels."""

Standings = Mapping[str, Standing | None]
"""`best` and `baseline`, by these names."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart of a page."""

    name: str
    """Identifies it in the page."""
    alt: str
    """Caption, in a sentence or two."""
    figure: dict[str, Any]
    """`data` and `layout` for plotly."""
    min_width: int = 0
    """Pixels below which it scrolls sideways in its own frame."""


def best_and_baseline(report: StudyReport, standings: Standings) -> Chart | None:
    """Figures with their intervals, and the runs that they rest on."""
    named = {name: standing for name, standing in standings.items() if standing}
    if not named:
        return None
    shown = list(named.values())
    labels = [f"{name}<br>trial {s.trial}" for name, s in named.items()]
    figure = go.Figure()
    lay_bars(
        figure,
        labels,
        [s.samples_per_s for s in shown],
        height=110 + 62 * len(named),
        xaxis={"title": "samples/s"},
        marker_color=[{"best": GREEN, "baseline": ORANGE}[name] for name in named],
        opacity=0.85,
        error_x=error_bars(
            ((s.samples_per_s, s.samples_per_s_low, s.samples_per_s_high) for s in shown),
            color=INK,
        ),
        hovertemplate="%{x:.4g} samples/s<extra></extra>",
        showlegend=False,
    )
    runs = [
        (label, run.samples_per_s)
        for label, s in zip(labels, shown, strict=True)
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
    said = "; ".join(
        f"{name}: {format_rate(s.samples_per_s)} samples/s, 95% interval "
        f"{format_rate(s.samples_per_s_low)} to {format_rate(s.samples_per_s_high)}"
        for name, s in named.items()
    )
    return make_chart("standings", said, figure)


def history(report: StudyReport) -> Chart | None:
    """Every trial in the order in which it was started, and the best so far."""
    ended = [(t.spec.identity, t.result) for t in report.history.trials if t.result is not None]
    if not ended:
        return None
    figure = go.Figure()
    for role, colour in ((Role.BASELINE, ORANGE), (Role.SEARCH, BLUE), (Role.CONFIRM, GREEN)):
        rates = {
            identity.number: report.history.spread.interval([result])
            for identity, result in ended
            if identity.role is role and is_figure(result)
        }
        figure.add_scatter(
            x=list(rates),
            y=[interval.rate for interval in rates.values()],
            error_y=error_bars(
                ((i.rate, i.low, i.high) for i in rates.values()), thickness=1, width=2
            ),
            mode="markers",
            marker={"color": colour, "size": 8},
            name=role.value,
            hovertemplate="trial %{x}: %{y:.4g} samples/s<extra></extra>",
        )
    failed = {i.number: result.outcome.value for i, result in ended if not result.samples_per_s}
    figure.add_scatter(
        x=list(failed),
        y=[0] * len(failed),
        mode="markers",
        marker={"symbol": "x", "color": RED, "size": 8},
        name="no figure",
        cliponaxis=False,
        text=list(failed.values()),
        hovertemplate="trial %{x}: %{text}<extra></extra>",
    )
    steps = _best_so_far(report)
    figure.add_scatter(
        x=list(steps),
        y=list(steps.values()),
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
    alt = f"{len(ended)} trials by number"
    if failed:
        alt += f"; {len(failed)} have no figure"
    return make_chart("history", alt, figure)


def importance(shares: Mapping[str, float]) -> Chart:
    """Bars, the largest on top; knobs that round to nothing are named in the caption."""
    shown = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    figure = go.Figure()
    lay_bars(
        figure,
        list(shown),
        list(shown.values()),
        height=90 + 30 * len(shown),
        xaxis={"tickformat": ".0%"},
        marker_color=BLUE,
        hovertemplate="%{y}: %{x:.0%}<extra></extra>",
    )
    return make_chart("importance", describe_importance(shares), figure)


def outcomes(report: StudyReport) -> Chart | None:
    """How the trials ended."""
    counts = {outcome: n for outcome in Outcome if (n := report.counts.get(outcome))}
    if not counts:
        return None
    figure = go.Figure()
    lay_bars(
        figure,
        [outcome.value for outcome in counts],
        list(counts.values()),
        height=90 + 34 * len(counts),
        xaxis={"title": "trials"},
        marker_color=[
            GREEN if o.is_measured else ORANGE if o.is_config_fault else RED for o in counts
        ],
        text=list(counts.values()),
        hovertemplate="%{y}: %{x} trials<extra></extra>",
    )
    alt = ", ".join(f"{outcome.value} {n}" for outcome, n in counts.items())
    return make_chart("outcomes", alt, figure)


def phases(report: StudyReport) -> Chart | None:
    """Seconds of each trial, by phase."""
    ended = with_phases(report)
    if not ended:
        return None
    figure = _stacked(
        [result.number for result in ended],
        [result.phases_s for result in ended],
        dict(zip((phase.value for phase in Phase), _PHASE_COLOURS, strict=True)),
        "%{y:.1f} s",
    )
    figure.update_layout(height=380, xaxis={"title": "trial"}, yaxis={"title": "seconds"})
    return make_chart("phases", describe_phases(ended), figure)


def losses(report: StudyReport) -> Chart | None:
    """Losses that the convergence guard compared, above their distances from the baseline's.

    What is allowed is mostly a hundredth of what the losses moved: beside these it would be as
    thin as their lines.
    """
    guards = {name: one for name, (_, one) in report.guarded.items() if one.losses}
    if not guards:
        return None
    base = max((one.baseline_losses for one in guards.values()), key=len)
    numbers = list(range(1, len(base) + 1))
    allowed = next((one.tolerance for one in guards.values() if one.tolerance is not None), 0.0)
    lines = {**{name: one.losses for name, one in guards.items()}, "baseline": base}
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06)
    for row, middles in ((1, base), (2, [0.0] * len(base))):
        edges = [[middle + sign * allowed for middle in middles] for sign in (-1, 1)]
        figure.add_scatter(
            x=numbers + numbers[::-1],
            y=edges[0] + edges[1][::-1],
            fill="toself",
            fillcolor=_BAND,
            line={"width": 0},
            hoverinfo="skip",
            name="allowed",
            showlegend=row == 1,
            row=row,
            col=1,
        )
        for name, its in lines.items():
            figure.add_scatter(
                x=numbers,
                y=[one - (other if row > 1 else 0) for one, other in zip(its, base, strict=False)],
                mode="lines",
                line=_LINES[name],
                name=name,
                showlegend=row == 1,
                hovertemplate=f"{name}, step %{{x}}: %{{y:.5g}}<extra></extra>",
                row=row,
                col=1,
            )
    figure.update_layout(
        height=440,
        xaxis2={"title": "optimizer step"},
        yaxis={"title": "loss"},
        yaxis2={"title": "off the baseline's"},
    )
    said = "; ".join(f"{name}: {its[0]:.5g} to {its[-1]:.5g}" for name, its in lines.items())
    alt = (
        f"Losses of the first {len(base)} steps, means over the runs: {said}. Below, how far they "
        f"are off the baseline's; grey: {allowed:.2g} to either side is allowed"
    )
    return make_chart("losses", alt, figure)


def steps(report: StudyReport) -> Chart | None:
    """Parts of a step's time, trial by trial, as shares."""
    seen = {
        trial.spec.identity.number: shares_of_calls(trial.result.diagnosis.split)
        for trial in report.history.trials
        if trial.result is not None
        and trial.result.diagnosis is not None
        and trial.result.diagnosis.split is not None
    }
    if not seen:
        return None
    figure = _stacked(list(seen), list(seen.values()), _PART_COLOURS, "%{y:.0%}")
    figure.update_layout(
        height=340,
        xaxis={"title": "trial", "type": "category"},
        yaxis={"title": "share of a step", "tickformat": ".0%", "range": [0, 1]},
    )
    alt = f"Where the time of an optimizer step went, as shares, in {len(seen)} trials."
    return make_chart("steps", alt, figure)


def speed_and_memory(report: StudyReport, standings: Standings) -> Chart | None:
    """Samples/s against peak memory, with the candidates that nothing beats in both."""
    rows = [row for row in report.rows if row.figure and row.figure.peak_memory_bytes is not None]
    if not rows:
        return None
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
        own = [row for row in rows if _kind(row, standings) == name]
        figure.add_scatter(
            x=[row.peak_bytes / unit_bytes for row in own],
            y=[row.rate for row in own],
            mode="markers",
            marker={"color": colour, "symbol": symbol, "size": 14 if name == "best" else 9},
            name=name,
            text=[
                f"trial {row.trial}: {describe_candidate(row.candidate, report.context)}"
                for row in own
            ],
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


def make_chart(name: str, alt: str, figure: go.Figure, *, min_width: int = 0) -> Chart:
    """A chart without plotly's default theme: the page brings its own."""
    plain = figure.update_layout(template="none").to_plotly_json()
    layout = {key: value for key, value in plain["layout"].items() if key != "template"}
    data = {"data": plain["data"], "layout": layout}
    return Chart(name=name, alt=alt, figure=data, min_width=min_width)


def error_bars(figures: Iterable[tuple[float, float, float]], **style: Any) -> dict[str, Any]:
    """The intervals of figures, each as (figure, low, high)."""
    found = list(figures)
    return {
        "type": "data",
        "symmetric": False,
        "array": [high - figure for figure, _, high in found],
        "arrayminus": [figure - low for figure, low, _ in found],
        **style,
    }


def lay_bars(
    figure: go.Figure,
    labels: Sequence[str],
    values: Sequence[float],
    *,
    height: int,
    xaxis: Mapping[str, str],
    **style: Any,
) -> None:
    """Add a bar to the right per label, the first on top."""
    figure.add_bar(y=labels, x=values, orientation="h", **style)
    figure.update_layout(
        height=height,
        xaxis={**xaxis, "rangemode": "tozero"},
        yaxis={"autorange": "reversed"},
    )


def _stacked(
    trials: Sequence[int],
    sizes: Sequence[Mapping[str, float]],
    colours: Mapping[str, str],
    said: str,
) -> go.Figure:
    """A bar per trial that is made of the parts that have a colour."""
    figure = go.Figure()
    for part, colour in colours.items():
        figure.add_bar(
            x=trials,
            y=[one.get(part, 0.0) for one in sizes],
            name=part,
            marker_color=colour,
            hovertemplate=f"trial %{{x}}: {part} {said}<extra></extra>",
        )
    return figure.update_layout(barmode="stack", legend={"traceorder": "normal"})


def _runs_of(report: StudyReport, standing: Standing) -> Sequence[TrialResult]:
    """The runs that a figure is made of; none where it is one trial's own."""
    row = report.row_of(standing.trial)
    tried = None if row is None else report.history.find(row.candidate)
    return telling_runs(tried.trials) if tried is not None and standing.n_runs > 1 else []


def _best_so_far(report: StudyReport) -> dict[int, float]:
    """The rate of the best feasible trial up to each; the final comparison is not a part of it."""
    steps: dict[int, float] = {}
    best = 0.0
    for trial in report.history.explored.trials:
        result = trial.result
        if result is None:
            continue
        fits = result.outcome.is_measured and report.objective.fits(result.peak_memory_bytes)
        best = max(best, (result.samples_per_s or 0.0) if fits else 0.0)
        if best:
            steps[trial.spec.identity.number] = best
    return steps


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
