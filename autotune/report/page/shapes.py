"""What the page's charts are made of: marks, lines and bars in the units of their axes.

The page places them in per cent of their plot. So a chart has the width of the screen and its text
keeps its size. A tone is the name of a colour of the page's style sheet, which has one for each
theme.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.record.answer import Standing

Symbol = Literal["line", "dashes", "block"]
Ends = tuple[float, float]
"""Ends of an interval."""
MOST_MARKS = 200
"""Marks of one chart: more of them hide each other."""


_ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)
"""First digits that a step between two labels may have."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A label of an axis."""

    at: float
    """Per cent of the axis."""
    text: str


@dataclass(frozen=True, kw_only=True)
class PlotScale:
    """A linear axis."""

    low: float
    high: float

    def at(self, value: float) -> float:
        """Position of a value, in per cent of the axis; what lies beyond it stands at its end."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self, n: int = 5, *, unit: str = "") -> list[Tick]:
        """About `n` round values, each with the unit behind it."""
        values = [(v, ",.0f" if abs(v) >= 10_000 else ".6g") for v in self._round_values(n)]
        return [Tick(at=self.at(v), text=f"{v:{form}}{unit}") for v, form in values]

    def _round_values(self, n: int) -> list[float]:
        raw = (self.high - self.low) / max(1, n)
        if not 0 < raw < math.inf:
            return [self.low]
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(first * power for first in _ROUND if first * power >= raw * 0.999)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [round(step * i, 12) for i in range(first, last + 1)]


def scale_of(values: Iterable[float], *, zero: bool = False, margin: float = 0.06) -> PlotScale:
    """An axis on which all values fit; with `zero` it begins there."""
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    room = margin * (high - low or abs(high) or 1.0)
    return PlotScale(low=0.0 if zero else low - room, high=high + room)


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One figure of a plot."""

    x: float
    y: float
    tone: str
    tip: str
    """What a pointer on it reads."""
    ends: Ends | None = None
    """Its interval; None: it has none."""
    trial: int | None = None
    """Trial that a click opens; None: there is none."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line from point to point, or an area."""

    points: Sequence[tuple[float, float]]
    tone: str
    is_dashed: bool = False
    is_filled: bool = False
    is_staircase: bool = False
    """Whether it goes on to the right before it goes up, to the end of the plot."""


@dataclass(frozen=True, kw_only=True)
class LegendEntry:
    """An entry of a legend."""

    text: str
    tone: str
    symbol: Symbol | None = None
    """None: that of its tone's marks."""


@dataclass(frozen=True, kw_only=True)
class ColumnPart:
    """A part of a column, between two heights."""

    x: float
    width: float
    ends: Ends
    tone: str
    tip: str
    trial: int


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    y_title: str
    x: PlotScale
    y: PlotScale
    y_ticks: Sequence[Tick]
    x_ticks: Sequence[Tick] = ()
    height: int = 300
    """Pixels."""
    lines: Sequence[Curve] = ()
    marks: Sequence[Mark] = ()
    blocks: Sequence[ColumnPart] = ()

    def down(self, value: float) -> float:
        """Place of a value in per cent from the top."""
        return round(100 - self.y.at(value), 2)

    def path(self, curve: Curve) -> str:
        """A curve as SVG draws it, over 100 by 100 units."""
        points = [(self.x.at(x), self.down(y)) for x, y in curve.points]
        if not curve.is_staircase:
            line = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
            return f"M{line}Z" if curve.is_filled else f"M{line}"
        (x, y), *others = points
        steps = "".join(f"H{x:.2f}V{y:.2f}" for x, y in others)
        return f"M{x:.2f} {y:.2f}{steps}H100"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A row of a chart of bars: a figure with its interval."""

    label: str
    standing: Standing
    tone: str


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
    scale: PlotScale | None = None
    """The axis of the bars."""


def thinned(marks: Sequence[Mark]) -> list[Mark]:
    """At most `MOST_MARKS`, in their order: all of rare tones, and of the others every so many."""
    if len(marks) <= MOST_MARKS:
        return list(marks)
    counts = Counter(mark.tone for mark in marks)
    share = MOST_MARKS / len(counts)
    drawn: list[Mark] = []
    for tone, count in counts.items():
        of_tone = [mark for mark in marks if mark.tone == tone]
        drawn += of_tone[:: max(1, math.ceil(count / share))]
    return drawn
