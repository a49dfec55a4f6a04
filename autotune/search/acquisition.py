"""What is believed of candidates after some trials, and which of them is tried next.

One posterior serves a search whole: it predicts single trials, prices the memory of a baseline's
ladder, chooses the next candidate and says what another trial is expected to gain.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.cost.forecast import Forecast, SeenErrors, Shot
from autotune.cost.normal import Floats, below, log_expected_gain
from autotune.cost.residual import (
    MEMORY_PRIOR,
    TIME_PRIOR,
    Calibration,
    ErrorFits,
    Seen,
    calibrate,
    learn,
)

Flags = NDArray[np.bool_]

FIRST_RISK = 0.35
"""Highest P(out of memory) of a candidate that is tried while nothing ran."""
RISK_PER_RUN = 0.1
"""Rise of that limit with each trial that ran: the estimate is better known, and what can be
gained without risk has mostly been gained."""
LAST_RISK = 0.8
"""Highest P(out of memory), however many ran; candidates are still weighed by P(fits)."""
_ROUNDING = 1e-9
"""Log peaks that differ by less are one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Candidates as they are expected to be, by a forecast and the errors that trials saw."""

    forecast: Forecast
    tried: Forecast
    """The forecast of what the trials of this search ran, one each."""
    shots: Sequence[Shot] = ()
    """Those trials."""
    known: SeenErrors | None = None
    """Errors of the forecast that other trials saw."""
    variation: float = 0.0
    """Deviation of log seconds by choices that the forecast does not know: they are made after a
    candidate was chosen."""

    @cached_property
    def _errors(self) -> SeenErrors:
        own = self.tried.errors(self.shots)
        return own if self.known is None else own.join(self.known)

    @cached_property
    def _time_fits(self) -> ErrorFits:
        return learn(self._errors.times, TIME_PRIOR)

    @cached_property
    def _memory_fits(self) -> ErrorFits:
        return learn(self._errors.peaks, MEMORY_PRIOR)

    @cached_property
    def time(self) -> Calibration:
        """Belief about the error of the seconds."""
        return self._time_fits.at(self.forecast.features)

    @cached_property
    def memory(self) -> Calibration:
        """Belief about the error of the peak."""
        return self._memory_fits.at(self.forecast.peak_features)

    @cached_property
    def log_seconds(self) -> Floats:
        """Calibrated, by candidate."""
        return np.asarray(np.log(self.forecast.seconds) + self.time.mean)

    @cached_property
    def log_peak(self) -> Floats:
        """Calibrated, by candidate."""
        assert self.forecast.peak_bytes is not None, "asked for only where memory decides"
        return np.asarray(np.log(self.forecast.peak_bytes) + self.memory.mean)

    @cached_property
    def overrun(self) -> Floats:
        """By how many deviations a peak is expected above the limit, by candidate.

        It tells candidates apart whose risk is 1 to all digits.
        """
        limit_bytes = self.forecast.limit_bytes
        if limit_bytes is None or self.forecast.peak_bytes is None:
            return np.full(len(self.forecast), -np.inf)
        return (self.log_peak - math.log(limit_bytes)) / self.memory.deviation

    @cached_property
    def risk(self) -> Floats:
        """P(out of memory), by candidate."""
        return below(self.overrun)

    @cached_property
    def deviation(self) -> Floats:
        """Deviation of log seconds; trials in flight count as if they ran as is expected."""
        running = np.flatnonzero([shot.is_running for shot in self.shots])
        if not len(running):
            return self.time.deviation
        at = self.tried.features.take(running)
        seen = self._errors.times.join(Seen.here(at, self._time_fits.at(at).mean))
        return calibrate(self.forecast.features, seen, TIME_PRIOR).deviation

    def choose(self, is_open: Flags) -> int:
        """The row to try next.

        Among the open candidates whose risk is allowed, it has the highest expected gain in log
        seconds over the best so far (Jones, Schonlau and Welch, Efficient Global Optimization,
        1998) times P(fits); before anything was measured, the lowest forecast. If all are too
        risky, it is the least risky one.

        Args:
            is_open: By row; at least one is.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            left = is_open & ~self.is_dropped
            left = left if left.any() else is_open
            return int(np.argmin(np.where(left, self.overrun, np.inf)))
        score, rows = self._gain(), np.flatnonzero(allowed)
        return int(rows[np.argmax(score[rows])])

    def expected_gain(self, is_open: Flags) -> float:
        """Expected gain of the next trial over the best seconds so far, as a share of them.

        Returns:
            0 where no row is open that may be tried; infinity while nothing was measured.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            return 0.0
        return float(np.exp(self._gain()[allowed].max())) if self.n_measured else math.inf

    @property
    def n_measured(self) -> int:
        """Trials of this search that were measured."""
        return sum(shot.seconds is not None for shot in self.shots)

    @property
    def allowed_risk(self) -> float:
        """How risky a candidate may be; it loosens as trials run."""
        return min(LAST_RISK, FIRST_RISK + RISK_PER_RUN * self.n_measured)

    @cached_property
    def is_dropped(self) -> Flags:
        """Rows that need more memory, by estimate, than one that ran out of it."""
        lost = np.flatnonzero([shot.is_out_of_memory for shot in self.shots])
        if not len(lost) or self.forecast.peak_bytes is None or self.tried.peak_bytes is None:
            return np.zeros(len(self.forecast), bool)
        error = self._memory_fits.at(self.tried.peak_features.take(lost)).mean
        least = (np.log(self.tried.peak_bytes[lost]) + error).min()
        return np.asarray(self.log_peak >= least - _ROUNDING)

    def _allowed(self, is_open: Flags) -> Flags:
        """Open rows that fit surely enough to be tried."""
        fits = ~self.is_dropped & (self.risk <= self.allowed_risk)
        return np.asarray(is_open & fits)

    def _gain(self) -> Floats:
        """log(expected gain x P(fits)), by row."""
        measured = [math.log(shot.seconds) for shot in self.shots if shot.seconds is not None]
        fits = np.log(np.maximum(1 - self.risk, 1e-12))
        if not measured:
            return np.asarray(fits - self.log_seconds)
        deviation = np.hypot(self.deviation, self.variation)
        z = (min(measured) - self.log_seconds) / deviation
        return np.asarray(np.log(deviation) + log_expected_gain(z) + fits)
