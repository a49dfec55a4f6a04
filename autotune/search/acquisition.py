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

from autotune.cost.forecast import Forecast
from autotune.cost.knowledge import Recalled
from autotune.cost.normal import below, log_expected_gain
from autotune.cost.residual import (
    MEMORY_PRIOR,
    TIME_PRIOR,
    Calibration,
    Features,
    Seen,
    calibrate,
    learn,
)

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

FIRST_RISK = 0.35
"""Highest P(out of memory) of a candidate that is tried while nothing ran."""
RISK_PER_RUN = 0.1
"""Rise of that limit with each trial that ran: the estimate is better known, and what can be
gained without risk has mostly been gained."""
LAST_RISK = 0.8
"""Highest P(out of memory), however many ran; candidates are still weighed by P(fits)."""
EXPLORE_EVERY = 8
"""Every so many trials, one goes where the forecast is least certain, not where it is best."""


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A trial of one candidate, as far as its forecast can learn from it."""

    row: int
    seconds: float | None = None
    """Measured, in the forecast's unit; None: nothing was."""
    peak_bytes: float | None = None
    is_out_of_memory: bool = False
    is_running: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Posterior:
    """Candidates as they are expected to be, by a forecast and the errors that trials saw."""

    forecast: Forecast
    shots: Sequence[Shot] = ()
    """Trials of this search."""
    known: Recalled | None = None
    """Errors of the forecast that other trials saw."""
    of_shots: Forecast | None = None
    """The forecast of what the trials ran; None: they are of these candidates."""
    n_beside: int = 0
    """Trials of this search besides the shots: those of reduced candidates."""
    variation: float = 0.0
    """Deviation of log seconds by choices that the forecast does not know: they are made after a
    candidate was chosen."""

    @cached_property
    def time(self) -> Calibration:
        """Belief about the error of the seconds."""
        return learn(self._seen_seconds, TIME_PRIOR).at(self.forecast.features)

    @cached_property
    def memory(self) -> Calibration:
        """Belief about the error of the peak."""
        seen = seen_peaks(self.of_shots or self.forecast, self.shots)
        seen = seen if self.known is None else Seen.join(seen, self.known.peaks)
        return learn(seen, MEMORY_PRIOR).at(memory_features(self.forecast))

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
        running = _rows([shot for shot in self.shots if shot.is_running])
        if not len(running):
            return self.time.deviation
        features = self.forecast.features
        pretended = Seen.here(features.take(running), self.time.mean[running])
        seen = Seen.join(self._seen_seconds, pretended)
        return calibrate(features, seen, TIME_PRIOR).deviation

    def choose(self, is_open: Flags) -> int:
        """The row to try next.

        Among the open candidates whose risk is allowed, it has the highest expected gain in log
        seconds over the best so far (Jones, Schonlau and Welch, Efficient Global Optimization,
        1998) times P(fits); before anything was measured, the lowest forecast. If all are too
        risky, it is the least risky one.

        Args:
            is_open: By row, at least one is; those behind the last are not.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            is_open = self._padded(is_open)
            left = is_open & ~self.is_dropped
            left = left if left.any() else is_open
            return int(np.argmin(np.where(left, self.overrun, np.inf)))
        n_tried = len(self.shots) + self.n_beside
        score = self._gain()
        if n_tried % EXPLORE_EVERY == EXPLORE_EVERY - 1:
            # To explore is to go by how little is known of a row; among equals the faster.
            score = self.deviation - 1e-3 * (self.log_seconds - self.log_seconds.min())
        rows = np.flatnonzero(allowed)
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
        lost = _rows([shot for shot in self.shots if shot.is_out_of_memory])
        if not len(lost) or self.forecast.peak_bytes is None:
            return np.zeros(len(self.forecast), bool)
        return np.asarray(self.log_peak >= self.log_peak[lost].min())

    @cached_property
    def _seen_seconds(self) -> Seen:
        """Errors of the seconds, one by one."""
        seen = seen_times(self.of_shots or self.forecast, self.shots)
        return seen if self.known is None else Seen.join(seen, self.known.times)

    def _padded(self, is_open: Flags) -> Flags:
        return np.append(is_open, np.zeros(len(self.forecast) - len(is_open), bool))

    def _allowed(self, is_open: Flags) -> Flags:
        """Open rows that fit surely enough to be tried."""
        fits = ~self.is_dropped & (self.risk <= self.allowed_risk)
        return np.asarray(self._padded(is_open) & fits)

    def _gain(self) -> Floats:
        """log(expected gain x P(fits)), by row."""
        measured = [math.log(shot.seconds) for shot in self.shots if shot.seconds is not None]
        fits = np.log(np.maximum(1 - self.risk, 1e-12))
        if not measured:
            return np.asarray(fits - self.log_seconds)
        deviation = np.hypot(self.deviation, self.variation)
        z = (min(measured) - self.log_seconds) / deviation
        return np.asarray(np.log(deviation) + log_expected_gain(z) + fits)


def seen_times(forecast: Forecast, shots: Sequence[Shot]) -> Seen:
    """Errors of the forecast's seconds."""
    timed = [shot for shot in shots if shot.seconds is not None]
    rows = _rows(timed)
    measured = np.log([shot.seconds or 1.0 for shot in timed])
    return Seen.here(forecast.features.take(rows), measured - np.log(forecast.seconds[rows]))


def seen_peaks(forecast: Forecast, shots: Sequence[Shot]) -> Seen:
    """Errors of its peaks; an unknown peak is above or below the limit."""
    assert forecast.peak_bytes is not None, "asked for only where memory decides"
    telling = [
        shot
        for shot in shots
        if shot.peak_bytes is not None or shot.is_out_of_memory or shot.seconds is not None
    ]
    rows = _rows(telling)
    reached = np.log([shot.peak_bytes or forecast.limit_bytes or 1.0 for shot in telling])
    return Seen.here(
        memory_features(forecast).take(rows),
        reached - np.log(forecast.peak_bytes[rows]),
        [_side_of(shot) for shot in telling],
    )


def memory_features(forecast: Forecast) -> Features:
    """Candidates as the error of the peak sees them."""
    return forecast.memory_features or forecast.features


def _rows(shots: Sequence[Shot]) -> NDArray[np.intp]:
    return np.array([shot.row for shot in shots], dtype=np.intp)


def _side_of(shot: Shot) -> float:
    """The side on which the trial's error lies, as in `Seen.side`."""
    if shot.peak_bytes is not None:
        return 0.0
    return 1.0 if shot.is_out_of_memory else -1.0
