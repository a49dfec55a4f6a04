"""Figures, and the Pareto front of samples/s against peak memory with the rule that picks of it.

The rule, also in `docs/search.md`: scale the front so that its slowest point is 0 and its fastest
1, its smallest peak 0 and its largest 1; the best is the point with the largest difference of the
two, the knee. There a further byte stops paying off; the faster point wins a tie, so the fast one
of a front of two points.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

RULE = (
    "the knee of the front: the point whose samples/s, as a share of the front's range, are "
    "furthest above its peak memory, as a share of the front's range; the faster of equals"
)
"""What `best` means with the Pareto objective, for the answer."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What a candidate achieves, from one trial or from several."""

    samples_per_s: float
    low: float
    """Lower end of the 95% prediction interval: where a re-run would be."""
    high: float
    peak_memory_bytes: int | None
    """None where the device's meter said nothing; such a candidate is taken to fit."""
    n_disturbed: int = 0
    """Runs behind it that something else on the machine disturbed."""

    def overlaps(self, other: "Figure") -> bool:
        """Whether the intervals have a rate in common: then nobody knows which is faster."""
        return self.low <= other.high and other.low <= self.high


def peak_of(figure: Figure) -> float:
    """Peak bytes; infinite where the meter said nothing."""
    return float("inf") if figure.peak_memory_bytes is None else figure.peak_memory_bytes


def front_of(figures: Mapping[str, Figure]) -> list[str]:
    """Keys of the figures that no other beats in both respects, fastest first.

    The first of equal figures stands for all. Figures without a peak are left out where there is
    one with a peak.
    """
    known = {key: f for key, f in figures.items() if f.peak_memory_bytes is not None} or figures
    order = sorted(known, key=lambda key: (-known[key].samples_per_s, peak_of(known[key])))
    front: list[str] = []
    for key in order:
        if not front or peak_of(known[key]) < peak_of(known[front[-1]]):
            front.append(key)
    return front


def knee(figures: Mapping[str, Figure], everyone: Mapping[str, Figure]) -> str:
    """The key of the best of `figures` by `RULE`, on the scale of everyone's front.

    Args:
        figures: To choose from; at least one.
        everyone: The figures of the front: `figures` and others.
    """
    front = front_of(everyone)
    scaled = _Scale(front, everyone)
    eligible = [key for key in front if key in figures] or front_of(figures)
    return max(eligible, key=lambda key: (scaled.score(key), everyone[key].samples_per_s))


def nearest_on_front(best: str, figures: Mapping[str, Figure]) -> list[str]:
    """The front by distance from one of its points, that point first."""
    front = front_of(figures)
    scaled = _Scale(front, figures)
    return sorted(front, key=lambda key: (key != best, scaled.distance(key, best)))


class _Scale:
    """Both axes of a front from 0 to 1."""

    def __init__(self, front: list[str], figures: Mapping[str, Figure]) -> None:
        self._figures = figures
        rates = [figures[key].samples_per_s for key in front]
        peaks = [peak_of(figures[key]) for key in front]
        self._slowest, self._rates = min(rates), max(rates) - min(rates)
        # A front without peaks is one point, the fastest.
        self._smallest, self._peaks = min(peaks), max(peaks) - min(peaks) if len(front) > 1 else 0

    def score(self, key: str) -> float:
        rate, peak = self._at(key)
        return rate - peak

    def distance(self, key: str, other: str) -> float:
        (rate, peak), (other_rate, other_peak) = self._at(key), self._at(other)
        return math.hypot(rate - other_rate, peak - other_peak)

    def _at(self, key: str) -> tuple[float, float]:
        figure = self._figures[key]
        rate = (figure.samples_per_s - self._slowest) / self._rates if self._rates else 0.0
        peak = (peak_of(figure) - self._smallest) / self._peaks if self._peaks else 0.0
        return rate, peak
