"""Configurations that ran in rounds, compared: what they are worth beside one another.

Each round is a block of a randomized block design (Fisher, The Design of Experiments, 1935): a
machine that slows down for minutes slows a whole round. A configuration may miss rounds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.record.answer import Speedup

FloatArray = NDArray[np.float64]
Logs = Mapping[str, Mapping[int, float]]
"""log samples/s of runs, by configuration and round."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Effects of configurations and rounds on log samples/s, by least squares."""

    names: Mapping[str, int]
    """Configuration -> its column."""
    effects: FloatArray
    covariance: FloatArray
    """Covariance of the effects where a run has the variance 1."""
    variance: float
    degrees: int
    """Degrees of freedom of the variance."""

    def gain(
        self,
        weights: Mapping[str, float],
        *,
        of_many: int = 1,
        missed: float = 2 * (1 - CONFIDENCE),
    ) -> Speedup | None:
        """Exp of a weighted sum of the configurations' log samples/s; weights add up to 0.

        `{a: 1, b: -1}` is the ratio of a to b. The interval is Student's, with the variance of all
        runs; it fails to hold in a share `missed` of cases, for `of_many` such sums at once
        (Bonferroni, as in Dunn, Multiple Comparisons Among Means, 1961), by default for this one
        alone.

        Returns:
            None where a configuration never ran, or no run is left to know the variance from.
        """
        if self.degrees < 1 or any(name not in self.names for name in weights):
            return None
        middle, error = self.contrast(weights)
        half = t_quantile(1 - missed / 2 / max(1, of_many), self.degrees) * error
        return Speedup.around(middle, half)

    def contrast(self, weights: Mapping[str, float]) -> tuple[float, float]:
        """A weighted sum of the configurations' log samples/s, and its standard error."""
        row = np.zeros(len(self.effects))
        for name, weight in weights.items():
            row[self.names[name]] += weight
        error = math.sqrt(max(0.0, float(row @ self.covariance @ row)) * self.variance)
        return float(row @ self.effects), error


def blocks_of(logs: Logs, *, tells_rounds: bool = True) -> Blocks:
    """Compare some runs; where rounds cannot be told from noise, as if all were of one round."""
    runs = [(name, log, number) for name, series in logs.items() for number, log in series.items()]
    names = {name: n for n, name in enumerate(dict.fromkeys(name for name, *_ in runs))}
    rounds = {n: len(names) + at for at, n in enumerate(dict.fromkeys(n for *_, n in runs))}
    design = np.zeros((len(runs), len(names) + (len(rounds) if tells_rounds else 1)))
    for row, (name, _, number) in enumerate(runs):
        design[row, names[name]] = design[row, rounds[number] if tells_rounds else -1] = 1.0
    measured = np.array([log for _, log, _ in runs])
    # Effects are told apart from one another only, so the design has no full rank.
    inverse = np.linalg.pinv(design.T @ design).astype(np.float64)
    effects = inverse @ design.T @ measured
    residuals = measured - design @ effects
    degrees = len(runs) - int(np.linalg.matrix_rank(design)) if runs else 0
    return Blocks(
        names=names,
        effects=effects,
        covariance=inverse,
        variance=float(residuals @ residuals) / degrees if degrees > 0 else 0.0,
        degrees=degrees,
    )
