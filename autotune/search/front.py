"""Figures, and the Pareto front of samples/s against peak memory with the rule that picks of it.

The rule, also in `docs/search.md`: scale the front so that its slowest point is 0 and its fastest
1, its smallest peak 0 and its largest 1; the best is the point with the largest difference of the
two, the knee. There a further byte stops paying off; the faster point wins a tie, so the fast one
of a front of two points.
"""

import math
from collections.abc import Mapping

from autotune.record.answer import Standing

RULE = (
    "the knee of the front: the point whose samples/s, as a share of the front's range, are "
    "furthest above its peak memory, as a share of the front's range; the faster of equals"
)
"""Meaning of `best` with the Pareto objective, for the answer."""


def peak_of(figure: Standing) -> float:
    """Peak bytes; infinite where the meter said nothing."""
    return float("inf") if figure.peak_memory_bytes is None else figure.peak_memory_bytes


def front_of(figures: Mapping[str, Standing]) -> list[str]:
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


def knee(figures: Mapping[str, Standing], everyone: Mapping[str, Standing]) -> str:
    """The key of the best of `figures` by `RULE`, on the scale of everyone's front."""
    front = front_of(everyone)
    at = _scaled(front, everyone)
    eligible = [key for key in front if key in figures] or front_of(figures)
    return max(eligible, key=lambda key: (at[key][0] - at[key][1], everyone[key].samples_per_s))


def nearest_on_front(best: str, figures: Mapping[str, Standing]) -> list[str]:
    """The front by distance from one of its points, that point first."""
    front = front_of(figures)
    at = _scaled(front, figures)
    return sorted(front, key=lambda key: (key != best, math.dist(at[key], at[best])))


def _scaled(front: list[str], figures: Mapping[str, Standing]) -> dict[str, tuple[float, float]]:
    """The figures with both axes of the front, rate and peak, from 0 to 1."""
    rates = [figures[key].samples_per_s for key in front]
    peaks = [peak_of(figures[key]) for key in front]
    # A front without peaks is one point, the fastest.
    range_of_peaks = max(peaks) - min(peaks) if len(front) > 1 else 0
    range_of_rates = max(rates) - min(rates)
    return {
        key: (
            (figure.samples_per_s - min(rates)) / range_of_rates if range_of_rates else 0.0,
            (peak_of(figure) - min(peaks)) / range_of_peaks if range_of_peaks else 0.0,
        )
        for key, figure in figures.items()
    }
