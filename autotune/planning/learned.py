"""Predictions corrected by trials that ran on the same devices, as a search corrects its own."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autotune.cost.constants import Constants
from autotune.cost.errors import Margin
from autotune.cost.forecast import SeenErrors, forecast_of
from autotune.cost.knowledge import Lesson, Situation, is_of_job, recall_lessons
from autotune.cost.plans import Plans
from autotune.cost.predict import Prediction
from autotune.cost.residual import (
    MEMORY_PRIOR,
    MEMORY_VARIATION,
    TIME_PRIOR,
    VARIATION,
    Calibration,
    calibrate,
    reach_of,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Learned:
    """What trials taught of the model's errors on these devices."""

    recalled: SeenErrors
    n_here: int
    """Trials of the same job; 0: all are of others."""

    @property
    def n_trials(self) -> int:
        return self.recalled.n_trials

    def correct(self, prediction: Prediction) -> tuple[Prediction, Margin]:
        """Predictions as the trials correct them, and how far measured figures may be from them.

        Parts of the step and of the peak stay as the model has them.
        """
        which = _Kinds.of(prediction)
        known = forecast_of(prediction.take(which.first))
        times = which.spread(calibrate(known.features, self.recalled.times, TIME_PRIOR))
        peaks = which.spread(calibrate(known.peak_features, self.recalled.peaks, MEMORY_PRIOR))
        peak_bytes = prediction.peak_memory_bytes * np.exp(peaks.mean)
        run = math.hypot(VARIATION, TIME_PRIOR.noise.median)
        n_times, n_peaks = (
            int(np.sum((of.study == 0) & (of.side == 0)))
            for of in (self.recalled.times, self.recalled.peaks)
        )
        margin = Margin.alike(
            reach_of(times.deviation, run, n_measured=n_times),
            reach_of(peaks.deviation, MEMORY_VARIATION, n_measured=n_peaks),
        )
        corrected = dataclasses.replace(
            prediction,
            step_time_s=prediction.step_time_s * np.exp(times.mean),
            peak_memory_bytes=peak_bytes,
            host_memory_bytes=prediction.host_memory_bytes * np.exp(peaks.mean),
        )
        return margin.judge(corrected), margin


def learned_from(
    lessons: Sequence[Lesson], *, situation: Situation, job: Plans, constants: Constants
) -> Learned | None:
    """What lessons say of a job on these devices; None where none of them ran there.

    Args:
        lessons: Of all studies.
        situation: Of the job.
        job: Any candidate of it.
        constants: Of the model.
    """
    same = [lesson for lesson in lessons if lesson.situation.device == situation.device]
    recalled = recall_lessons(same, situation=situation, study="", constants=constants, job=job)
    if recalled is None:
        return None
    n_here = sum(is_of_job(lesson, job, situation) for lesson in same)
    return Learned(recalled=recalled, n_here=n_here)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kinds:
    """Candidates of which the same is predicted: of millions, few differ to the model."""

    first: NDArray[np.intp]
    """One candidate of each kind."""
    kind: NDArray[np.intp]
    """By candidate."""

    @classmethod
    def of(cls, prediction: Prediction) -> Self:
        figures = np.stack([prediction.step_time_s, prediction.peak_memory_bytes], axis=1)
        whole = np.ascontiguousarray(figures).view(np.dtype((np.void, 16))).ravel()
        _, first, kind = np.unique(whole, return_index=True, return_inverse=True)
        return cls(first=first, kind=kind)

    def spread(self, believed: Calibration) -> Calibration:
        """The belief about every candidate, of one about each kind."""
        return Calibration(mean=believed.mean[self.kind], deviation=believed.deviation[self.kind])
