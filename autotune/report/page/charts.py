"""The charts of a study, as shapes that the page's template draws in the colours of its theme.

The template also says in a sentence what each shows, for those who do not see it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.base.units import format_bytes, format_interval, format_rate, size_unit
from autotune.contract import Role
from autotune.record.answer import Standing
from autotune.record.bottleneck import shares_of_calls
from autotune.record.spread import is_figure
from autotune.record.study import results
from autotune.report.page.shapes import (
    Bar,
    Chart,
    ColumnPart,
    Curve,
    LegendEntry,
    Mark,
    Panel,
    PlotScale,
    Tick,
    scale_of,
    thinned,
)
from autotune.report.story import Story
from autotune.search.history import CandidateTrials
from autotune.space.knobs import describe_candidate

_ROLE_TONES = {Role.BASELINE: "baseline", Role.SEARCH: "candidate", Role.CONFIRM: "best"}
"""Tones of the trials of a history; what is drawn last stands above."""
_PART_TONES = {
    name: f"part-{i}"
    for i, name in enumerate(("forward", "backward", "optimizer", "communication", "data"))
}
_SHARES = PlotScale(low=0, high=1)


def sides_of(story: Story) -> list[tuple[str, str, Standing]]:
    """The best and the baseline, to be compared."""
    named = (("best", story.best_word, story.best), ("baseline", "baseline", story.baseline))
    return [(f"{word}, trial {s.trial}", tone, s) for tone, word, s in named if s is not None]


def comparison(sides: Sequence[tuple[str, str, Standing]]) -> Chart | None:
    """Figures with their intervals, as (label, tone, figure)."""
    if not sides:
        return None
    return Chart(
        name="comparison",
        scale=scale_of((s.samples_per_s_high for _, _, s in sides), zero=True, margin=0.02),
        bars=[Bar(label=label, standing=s, tone=tone) for label, tone, s in sides],
    )


def history(story: Story) -> Chart | None:
    """Every trial in the order in which it was started, and the fastest so far."""
    ended = results(story.history.trials)
    if len(ended) < 2:
        return None
    spread = story.history.spread
    intervals = {run.number: spread.interval([run]) for run in ended if is_figure(run)}
    numbers = [run.number for run in ended]
    x = PlotScale(low=min(numbers) - 0.8, high=max(numbers) + 0.8)
    y = scale_of((interval.high for interval in intervals.values()), zero=True)
    marks, keys = list[Mark](), list[LegendEntry]()
    baseline = story.facts.baseline.candidate_hash
    of_baseline = {run.number for run in ended if run.candidate_hash == baseline}
    for role, role_tone in _ROLE_TONES.items():
        of_role = [run.number for run in ended if run.role is role and run.number in intervals]
        for number in of_role:
            tone = "baseline" if number in of_baseline else role_tone
            interval = intervals[number]
            ends = interval.low, interval.high
            tip = f"trial {number} ({role.value}): {format_rate(interval.rate)} samples/s "
            tip += f"({format_interval(*ends)})"
            marks.append(
                Mark(x=number, y=interval.rate, tone=tone, ends=ends, tip=tip, trial=number)
            )
        keys += [LegendEntry(text=role.value, tone=role_tone)] if of_role else []
    failed = {run.number: run.outcome.value for run in ended if not run.samples_per_s}
    marks += [
        Mark(x=number, y=0.02 * y.high, tone="failed", tip=f"trial {number}: {why}", trial=number)
        for number, why in failed.items()
    ]
    keys += [LegendEntry(text="no figure", tone="failed")] if failed else []
    fastest, lines = list(_fastest_so_far(story).items()), []
    if fastest:
        lines.append(Curve(points=fastest, tone="soft", is_dashed=True, is_staircase=True))
        # By another objective the best is not the fastest, which the line follows.
        word = "best" if story.objective.wish.name == "samples_per_s" else "fastest"
        keys.append(LegendEntry(text=f"{word} so far", tone="soft", symbol="dashes"))
    panel = Panel(
        y_title="samples/s",
        x=x,
        y=y,
        y_ticks=y.ticks(),
        x_ticks=_whole(x.ticks(8)),
        marks=thinned(marks),
        lines=lines,
    )
    caption = {"n": len(ended), "n_marks": len(marks), "n_failed": len(failed)}
    return Chart(name="history", caption=caption, keys=keys, x_title="trial", panels=[panel])


def steps(story: Story) -> Chart | None:
    """Parts of a step's time, trial by trial, as shares: a column per trial."""
    seen = {
        run.number: shares_of_calls(run.diagnosis.split)
        for run in results(story.history.trials)
        if run.diagnosis is not None and run.diagnosis.split is not None
    }
    if not seen:
        return None
    blocks = []
    for i, (number, shares) in enumerate(seen.items()):
        below = 0.0
        for name, tone in _PART_TONES.items():
            if (share := shares.get(name, 0.0)) > 0:
                tip, ends = f"trial {number}: {name} {share:.0%}", (below, below + share)
                blocks.append(
                    ColumnPart(x=i + 0.08, width=0.84, ends=ends, tone=tone, tip=tip, trial=number)
                )
                below += share
    x, every = PlotScale(low=0, high=len(seen)), max(1, round(len(seen) / 12))
    numbers = [(i, number) for i, number in enumerate(seen) if i % every == 0]
    ticks = _SHARES.ticks(4)
    panel = Panel(
        y_title="share of a step",
        x=x,
        y=_SHARES,
        y_ticks=[Tick(at=tick.at, text=f"{float(tick.text):.0%}") for tick in ticks],
        x_ticks=[Tick(at=x.at(i + 0.5), text=str(number)) for i, number in numbers],
        height=260,
        blocks=blocks,
    )
    return Chart(
        name="steps",
        caption={"n": len(seen)},
        keys=[LegendEntry(text=n, tone=tone, symbol="block") for n, tone in _PART_TONES.items()],
        x_title="trial",
        panels=[panel],
    )


