"""The charts of a study, as shapes that the page's template draws in the colours of its theme.

Each comes with a sentence that says what it shows, for those who do not see it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from autotune.base.units import (
    format_bytes,
    format_interval,
    format_rate,
    format_seconds,
    size_unit,
)
from autotune.contract import KnobValue, Outcome, Phase, Role, TrialResult
from autotune.record.answer import Standing
from autotune.record.bottleneck import shares_of_calls
from autotune.record.spread import is_figure
from autotune.report.page.scale import PlotScale, Tick, scale_of
from autotune.report.page.shapes import (
    Bar,
    Chart,
    ColumnPart,
    Curve,
    KnobAxis,
    LegendEntry,
    Mark,
    Panel,
    Symbol,
    Track,
    path_of,
    steps_of,
)
from autotune.report.page.words import best_word
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
from autotune.space.candidate import format_value
from autotune.space.knob import Knob
from autotune.space.knobs import describe_candidate, settings_of

Standings = Mapping[str, Standing | None]
"""`best` and `baseline`, by these names."""

N_SHADES = 6
"""Shades from slow to fast."""
_SYMBOLS: Mapping[str, Symbol] = {
    "candidate": "dot",
    "limit": "cross",
    "drifts": "block",
    "baseline": "diamond",
    "best": "star",
}
_EDGE = 2.0
"""Per cent that the first and the last value of an axis keep from its ends."""
_MOST_NEEDS = 12
"""Candidates that the chart of what they would need shows."""


def best_and_baseline(report: StudyReport, standings: Standings) -> Chart | None:
    """Figures with their intervals, and the runs that they rest on."""
    named = {name: standing for name, standing in standings.items() if standing}
    if not named:
        return None
    scale = scale_of((s.samples_per_s_high for s in named.values()), zero=True, margin=0.02)
    words = {"best": best_word(report), "baseline": "baseline"}
    bars = [
        Bar(
            label=f"{words[name]}, trial {s.trial}",
            value=f"{format_rate(s.samples_per_s)} samples/s",
            tone=name,
            width=scale.at(s.samples_per_s),
            ends=(scale.at(s.samples_per_s_low), scale.at(s.samples_per_s_high)),
            runs=[scale.at(run.samples_per_s or 0.0) for run in _runs_of(report, s)],
        )
        for name, s in named.items()
    ]
    said = "; ".join(
        f"{words[name]}: {format_rate(s.samples_per_s)} samples/s, 95% interval "
        f"{format_interval(s.samples_per_s_low, s.samples_per_s_high)}"
        for name, s in named.items()
    )
    alt = f"{said}. A line is a 95% interval; ticks are the runs behind a figure."
    return Chart(name="standings", alt=alt, kind="bars", bars=bars)


def needs(report: StudyReport) -> Chart | None:
    """Memory that the smallest candidates need, against what is allowed."""
    needed = needs_of(report)[:_MOST_NEEDS]
    if not needed:
        return None
    allowed_bytes = report.objective.allowed_bytes
    scale = scale_of([allowed_bytes, *(need for need, _ in needed)], zero=True, margin=0.02)
    bars = [
        Bar(
            label=f"trial {row.trial}: {describe_candidate(row.candidate, report.context)}",
            value=format_bytes(need) + ("" if row.peak_bytes else ", predicted"),
            tone="limit" if need > allowed_bytes else "candidate",
            width=scale.at(need),
        )
        for need, row in needed
    ]
    alt = (
        f"Peak memory per device of the {len(bars)} candidates that need least, predicted where a "
        f"trial ran out of it; the line is what is allowed: {format_bytes(allowed_bytes)}."
    )
    limit = scale.at(allowed_bytes)
    return Chart(name="needs", alt=alt, kind="bars", bars=bars, limit=limit)


def needs_of(report: StudyReport) -> list[tuple[float, Row]]:
    """Bytes that each candidate needs, by its meter or else as predicted; the least first."""
    predicted = {
        trial.spec.identity.candidate_hash: trial.spec.provenance.predicted
        for trial in report.history.trials
    }
    found = []
    for row in report.rows:
        said = predicted.get(row.candidate.hash)
        if row.peak_bytes:
            found.append((float(row.peak_bytes), row))
        elif row.outcome is Outcome.OOM and said is not None:
            found.append((said.peak_memory_bytes, row))
    return sorted(found, key=lambda pair: pair[0])


def history(report: StudyReport) -> Chart | None:
    """Every trial in the order in which it was started, and the fastest so far."""
    ended = [(t.spec.identity, t.result) for t in report.history.trials if t.result is not None]
    if len(ended) < 2:
        return None
    intervals = {
        identity.number: report.history.spread.interval([result])
        for identity, result in ended
        if is_figure(result)
    }
    x = _numbers([identity.number for identity, _ in ended])
    y = scale_of((each.high for each in intervals.values()), zero=True)
    marks, keys = [], []
    for role, tone in (
        (Role.BASELINE, "baseline"),
        (Role.SEARCH, "candidate"),
        (Role.CONFIRM, "best"),
    ):
        own = [
            (i.number, intervals[i.number])
            for i, _ in ended
            if i.role is role and i.number in intervals
        ]
        symbol: Symbol = {"baseline": "diamond", "best": "star"}.get(tone, "dot")  # type: ignore[assignment]  # of the closed list
        marks += [
            Mark(
                x=x.at(number),
                y=100 - y.at(each.rate),
                tone=tone,
                symbol=symbol,
                ends=(100 - y.at(each.low), 100 - y.at(each.high)),
                tip=f"trial {number} ({role.value}): {format_rate(each.rate)} samples/s "
                f"({format_interval(each.low, each.high)})",
                trial=number,
            )
            for number, each in own
        ]
        keys += [LegendEntry(text=role.value, tone=tone, symbol=symbol)] if own else []
    failed = {i.number: result.outcome.value for i, result in ended if not result.samples_per_s}
    marks += [
        Mark(
            x=x.at(number),
            y=98.0,
            tone="failed",
            symbol="cross",
            tip=f"trial {number}: {outcome}",
            trial=number,
        )
        for number, outcome in failed.items()
    ]
    keys += [LegendEntry(text="no figure", tone="failed", symbol="cross")] if failed else []
    best = [(x.at(number), 100 - y.at(rate)) for number, rate in _fastest_so_far(report).items()]
    lines = [Curve(path=steps_of(best), tone="soft", is_dashed=True)] if best else []
    # By another objective the best is not the fastest, which the line follows.
    is_speed = report.objective.wish.name == "samples_per_s"
    text = f"{'best' if is_speed else 'fastest'} so far"
    keys += [LegendEntry(text=text, tone="soft", symbol="dashes")] if best else []
    panel = Panel(
        y_title="samples/s",
        y_ticks=y.ticks(),
        x_ticks=_whole(x.ticks(8)),
        marks=marks,
        lines=lines,
    )
    alt = f"{len(ended)} trials by number"
    if failed:
        alt += f"; {len(failed)} {'has' if len(failed) == 1 else 'have'} no figure"
    return Chart(
        name="history", alt=f"{alt}.", kind="plot", keys=keys, x_title="trial", panels=[panel]
    )


def importance(shares: Mapping[str, float]) -> Chart:
    """Bars, the largest on top; knobs that round to nothing are named in the caption."""
    shown = {name: share for name, share in shares.items() if share >= LEAST_SHARE}
    most = max(shown.values(), default=1.0)
    bars = [
        Bar(label=name, value=f"{share:.0%}", tone="candidate", width=round(100 * share / most, 2))
        for name, share in shown.items()
    ]
    return Chart(
        name="importance",
        alt=describe_importance(shares),
        is_plain=len(shown) == len(shares),
        kind="bars",
        bars=bars,
    )


def outcomes(report: StudyReport) -> Chart | None:
    """How the trials ended; None where all ended alike."""
    counts = {outcome: n for outcome in Outcome if (n := report.counts.get(outcome))}
    if len(counts) < 2:
        return None
    most = max(counts.values())
    bars = [
        Bar(label=o.value, value=str(n), tone=_tone_of(o), width=round(100 * n / most, 2))
        for o, n in counts.items()
    ]
    alt = ", ".join(f"{outcome.value} {n}" for outcome, n in counts.items())
    return Chart(name="outcomes", alt=alt, is_plain=True, kind="bars", bars=bars)


def phases(report: StudyReport) -> Chart | None:
    """Seconds of each trial, by phase."""
    ended = with_phases(report)
    if not ended:
        return None
    sizes = {r.number: {p.value: r.phases_s.get(p.value, 0.0) for p in Phase} for r in ended}
    scale = scale_of((sum(parts.values()) for parts in sizes.values()), zero=True)
    panel = _columns(sizes, scale, PHASE_TONES, "seconds", format_seconds)
    keys = [
        LegendEntry(text=name, tone=tone, symbol="block") for name, tone in PHASE_TONES.items()
    ]
    alt = describe_phases(ended)
    return Chart(name="phases", alt=alt, kind="plot", keys=keys, x_title="trial", panels=[panel])


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
    panel = _columns(
        seen, PlotScale(low=0, high=1), _PART_TONES, "share of a step", "{:.0%}".format
    )
    keys = [
        LegendEntry(text=name, tone=tone, symbol="block") for name, tone in _PART_TONES.items()
    ]
    alt = f"Where the time of an optimizer step went, as shares, in {len(seen)} trials."
    return Chart(name="steps", alt=alt, kind="plot", keys=keys, x_title="trial", panels=[panel])


PHASE_TONES = {phase.value: f"phase-{i}" for i, phase in enumerate(Phase)}
"""Tone of each phase of a trial."""
_PART_TONES = {
    name: f"part-{i}"
    for i, name in enumerate(("forward", "backward", "optimizer", "communication", "data"))
}


def losses(report: StudyReport) -> Chart | None:
    """Losses that the convergence guard compared, above their distances from the baseline's.

    What is allowed is mostly a hundredth of what the losses moved: beside these it would be as
    thin as their lines.
    """
    guards = {name: one for name, (_, one) in report.guarded.items() if one.losses}
    if not guards:
        return None
    base = max((one.baseline_losses for one in guards.values()), key=len)
    allowed = next((one.tolerance for one in guards.values() if one.tolerance is not None), 0.0)
    # The baseline's line is laid over those that train alike.
    lines = {**{name: one.losses for name, one in guards.items()}, "baseline": base}
    x = PlotScale(low=1, high=max(2, len(base)))
    off = {name: [a - b for a, b in zip(its, base, strict=False)] for name, its in lines.items()}
    upper = _curves("loss", x, lines, base, allowed, height=220)
    lower = _curves("off the baseline's", x, off, [0.0] * len(base), allowed, height=150)
    lower = dataclasses.replace(lower, x_ticks=_whole(x.ticks(8)))
    tones = {name: "limit" if name == "drifted" else name for name in lines}
    keys = [
        LegendEntry(text=name, tone=tones[name], symbol="dashes" if name == "baseline" else "line")
        for name in lines
    ]
    said = "; ".join(f"{name}: {its[0]:.5g} to {its[-1]:.5g}" for name, its in lines.items())
    alt = (
        f"Losses of the first {len(base)} steps, means over the runs: {said}. Below, how far they "
        f"are off the baseline's; grey: {allowed:.2g} to either side is allowed."
    )
    return Chart(
        name="losses",
        alt=alt,
        kind="plot",
        keys=[*keys, LegendEntry(text="allowed", tone="band", symbol="block")],
        x_title="optimizer step",
        panels=[upper, lower],
    )


def _curves(
    title: str,
    x: PlotScale,
    lines: Mapping[str, Sequence[float]],
    middles: Sequence[float],
    allowed: float,
    *,
    height: int,
) -> Panel:
    """Lines over the steps, and the band that is allowed around some of them."""
    edges = [[middle + sign * allowed for middle in middles] for sign in (-1, 1)]
    y = scale_of([*edges[0], *edges[1], *(v for its in lines.values() for v in its)])

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(x.at(step), 100 - y.at(value)) for step, value in enumerate(values, start=1)]

    band = path_of([*points(edges[0]), *reversed(points(edges[1]))]) + "Z"
    drawn = [Curve(path=band, tone="band", is_filled=True)]
    drawn += [
        Curve(
            path=path_of(points(its)),
            tone="limit" if name == "drifted" else name,
            is_dashed=name == "baseline",
        )
        for name, its in lines.items()
    ]
    return Panel(y_title=title, y_ticks=y.ticks(4), height=height, lines=drawn)


def speed_and_memory(report: StudyReport, standings: Standings) -> Chart | None:
    """Samples/s against peak memory, with the candidates that nothing beats in both.

    With the Pareto objective both axes are relative to the baseline's: the gain and its cost.
    """
    rows = [row for row in report.rows if row.figure and row.figure.peak_memory_bytes is not None]
    if not rows:
        return None
    base = standings["baseline"]
    is_relative = report.objective.wish.name == "pareto" and bool(base and base.peak_memory_bytes)
    unit, unit_bytes = size_unit(max(row.peak_bytes for row in rows))
    per_rate, per_bytes = 1.0, float(unit_bytes)
    if is_relative and base is not None:
        per_rate, per_bytes = base.samples_per_s, float(base.peak_memory_bytes or unit_bytes)
    front = pareto_front([row for row in rows if not report.drifts(row)])
    limit_bytes = report.objective.allowed_bytes
    # Far beyond the candidates it would only squeeze them together.
    is_limit_drawn = limit_bytes <= 2 * max(row.peak_bytes for row in rows)
    x = scale_of(
        [row.peak_bytes / per_bytes for row in rows]
        + ([limit_bytes / per_bytes] if is_limit_drawn else [])
    )
    y = scale_of(row.rate / per_rate for row in rows)

    def place(row: Row) -> tuple[float, float]:
        return x.at(row.peak_bytes / per_bytes), 100 - y.at(row.rate / per_rate)

    lines = []
    if front:
        path = steps_of([place(row) for row in front])
        lines.append(Curve(path=path, tone="soft", is_dashed=True))
    if is_limit_drawn:
        at = x.at(limit_bytes / per_bytes)
        lines.append(Curve(path=path_of([(at, 0), (at, 100)]), tone="limit", is_dashed=True))
    marks, keys = [], []
    words = {
        "candidate": "candidate",
        "limit": "over limit",
        "drifts": "drifts",
        "baseline": "baseline",
        "best": best_word(report),
    }
    for kind, word in words.items():
        own = [row for row in rows if _kind(row, report, standings) == kind]
        marks += [
            Mark(
                x=place(row)[0],
                y=place(row)[1],
                tone=kind,
                symbol=_SYMBOLS[kind],
                tip=f"trial {row.trial}: {format_rate(row.rate)} samples/s in "
                f"{format_bytes(row.peak_bytes)}; "
                f"{describe_candidate(row.candidate, report.context)}",
                trial=row.trial,
            )
            for row in own
        ]
        keys += [LegendEntry(text=word, tone=kind, symbol=_SYMBOLS[kind])] if own else []
    keys += [LegendEntry(text="Pareto front", tone="soft", symbol="dashes")] if front else []
    panel = Panel(
        y_title="gain: samples/s over the baseline's" if is_relative else "samples/s",
        y_ticks=y.ticks(unit="x" if is_relative else ""),
        x_ticks=x.ticks(6, unit="x" if is_relative else ""),
        height=360,
        lines=lines,
        marks=marks,
    )
    alt = f"{len(rows)} candidates"
    if front:
        alt += f"; {describe_front(front)}"
    if is_limit_drawn:
        alt += f". Upright line: the limit of {format_bytes(limit_bytes)}"
    title = f"peak memory per device, {unit}"
    if is_relative:
        title = "cost: peak memory over the baseline's"
    return Chart(
        name="memory", alt=f"{alt}.", kind="plot", keys=keys, x_title=title, panels=[panel]
    )


def parallel_coordinates(report: StudyReport) -> Chart | None:
    """The candidates with a figure, each a line through the knobs that vary."""
    rows = [row for row in report.rows if row.figure]
    settings = [settings_of(row.candidate, report.context) for row in rows]
    varying = [
        name for name in report.context.knobs if len({chosen.get(name) for chosen in settings}) > 1
    ]
    values = {name: _values_of(rows, report.context.knobs[name]) for name in varying}
    if not values:
        return None
    rates = PlotScale(low=min(row.rate for row in rows), high=max(row.rate for row in rows))
    height = 100 / (len(values) + 1)
    levels = [round((i + 0.5) * height, 2) for i in range(len(values) + 1)]
    axes = [
        KnobAxis(
            name=name,
            y=levels[i],
            ticks=[
                Tick(at=_spread(place, len(its)), text=format_value(value))
                for place, value in enumerate(its)
            ],
        )
        for i, (name, its) in enumerate(values.items())
    ]
    ends = [Tick(at=_inside(tick.at), text=tick.text) for tick in rates.ticks(6)]
    axes.append(KnobAxis(name="samples/s", y=levels[-1], ticks=ends))
    tracks = []
    for i, row in enumerate(reversed(rows)):  # the fastest on top
        places = [its.index(row.candidate.get(name)) for name, its in values.items()]
        # Lines through the same value lie beside one another.
        beside = 2.4 * (i / max(1, len(rows) - 1) - 0.5)
        xs = [
            _spread(place, len(its)) + beside
            for place, its in zip(places, values.values(), strict=True)
        ]
        xs.append(_inside(rates.at(row.rate)))
        shade = min(N_SHADES - 1, int(N_SHADES * rates.at(row.rate) / 100))
        tracks.append(
            Track(
                path=path_of(list(zip(xs, levels, strict=True))),
                tone=f"shade-{shade}",
                tip=f"trial {row.trial}: {format_rate(row.rate)} samples/s; "
                f"{describe_candidate(row.candidate, report.context)}",
                trial=row.trial,
                places=places,
            )
        )
    middle = (rates.low + rates.high) / 2
    ramp = [
        Tick(at=at, text=format_rate(rate))
        for at, rate in ((0.0, rates.low), (50.0, middle), (100.0, rates.high))
    ]
    alt = f"{len(rows)} candidates over {', '.join(values)}; the colour bar says how fast."
    return Chart(name="knobs", alt=alt, kind="tracks", axes=axes, tracks=tracks, ramp=ramp)


def _spread(place: int, n: int) -> float:
    """Where a value stands among `n` on an axis."""
    return _inside(100 * place / max(1, n - 1)) if n > 1 else 50.0


def _inside(at: float) -> float:
    return round(_EDGE + at * (100 - 2 * _EDGE) / 100, 2)


def _columns(
    sizes: Mapping[int, Mapping[str, float]],
    scale: PlotScale,
    tones: Mapping[str, str],
    title: str,
    said: Callable[[float], str],
) -> Panel:
    """A column per trial that is made of the parts that have a tone."""
    width = 100 / len(sizes)
    blocks = []
    for i, (number, parts) in enumerate(sizes.items()):
        below = 0.0
        for name, tone in tones.items():
            size = parts.get(name, 0.0)
            if size <= 0:
                continue
            top = scale.at(below + size)
            blocks.append(
                ColumnPart(
                    x=round((i + 0.08) * width, 2),
                    width=round(0.84 * width, 2),
                    y=round(100 - top, 2),
                    height=round(top - scale.at(below), 2),
                    tone=tone,
                    tip=f"trial {number}: {name} {said(size)}",
                    trial=number,
                )
            )
            below += size
    every = max(1, round(len(sizes) / 12))
    x_ticks = [
        Tick(at=round((i + 0.5) * width, 2), text=str(number))
        for i, number in enumerate(sizes)
        if i % every == 0
    ]
    is_share = scale.high == 1
    y_ticks = [
        Tick(at=tick.at, text=f"{float(tick.text):.0%}" if is_share else tick.text)
        for tick in scale.ticks(4)
    ]
    return Panel(y_title=title, y_ticks=y_ticks, x_ticks=x_ticks, height=260, blocks=blocks)


def _numbers(numbers: Sequence[int]) -> PlotScale:
    return PlotScale(low=min(numbers) - 0.8, high=max(numbers) + 0.8)


def _whole(ticks: Sequence[Tick]) -> list[Tick]:
    """The labels that are whole numbers."""
    return [tick for tick in ticks if float(tick.text.replace(",", "")).is_integer()]


def _tone_of(outcome: Outcome) -> str:
    if outcome.is_measured:
        return "best"
    return "baseline" if outcome.is_config_fault else "failed"


def _runs_of(report: StudyReport, standing: Standing) -> Sequence[TrialResult]:
    """The runs that a figure is made of; none where it is one trial's own."""
    row = report.row_of(standing.trial)
    tried = None if row is None else report.history.find(row.candidate)
    return telling_runs(tried.trials) if tried is not None and standing.n_runs > 1 else []


def _fastest_so_far(report: StudyReport) -> dict[int, float]:
    """The rate of the fastest feasible trial up to each, without the final comparison."""
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


def _kind(row: Row, report: StudyReport, standings: Standings) -> str:
    for name in ("best", "baseline"):
        standing = standings[name]
        if standing is not None and standing.trial == row.trial:
            return name
    if report.drifts(row):
        return "drifts"
    return "candidate" if row.fits else "limit"
