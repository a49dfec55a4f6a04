"""Configurations that ran in rounds, compared: what they are worth beside one another.

Each round is a block of a randomized block design (Fisher, The Design of Experiments, 1935): a
machine that slows down for minutes slows a whole round. A configuration may miss rounds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.record.answer import Speedup

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BlockRun:
    """One run of a configuration."""

    of: str
    """Identity of the configuration."""
    round_number: int
    log_rate: float


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


def blocks_of(runs: Sequence[BlockRun]) -> Blocks:
    """Compare some runs; a configuration that ran twice in a round counts twice there."""
    names, design = design_of([(run.of, run.round_number) for run in runs])
    measured = np.array([run.log_rate for run in runs])
    # Effects are told apart from one another only, so the design has no full rank.
    inverse = np.linalg.pinv(design.T @ design).astype(np.float64)
    effects = inverse @ design.T @ measured
    residuals = measured - design @ effects
    degrees = len(runs) - int(np.linalg.matrix_rank(design)) if runs else 0
    variance = float(residuals @ residuals) / degrees if degrees > 0 else 0.0
    return Blocks(
        names=names,
        effects=effects,
        covariance=inverse,
        variance=variance,
        degrees=degrees,
    )


def design_of(cells: Sequence[tuple[str, int]]) -> tuple[dict[str, int], FloatArray]:
    """Indicators of the configuration and of the round of each run, and who has which column.

    Columns of the configurations come first, in the order in which they are met.
    """
    names = {name: n for n, name in enumerate(dict.fromkeys(name for name, _ in cells))}
    rounds = {number: n for n, number in enumerate(dict.fromkeys(number for _, number in cells))}
    design = np.zeros((len(cells), len(names) + len(rounds)))
    for row, (name, number) in enumerate(cells):
        design[row, names[name]] = design[row, len(names) + rounds[number]] = 1.0
    return names, design