def losses(story: Story) -> Chart | None:
    """Losses that the convergence guard compared, above their distances from the baseline's.

    What is allowed is mostly a hundredth of what the losses moved: beside these it would be as
    thin as their lines.
    """
    guards = {name: guard for name, (_, guard) in story.guarded.items() if guard.losses}
    if not guards:
        return None
    base = max((guard.baseline_losses for guard in guards.values()), key=len)
    tolerances = (g.tolerance for g in guards.values() if g.tolerance is not None)
    allowed = next(tolerances, 0.0)
    # The baseline's line is laid over those that train alike.
    lines = {**{name: guard.losses for name, guard in guards.items()}, "baseline": base}
    off = {
        name: [a - b for a, b in zip(values, base, strict=False)] for name, values in lines.items()
    }
    x = PlotScale(low=1, high=max(2, len(base)))
    upper = _curves("loss", x, lines, base, allowed, height=220)
    lower = _curves("off the baseline's", x, off, [0.0] * len(base), allowed, height=150)
    keys = [
        LegendEntry(text=n, tone=_tone(n), symbol="dashes" if n == "baseline" else "line")
        for n in lines
    ]
    return Chart(
        name="losses",
        caption={"n": len(base), "losses": lines, "allowed": allowed},
        keys=[*keys, LegendEntry(text="allowed", tone="band", symbol="block")],
        x_title="optimizer step",
        panels=[upper, dataclasses.replace(lower, x_ticks=_whole(x.ticks(8)))],
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
    low, high = ([middle + sign * allowed for middle in middles] for sign in (-1, 1))
    y = scale_of([*low, *high, *(value for values in lines.values() for value in values)])
    band = [*enumerate(low, start=1), *reversed([*enumerate(high, start=1)])]
    drawn = [Curve(points=band, tone="band", is_filled=True)]
    drawn += [
        Curve(points=[*enumerate(values, start=1)], tone=_tone(name), is_dashed=name == "baseline")
        for name, values in lines.items()
    ]
    return Panel(y_title=title, x=x, y=y, y_ticks=y.ticks(4), height=height, lines=drawn)


def _tone(name: str) -> str:
    return "limit" if name == "drifted" else name


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

    def place(row: CandidateTrials) -> tuple[float, float]:
        return row.peak_bytes / per_bytes, row.rate / per_rate

    limit_bytes = story.objective.allowed_bytes
    # Far beyond the candidates it would only squeeze them together.
    is_limit_drawn = limit_bytes <= 2 * max(row.peak_bytes for row in rows)
    words = {
        "candidate": "candidate",
        "limit": "over limit",
        "drifts": "drifts",
        "baseline": "baseline",
        "best": story.best_word,
    }
    marks = []
    for row in sorted(rows, key=lambda row: [*words].index(_kind(row, story))):
        tip = f"trial {row.trial}: {format_rate(row.rate)} samples/s in "
        tip += (
            f"{format_bytes(row.peak_bytes)}; {describe_candidate(row.candidate, story.context)}"
        )
        at, up = place(row)
        marks.append(Mark(x=at, y=up, tone=_kind(row, story), tip=tip, trial=row.trial))
    titles = (f"peak memory per device, {unit}", "samples/s")
    if is_relative:
        titles = "cost: peak memory over the baseline's", "gain: samples/s over the baseline's"
    return scatter(
        "memory",
        marks,
        words,
        front=[place(row) for row in story.front],
        limits=[limit_bytes / per_bytes] if is_limit_drawn else [],
        caption={"front": story.front, "limit_bytes": limit_bytes if is_limit_drawn else None},
        titles=titles,
        unit="x" if is_relative else "",
    )


def scatter(
    name: str,
    marks: Sequence[Mark],
    words: Mapping[str, str],
    *,
    front: Sequence[tuple[float, float]],
    limits: Sequence[float],
    caption: Mapping[str, Any],
    titles: tuple[str, str],
    unit: str = "",
) -> Chart:
    """Speed against memory: marks, whose tones have words, the Pareto front, and what is allowed.

    The titles are of memory and of speed.
    """
    x = scale_of([*(mark.x for mark in marks), *limits])
    y = scale_of([*(mark.y for mark in marks), *(end for m in marks for end in m.ends or ())])
    lines = [Curve(points=front, tone="soft", is_dashed=True, is_staircase=True)] if front else []
    for at in limits:
        lines.append(Curve(points=[(at, y.low), (at, y.high)], tone="limit", is_dashed=True))
    tones = {mark.tone for mark in marks}
    keys = [LegendEntry(text=text, tone=tone) for tone, text in words.items() if tone in tones]
    keys += [LegendEntry(text="Pareto front", tone="soft", symbol="dashes")] if front else []
    panel = Panel(
        y_title=titles[1],
        x=x,
        y=y,
        y_ticks=y.ticks(unit=unit),
        x_ticks=x.ticks(6, unit=unit),
        height=360,
        lines=lines,
        marks=thinned(marks),
    )
    caption = {"n": len(marks), "n_marks": len(marks), **caption}
    return Chart(name=name, caption=caption, keys=keys, x_title=titles[0], panels=[panel])


def _whole(ticks: Sequence[Tick]) -> list[Tick]:
    return [tick for tick in ticks if float(tick.text.replace(",", "")).is_integer()]


def _fastest_so_far(story: Story) -> dict[int, float]:
    """The rate of the fastest feasible trial up to each, without the final comparison."""
    steps: dict[int, float] = {}
    best = 0.0
    for run in results(story.history.explored.trials):
        fits = run.outcome.is_measured and story.objective.fits(run.peak_memory_bytes)
        best = max(best, (run.samples_per_s or 0.0) if fits else 0.0)
        if best:
            steps[run.number] = best
    return steps


def _kind(row: CandidateTrials, story: Story) -> str:
    for name, trial in (("best", story.best_trial), ("baseline", story.baseline_trial)):
        if row.trial == trial:
            return name
    if story.drifts(row):
        return "drifts"
    return "candidate" if story.fits(row) else "limit"
