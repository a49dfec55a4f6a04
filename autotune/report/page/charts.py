"""The charts of a study, as shapes that the page's template draws in the colours of its theme.

Each comes with a sentence that says what it shows, for those who do not see it.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from autotune.base.units import format_bytes, format_interval, format_rate, size_unit
from autotune.contract import Role
from autotune.record.answer import Standing
from autotune.record.bottleneck import shares_of_calls
from autotune.record.spread import is_figure
from autotune.report.page.scale import PlotScale, Tick, scale_of
from autotune.report.page.shapes import (
    Bar,
    Chart,
    ColumnPart,
    Curve,
    LegendEntry,
    Mark,
    Panel,
    path_of,
    steps_of,
    thinned,
)
from autotune.report.results.rows import Row, describe_front, front_rows
from autotune.report.story import Story
from autotune.space.knobs import describe_candidate


def sides_of(story: Story) -> list[tuple[str, str, Standing]]:
    """The best and the baseline, to be compared."""
    named = (("best", story.best_word, story.best), ("baseline", "baseline", story.baseline))
    return [(f"{word}, trial {s.trial}", tone, s) for tone, word, s in named if s is not None]


def comparison(sides: Sequence[tuple[str, str, Standing]]) -> Chart | None:
    """Figures with their intervals, as (label, tone, figure)."""
    if not sides:
        return None
    scale = scale_of((s.samples_per_s_high for _, _, s in sides), zero=True, margin=0.02)
    bars = [
        Bar(
            label=label,
            standing=s,
            tone=tone,
            width=scale.at(s.samples_per_s),
            ends=(scale.at(s.samples_per_s_low), scale.at(s.samples_per_s_high)),
        )
        for label, tone, s in sides
    ]
    return Chart(name="comparison", bars=bars)


def history(story: Story) -> Chart | None:
    """Every trial in the order in which it was started, and the fastest so far."""
    ended = [(t.spec.identity, t.result) for t in story.history.trials if t.result is not None]
    if len(ended) < 2:
        return None
    intervals = {
        identity.number: story.history.spread.interval([result])
        for identity, result in ended
        if is_figure(result)
    }
    x = _numbers([identity.number for identity, _ in ended])
    y = scale_of((interval.high for interval in intervals.values()), zero=True)
    marks, keys = [], []
    for role, tone in (
        (Role.BASELINE, "baseline"),
        (Role.SEARCH, "candidate"),
        (Role.CONFIRM, "best"),
    ):
        shown = [
            (i.number, intervals[i.number])
            for i, _ in ended
            if i.role is role and i.number in intervals
        ]
        marks += [
            Mark(
                x=x.at(number),
                y=100 - y.at(interval.rate),
                tone=tone,
                ends=(100 - y.at(interval.low), 100 - y.at(interval.high)),
                tip=f"trial {number} ({role.value}): {format_rate(interval.rate)} samples/s "
                f"({format_interval(interval.low, interval.high)})",
                trial=number,
            )
            for number, interval in shown
        ]
        keys += [LegendEntry(text=role.value, tone=tone)] if shown else []
    failed = {i.number: result.outcome.value for i, result in ended if not result.samples_per_s}
    marks += [
        Mark(
            x=x.at(number),
            y=98.0,
            tone="failed",
            tip=f"trial {number}: {outcome}",
            trial=number,
        )
        for number, outcome in failed.items()
    ]
    keys += [LegendEntry(text="no figure", tone="failed")] if failed else []
    best = [(x.at(number), 100 - y.at(rate)) for number, rate in _fastest_so_far(story).items()]
    lines = [Curve(path=steps_of(best), tone="soft", is_dashed=True)] if best else []
    # By another objective the best is not the fastest, which the line follows.
    is_speed = story.objective.wish.name == "samples_per_s"
    text = f"{'best' if is_speed else 'fastest'} so far"
    keys += [LegendEntry(text=text, tone="soft", symbol="dashes")] if best else []
    panel = Panel(
        y_title="samples/s",
        y_ticks=y.ticks(),
        x_ticks=_whole(x.ticks(8)),
        marks=thinned(marks),
        lines=lines,
    )
    caption = {"n": len(ended), "n_marks": len(marks), "n_failed": len(failed)}
    return Chart(name="history", caption=caption, keys=keys, x_title="trial", panels=[panel])


def steps(story: Story) -> Chart | None:
    """Parts of a step's time, trial by trial, as shares."""
    seen = {
        trial.spec.identity.number: shares_of_calls(trial.result.diagnosis.split)
        for trial in story.history.trials
        if trial.result is not None
        and trial.result.diagnosis is not None
        and trial.result.diagnosis.split is not None
    }
    if not seen:
        return None
    panel = _columns(seen)
    keys = [
        LegendEntry(text=name, tone=tone, symbol="block") for name, tone in _PART_TONES.items()
    ]
    caption = {"n": len(seen)}
    return Chart(name="steps", caption=caption, keys=keys, x_title="trial", panels=[panel])


