"""Where a value stands on an axis, in per cent of it, and the round values that label the axis."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
        return [Tick(at=self.at(v), text=f"{_spelled(v)}{unit}") for v in self._round_values(n)]

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


def _spelled(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.6g}"
