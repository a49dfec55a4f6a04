"""The order of candidates: feasible or not, better or worse; for sampler and report alike.

Figures, and the Pareto front of samples/s against peak memory with the rule that picks of it.

The rule, also in `docs/search.md`: scale the front so that its slowest point is 0 and its fastest
1, its smallest peak 0 and its largest 1; the best is the point with the largest difference of the
two, the knee. There a further byte stops paying off; the faster point wins a tie, so the fast one
of a front of two points.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.contract import METER_SLACK, Outcome
from autotune.devices.hardware import Environment
from autotune.job.job import Job, ObjectiveWish
from autotune.record.answer import Standing
from autotune.search.history import CandidateTrials, History

LOSING_SHARE = 0.6
"""Share of the best samples/s so far: what cannot reach it is not worth measuring any longer."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The job's objective with its memory limit."""

    wish: ObjectiveWish
    allowed_bytes: float
    """Per device: the limit less the head room."""

    @classmethod
    def of(cls, job: Job, environment: Environment) -> "Objective":
        limit_bytes = job.memory_limit_bytes or environment.device_memory_bytes
        return cls(wish=job.objective, allowed_bytes=limit_bytes * (1 - job.head_room))

    def fits(self, peak_memory_bytes: int | None) -> bool:
        """Whether a peak keeps within what is allowed; an unknown one is taken to."""
        return peak_memory_bytes is None or self._over_memory(peak_memory_bytes) <= 0

    def _over_memory(self, peak_memory_bytes: int) -> float:
        """How far a peak is above what is allowed, as a share; at most 0: it keeps within."""
        return peak_memory_bytes / (self.allowed_bytes * (1 + METER_SLACK)) - 1

    def figure(self, tried: CandidateTrials) -> Standing | None:
        """The candidate's figure from its own trial; None unless it ran and is feasible.

        One run that failed or broke the limit is enough: it would happen to the user as well.
        """
        is_sound = tried.fault is None and self.fits(tried.peak_memory_bytes)
        return tried.own_figure if is_sound else None

    def figures(self, history: History) -> Mapping[str, Standing]:
        figures = ((t.candidate.hash, self.figure(t)) for t in history.tried)
        return history.once(("figures", self), lambda: {k: f for k, f in figures if f is not None})

    def losing_step_time_s(self, history: History, global_batch: int) -> float | None:
        """The step time above which a trial has clearly lost, for it to stop early; None: never.

        The optimistic end of its prediction interval is then under `LOSING_SHARE` of the best
        samples/s so far. Where memory is minimised, the floor of samples/s takes the place of that
        share if it is lower; on a front of speed against memory a slow candidate may stand.
        """
        if self.wish.name == "pareto":
            return None
        figures = self.figures(history)
        if not figures:
            return None
        share = min(LOSING_SHARE, self.wish.floor if self.wish.name == "peak_memory" else 1.0)
        slowest = share * max(figure.samples_per_s for figure in figures.values())
        return global_batch / slowest * math.exp(history.spread.half_width())

    @property
    def directions(self) -> tuple[Literal["maximize", "minimize"], ...]:
        """Directions of `values`, in Optuna's words."""
        if self.wish.name == "pareto":
            return ("maximize", "minimize")
        return ("maximize",) if self.wish.name == "samples_per_s" else ("minimize",)

    def best(
        self, figures: Mapping[str, Standing], *, beside: Mapping[str, Standing] | None = None
    ) -> str | None:
        """The key of the best figure; the first of equals.

        Those `beside` cannot be chosen but are part of the front (Pareto objective).
        """
        if not figures:
            return None
        if self.wish.name == "pareto":
            return knee(figures, {**(beside or {}), **figures})
        fastest = max(figures, key=lambda key: figures[key].log_rate)
        if self.wish.name == "samples_per_s":
            return fastest
        floor = self.wish.floor * figures[fastest].samples_per_s
        fast = [key for key, figure in figures.items() if figure.samples_per_s >= floor]
        return min(fast, key=lambda key: peak_of(figures[key]))

    def contenders(self, figures: Mapping[str, Standing]) -> list[str]:
        """Keys of the figures that could be the best one, given their intervals; best first.

        For samples/s they are those whose interval overlaps the best's. For the lowest memory they
        are the fastest (it sets the floor), the best, and those with less memory whose interval
        reaches the floor. For the Pareto objective they are the front, nearest the best first.
        """
        best = self.best(figures)
        if best is None:
            return []
        if self.wish.name == "pareto":
            return nearest_on_front(best, figures)
        if self.wish.name == "samples_per_s":
            near = [key for key in figures if figures[key].overlaps(figures[best])]
            return sorted(near, key=lambda key: (key != best, -figures[key].samples_per_s))
        fastest = max(figures, key=lambda key: figures[key].log_rate)
        floor = self.wish.floor * figures[fastest].samples_per_s
        smaller = [
            key
            for key in sorted(figures, key=lambda key: peak_of(figures[key]))
            if figures[key].samples_per_s_high >= floor
            and peak_of(figures[key]) < peak_of(figures[best])
        ]
        return list(dict.fromkeys([best, fastest, *smaller]))

    def leaders(self, figures: Mapping[str, Standing]) -> list[str]:
        """Keys of the figures that a search got better by: the best, or the whole front."""
        if self.wish.name == "pareto":
            return front_of(figures)
        best = self.best(figures)
        return [] if best is None else [best]

    def values(self, tried: CandidateTrials, worst_peak_bytes: float) -> list[float]:
        """Values for the sampler of a settled candidate: samples/s, peak bytes, or both.

        The worst peak stands in for a configuration without one of its own.
        """
        result = tried.measured
        rate = 0.0 if result is None else result.samples_per_s or 0.0
        peak = None if result is None else result.peak_memory_bytes
        peak_bytes = worst_peak_bytes if peak is None else float(peak)
        values = {
            "samples_per_s": [rate],
            "peak_memory": [peak_bytes],
            "pareto": [rate, peak_bytes],
        }
        return values[self.wish.name]

    def constraints(self, tried: CandidateTrials, best_samples_per_s: float) -> dict[str, float]:
        """How far a settled candidate is from feasible; 0 or less: feasible in that respect.

        Always the same names: Optuna takes a trial without a constraint for feasible. All are
        shares, so that none outweighs the others: a fault counts as one whole. Memory is that of
        all its runs, as in `figure`.
        """
        outcome = tried.fault.outcome if tried.fault is not None else Outcome.OK
        result = tried.measured
        peak = tried.peak_memory_bytes
        over_memory = 0.0 if peak is None else self._over_memory(peak)
        too_slow = 0.0
        if result is not None and self.wish.name == "peak_memory" and best_samples_per_s > 0:
            too_slow = 1 - (result.samples_per_s or 0.0) / (self.wish.floor * best_samples_per_s)
        return {
            "memory": 1.0 if outcome is Outcome.OOM else over_memory,
            "validity": float(outcome is Outcome.INVALID),
            "finiteness": float(outcome is Outcome.NONFINITE),
            "time": float(outcome is Outcome.TIMEOUT),
            "floor": too_slow,
        }


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