_PART_TONES = {
    name: f"part-{i}"
    for i, name in enumerate(("forward", "backward", "optimizer", "communication", "data"))
}


def losses(story: Story) -> Chart | None:
    """Losses that the convergence guard compared, above their distances from the baseline's.

    What is allowed is mostly a hundredth of what the losses moved: beside these it would be as
    thin as their lines.
    """
    guards = {name: one for name, (_, one) in story.guarded.items() if one.losses}
    if not guards:
        return None
    base = max((one.baseline_losses for one in guards.values()), key=len)
    allowed = next((one.tolerance for one in guards.values() if one.tolerance is not None), 0.0)
    # The baseline's line is laid over those that train alike.
    lines = {**{name: one.losses for name, one in guards.items()}, "baseline": base}
    x = PlotScale(low=1, high=max(2, len(base)))
    off = {
        name: [a - b for a, b in zip(values, base, strict=False)] for name, values in lines.items()
    }
    upper = _curves("loss", x, lines, base, allowed, height=220)
    lower = _curves("off the baseline's", x, off, [0.0] * len(base), allowed, height=150)
    lower = dataclasses.replace(lower, x_ticks=_whole(x.ticks(8)))
    tones = {name: "limit" if name == "drifted" else name for name in lines}
    keys = [
        LegendEntry(text=name, tone=tones[name], symbol="dashes" if name == "baseline" else "line")
        for name in lines
    ]
    return Chart(
        name="losses",
        caption={"n": len(base), "losses": lines, "allowed": allowed},
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
    y = scale_of([*edges[0], *edges[1], *(v for values in lines.values() for v in values)])

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(x.at(step), 100 - y.at(value)) for step, value in enumerate(values, start=1)]

    band = path_of([*points(edges[0]), *reversed(points(edges[1]))]) + "Z"
    drawn = [Curve(path=band, tone="band", is_filled=True)]
    drawn += [
        Curve(
            path=path_of(points(values)),
            tone="limit" if name == "drifted" else name,
            is_dashed=name == "baseline",
        )
        for name, values in lines.items()
    ]
    return Panel(y_title=title, y_ticks=y.ticks(4), height=height, lines=drawn)


