"""What the page's charts are made of: marks, lines and bars, placed in per cent of their plot.

So placed, a chart has the width of the screen and its text keeps its size. A tone is the name of
a colour of the page's style sheet, which has one for each theme.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.record.answer import Standing
from autotune.report.page.scale import Tick

Symbol = Literal["line", "dashes", "block"]
Point = tuple[float, float]
"""Per cent from the left and from the top."""
Ends = tuple[float, float]
"""Ends of an interval, in per cent of the axis that it lies along."""
MOST_MARKS = 200
"""Marks of one chart: more of them hide each other."""


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One figure of a plot."""

    x: float
    y: float
    tone: str
    tip: str
    """What a pointer on it reads."""
    ends: Ends | None = None
    """Its interval, from the top; None: it has none."""
    trial: int | None = None
    """Trial that a click opens."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line, or with `is_filled` an area."""

    path: str
    """As SVG draws it, over 100 by 100 units."""
    tone: str
    is_dashed: bool = False
    is_filled: bool = False


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """An entry of a legend."""

    text: str
    tone: str
    symbol: Symbol | None = None
    """None: that of its tone's marks."""


@dataclass(frozen=True, kw_only=True)
class ColumnPart:
    """A part of a column."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    tip: str
    trial: int | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    y_title: str
    y_ticks: Sequence[Tick]
    x_ticks: Sequence[Tick] = ()
    height: int = 300
    """Pixels."""
    lines: Sequence[Curve] = ()
    marks: Sequence[Mark] = ()
    blocks: Sequence[ColumnPart] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a chart of bars."""

    label: str
    standing: Standing
    tone: str
    width: float
    """Per cent of the track."""
    ends: Ends | None = None
    """Its interval, from the left; None: it has none."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart of a page."""

    name: str
    """Identifies it in the page."""
    caption: Mapping[str, Any] = field(default_factory=dict)
    """What its caption tells, for those who do not see it as well."""
    keys: Sequence[LegendEntry] = ()
    x_title: str = ""
    panels: Sequence[Panel] = ()
    bars: Sequence[Bar] = ()


def path_of(points: Sequence[Point]) -> str:
    """Straight lines from point to point."""
    return "M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in points)


def steps_of(points: Sequence[Point], *, end: float = 100.0) -> str:
    """A staircase that goes on to the right before it goes up, to `end`."""
    parts = [f"M{points[0][0]:.2f} {points[0][1]:.2f}"]
    parts += [f"H{x:.2f}V{y:.2f}" for x, y in points[1:]]
    return "".join([*parts, f"H{end:.2f}"])


def thinned(marks: Sequence[Mark]) -> list[Mark]:
    """At most `MOST_MARKS`, in their order: all of rare tones, and of the others every so many."""
    if len(marks) <= MOST_MARKS:
        return list(marks)
    counts = Counter(mark.tone for mark in marks)
    share = MOST_MARKS / len(counts)
    drawn: list[Mark] = []
    for tone, count in counts.items():
        of_tone = [mark for mark in marks if mark.tone == tone]
        every = max(1, math.ceil(count / share))
        drawn += of_tone[::every]
    return drawn
