"""The choice of the next candidate, by a forecast that is calibrated with measurements."""

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
    ErrorFits,
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
class SeenErrors:
    """Errors of the forecast that trials saw, here and elsewhere."""

    forecast: Forecast
    """Forecast of the shots' candidates."""
    shots: Sequence[Shot]
    known: Recalled | None

    @cached_property
    def seconds(self) -> Seen:
        """Those of the seconds, one by one."""
        seen = seen_times(self.forecast, self.shots)
        return seen if self.known is None else Seen.join(seen, self.known.times)

    @cached_property
    def times(self) -> ErrorFits:
        """Those of the seconds, fitted."""
        return learn(self.seconds, TIME_PRIOR)

    @cached_property
    def peaks(self) -> ErrorFits:
        """Those of the peaks, fitted."""
        seen = seen_peaks(self.forecast, self.shots)
        return learn(
            seen if self.known is None else Seen.join(seen, self.known.peaks), MEMORY_PRIOR
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Chooser:
    """The calibrated forecast at one moment of a search."""

    forecast: Forecast
    shots: Sequence[Shot]
    known: Recalled | None = None
    """Errors of the forecast that others saw."""
    n_beside: int = 0
    """Trials of this search besides the shots: those of reduced candidates."""
    variation: float = 0.0
    """Deviation of log seconds by choices that the forecast does not know: they are made after a
    candidate was chosen."""

    def choose(self, is_open: Flags) -> int:
        """The row to try next.

        Among the open candidates whose risk is allowed, it has the highest expected gain in log
        seconds over the best so far (Jones, Schonlau and Welch, Efficient Global Optimization,
        1998) times P(fits); before anything was measured, the lowest forecast. If all are too
        risky, it is the least risky one.

        Args:
            is_open: By row; at least one is.
        """
        return self.rank(is_open, 1)[0]

    def rank(self, is_open: Flags, most: int) -> list[int]:
        """At most so many rows, to be tried one after the other by what is known now.

        Args:
            is_open: As of `choose`, whose row comes first.
            most: At least 1.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            kept = is_open & ~self.is_dropped
            kept = kept if kept.any() else is_open
            return [int(np.argmin(np.where(kept, self._overrun, np.inf)))]
        n_tried = len(self.shots) + self.n_beside
        most = min(most, int(allowed.sum()))
        turns = [n % EXPLORE_EVERY == EXPLORE_EVERY - 1 for n in range(n_tried, n_tried + most)]
        orders = {explores: iter(self._ordered(allowed, explores)) for explores in {*turns}}
        found: dict[int, None] = {}
        for explores in turns:
            found[next(row for row in orders[explores] if row not in found)] = None
        return list(found)

    def _ordered(self, allowed: Flags, explores: bool) -> list[int]:
        """The rows that are allowed, the one to be tried first at the beginning."""
        # To explore is to go by how little is known of a row; among equals the faster.
        score = (
            self.time.deviation - 1e-3 * (self.log_seconds - self.log_seconds.min())
            if explores
            else self._gain()
        )
        order = np.argsort(-score, kind="stable")
        rows: list[int] = order[allowed[order]].tolist()
        return rows

    def expected_gain(self, is_open: Flags) -> float:
        """Expected gain of the next trial over the best seconds so far, as a share of them.

        Returns:
            0 where no row is open that may be tried; infinity while nothing was measured.
        """
        allowed = self._allowed(is_open)
        if not allowed.any():
            return 0.0
        if not self._measured:
            return math.inf
        return float(np.exp(self._gain()[allowed].max()))

    @cached_property
    def time(self) -> Calibration:
        """Belief about the error of the seconds.

        Trials in flight count as if they measured what is expected.
        """
        features = self.forecast.features
        believed = self._errors.times.at(features)
        running = _rows([shot for shot in self.shots if shot.is_running])
        if not len(running):
            return believed
        pretended = Seen.here(features.take(running), believed.mean[running])
        with_them = calibrate(features, Seen.join(self._errors.seconds, pretended), TIME_PRIOR)
        return Calibration(mean=believed.mean, deviation=with_them.deviation)

    @cached_property
    def memory(self) -> Calibration:
        """Belief about the error of the peak."""
        return self._errors.peaks.at(memory_features(self.forecast))

    @cached_property
    def _errors(self) -> SeenErrors:
        return SeenErrors(forecast=self.forecast, shots=self.shots, known=self.known)

    @cached_property
    def log_seconds(self) -> Floats:
        """Calibrated, by row."""
        return np.asarray(np.log(self.forecast.seconds) + self.time.mean)

    @cached_property
    def log_peak(self) -> Floats:
        """Calibrated, by row."""
        assert self.forecast.peak_bytes is not None, "asked for only where memory decides"
        return np.asarray(np.log(self.forecast.peak_bytes) + self.memory.mean)

    @cached_property
    def risk(self) -> Floats:
        """P(out of memory), by row."""
        return below(self._overrun)

    @property
    def allowed_risk(self) -> float:
        """How risky a candidate may be; it loosens as trials run."""
        n_ran = sum(shot.seconds is not None for shot in self.shots)
        return min(LAST_RISK, FIRST_RISK + RISK_PER_RUN * n_ran)

    @cached_property
    def is_dropped(self) -> Flags:
        """Rows that need more memory, by estimate, than one that ran out of it."""
        lost = _rows([shot for shot in self.shots if shot.is_out_of_memory])
        if not len(lost) or self.forecast.peak_bytes is None:
            return np.zeros(len(self.forecast), bool)
        return np.asarray(self.log_peak >= self.log_peak[lost].min())

    def _allowed(self, is_open: Flags) -> Flags:
        """Open rows that fit surely enough to be tried."""
        return np.asarray(is_open & ~self.is_dropped & (self.risk <= self.allowed_risk))

    @property
    def _measured(self) -> list[float]:
        """Logarithms of what was measured."""
        return [math.log(shot.seconds) for shot in self.shots if shot.seconds is not None]

    def _gain(self) -> Floats:
        """log(expected gain x P(fits)), by row."""
        measured = self._measured
        fits = np.log(np.maximum(1 - self.risk, 1e-12))
        if not measured:
            return np.asarray(fits - self.log_seconds)
        deviation = np.hypot(self.time.deviation, self.variation)
        z = (min(measured) - self.log_seconds) / deviation
        return np.asarray(np.log(deviation) + log_expected_gain(z) + fits)

    @cached_property
    def _overrun(self) -> Floats:
        """By how many deviations a peak is expected above the limit, by row.

        It tells rows apart whose risk is 1 to all digits.
        """
        limit_bytes = self.forecast.limit_bytes
        if limit_bytes is None or self.forecast.peak_bytes is None:
            return np.full(len(self.forecast), -np.inf)
        return (self.log_peak - math.log(limit_bytes)) / self.memory.deviation


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