def speed_and_memory(story: Story) -> Chart | None:
    """Samples/s against peak memory, with the candidates that nothing beats in both.

    With the Pareto objective both axes are relative to the baseline's: the gain and its cost.
    """
    rows = [row for row in story.rows if row.figure and row.figure.peak_memory_bytes is not None]
    if not rows:
        return None
    base = story.baseline
    is_relative = story.objective.wish.name == "pareto" and bool(base and base.peak_memory_bytes)
    unit, unit_bytes = size_unit(max(row.peak_bytes for row in rows))
    per_rate, per_bytes = 1.0, float(unit_bytes)
    if is_relative and base is not None:
        per_rate, per_bytes = base.samples_per_s, float(base.peak_memory_bytes or unit_bytes)
    front = front_rows([row for row in rows if not story.drifts(row)])
    limit_bytes = story.objective.allowed_bytes
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
        "best": story.best_word,
    }
    for kind, word in words.items():
        shown = [row for row in rows if _kind(row, story) == kind]
        marks += [
            Mark(
                x=place(row)[0],
                y=place(row)[1],
                tone=kind,
                tip=f"trial {row.trial}: {format_rate(row.rate)} samples/s in "
                f"{format_bytes(row.peak_bytes)}; "
                f"{describe_candidate(row.candidate, story.context)}",
                trial=row.trial,
            )
            for row in shown
        ]
        keys += [LegendEntry(text=word, tone=kind)] if shown else []
    keys += [LegendEntry(text="Pareto front", tone="soft", symbol="dashes")] if front else []
    panel = Panel(
        y_title="gain: samples/s over the baseline's" if is_relative else "samples/s",
        y_ticks=y.ticks(unit="x" if is_relative else ""),
        x_ticks=x.ticks(6, unit="x" if is_relative else ""),
        height=360,
        lines=lines,
        marks=thinned(marks),
    )
    caption = {
        "n": len(rows),
        "n_marks": len(marks),
        "front": describe_front(front) if front else "",
        "limit_bytes": limit_bytes if is_limit_drawn else None,
    }
    title = f"peak memory per device, {unit}"
    if is_relative:
        title = "cost: peak memory over the baseline's"
    return Chart(name="memory", caption=caption, keys=keys, x_title=title, panels=[panel])


def _columns(shares_of: Mapping[int, Mapping[str, float]]) -> Panel:
    """A column per trial, made of the parts of its step."""
    width = 100 / len(shares_of)
    scale = PlotScale(low=0, high=1)
    blocks = []
    for i, (number, shares) in enumerate(shares_of.items()):
        below = 0.0
        for name, tone in _PART_TONES.items():
            share = shares.get(name, 0.0)
            if share <= 0:
                continue
            top = scale.at(below + share)
            blocks.append(
                ColumnPart(
                    x=round((i + 0.08) * width, 2),
                    width=round(0.84 * width, 2),
                    y=round(100 - top, 2),
                    height=round(top - scale.at(below), 2),
                    tone=tone,
                    tip=f"trial {number}: {name} {share:.0%}",
                    trial=number,
                )
            )
            below += share
    every = max(1, round(len(shares_of) / 12))
    x_ticks = [
        Tick(at=round((i + 0.5) * width, 2), text=str(number))
        for i, number in enumerate(shares_of)
        if i % every == 0
    ]
    y_ticks = [Tick(at=tick.at, text=f"{float(tick.text):.0%}") for tick in scale.ticks(4)]
    return Panel(
        y_title="share of a step", y_ticks=y_ticks, x_ticks=x_ticks, height=260, blocks=blocks
    )


def _numbers(numbers: Sequence[int]) -> PlotScale:
    return PlotScale(low=min(numbers) - 0.8, high=max(numbers) + 0.8)


def _whole(ticks: Sequence[Tick]) -> list[Tick]:
    """The labels that are whole numbers."""
    return [tick for tick in ticks if float(tick.text.replace(",", "")).is_integer()]


def _fastest_so_far(story: Story) -> dict[int, float]:
    """The rate of the fastest feasible trial up to each, without the final comparison."""
    steps: dict[int, float] = {}
    best = 0.0
    for trial in story.history.explored.trials:
        result = trial.result
        if result is None:
            continue
        fits = result.outcome.is_measured and story.objective.fits(result.peak_memory_bytes)
        best = max(best, (result.samples_per_s or 0.0) if fits else 0.0)
        if best:
            steps[trial.spec.identity.number] = best
    return steps


def _kind(row: Row, story: Story) -> str:
    for name, trial in (("best", story.best_trial), ("baseline", story.baseline_trial)):
        if row.trial == trial:
            return name
    if story.drifts(row):
        return "drifts"
    return "candidate" if row.fits else "limit"
