"""The course of one trial's steps: when warm-up was over, and when enough has been measured.

Three stretches. The floor: the first steps, under the close watch of the memory meter, are thrown
away whatever they look like; compilation and the search for a loss scale are in it, since only
steps that the optimizer applied count. Then the meter settles, and steps are kept. `steady_from`
finds in the series itself which of these were still warm-up; they are thrown away too. All ranks
decide alike, because they are given the same times.
"""

import math

from autotune.contract import Measure
from autotune.trial.statistics import (
    MIN_SAMPLES,
    median_interval,
    n_effective,
    relative_half_width,
    steady_from,
)

_LOOK_EVERY = 0.1
"""Share by which a series grows before it is judged again: that sorts, and comes between steps."""


class Course:
    """Takes the steps after the floor, one by one, and says when there are enough of them."""

    def __init__(self, measure: Measure) -> None:
        """Begin with no step.

        A `target_half_width` of 0 (a soak) looks at no series, and goes on for the whole budget.
        """
        self._measure = measure
        self._looks_at_series = measure.target_half_width > 0
        self._times_s: list[float] = []
        self._total_s = 0.0
        self._next_look = measure.min_steps
        self.is_losing = False
        """Whether it ended because the steps are clearly slower than the spec's threshold."""

    def add(self, step_time_s: float) -> bool:
        """Take a step; return whether enough have been taken."""
        self._times_s.append(step_time_s)
        # Summed over agreed times, not read off this rank's clock: all ranks must stop together.
        self._total_s += step_time_s
        n_steps, measure = len(self._times_s), self._measure
        if n_steps < measure.min_steps:
            return False
        if n_steps >= measure.max_steps or self._total_s >= measure.budget_s:
            return True
        if not self._looks_at_series or n_steps < self._next_look:
            return False
        self._next_look = n_steps + max(1, int(n_steps * _LOOK_EVERY))
        return self._is_enough()

    @property
    def is_steady(self) -> bool:
        """True if warm-up was over before half of the steps were."""
        return not self._looks_at_series or steady_from(self._times_s) is not None

    @property
    def n_warm_up(self) -> int:
        """Steps that turned out to be warm-up: at most half, and `min_steps` are kept."""
        if not self._looks_at_series:
            return 0
        most = max(0, min(len(self._times_s) // 2, len(self._times_s) - self._measure.min_steps))
        steady = steady_from(self._times_s)
        return most if steady is None else min(most, steady)

    def _is_enough(self) -> bool:
        if not self.is_steady:
            return False
        times_s = self._times_s[self.n_warm_up :]
        if relative_half_width(times_s) <= self._measure.target_half_width:
            return True
        self.is_losing = self._loses(times_s)
        return self.is_losing

    def _loses(self, times_s: list[float]) -> bool:
        """True if even the optimistic end of the interval is too slow."""
        slowest_s = self._measure.losing_step_time_s
        if slowest_s is None or math.floor(n_effective(times_s)) < MIN_SAMPLES:
            return False
        return median_interval(times_s)[1] > slowest_s
