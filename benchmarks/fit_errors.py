"""Learn how far off the cost model is on sources that it has not seen, and write it.

Each source that `sources.json` lists as fitted is left out in turn: the constants are fitted on
the others and predict it. The interval around a prediction then holds LEVEL of the rows of a new
source, on average over sources: hierarchical conformal prediction, whose guarantee asks only that
sources are exchangeable. Source: Lee, Barber and Willett, Distribution-free inference with
hierarchical data (arXiv:2306.06342), section 3. `autotune/cost/errors.yaml` is written. The
constants are fitted once for each source: that takes minutes of one core.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml
from fit_constants import LeftOut, beyond, fitted_sources, leave_one_out
from numpy.typing import NDArray
from published_runs import Runs, read_runs

from autotune.cost.errors import LEVEL, SHIPPED, Errors, MissSizes, is_among

Values = NDArray[np.float64]

_LEAST = 0.01
"""Least size of a miss that is expected: a published figure is no better."""
_ENOUGH = 5
"""Runs of a framework on an accelerator that make both known: a handful says little."""
_UNKNOWN = 0.5
"""Size where no run tells."""


@dataclass(frozen=True, kw_only=True)
class Misses:
    """Sizes of log(measured / predicted) of runs left out; NaN where nothing was measured.

    Those of peaks are what is beyond the values that a row leaves open.
    """

    sources: NDArray[np.str_]
    frameworks: NDArray[np.str_]
    peak_flops: Values
    doubt: Values
    is_mixture: NDArray[np.bool_]
    times: Values
    peaks: Values

    def without(self, source: str) -> "Misses":
        """Those of all other sources."""
        kept = self.sources != source
        return Misses(**{name: values[kept] for name, values in vars(self).items()})

    def accelerators(self) -> dict[str, list[float]]:
        """Framework -> peaks of the accelerators that it ran often on, in TFLOP/s."""
        ran = np.isfinite(self.times)
        found = {}
        for name in np.unique(self.frameworks):
            peaks, rows = np.unique(
                self.peak_flops[(self.frameworks == name) & ran].round(-11), return_counts=True
            )
            if often := [float(peak) / 1e12 for peak in peaks[rows >= _ENOUGH]]:
                found[str(name)] = often
        return found


def misses_of(runs: Runs, left_out: LeftOut) -> Misses:
    """How far the runs are from what was predicted of them.

    Formulas of papers are no runs, and tests so small that their source says the host sets their
    pace say nothing of training.
    """
    ran = (runs.status == "ok") & ~runs.host_bound
    peaks = beyond(runs.peaks_bytes, left_out.peaks_bytes, left_out.spare)
    return Misses(
        sources=runs.sources,
        frameworks=runs.frameworks,
        peak_flops=np.array([its.peak_flops[its.half] for its in runs.accelerators]),
        doubt=left_out.doubt,
        is_mixture=np.greater(np.broadcast_to(runs.plans.n_experts, len(runs.rows)), 1),
        times=np.where(ran, np.abs(np.log(runs.times_s / left_out.times_s)), np.nan),
        peaks=np.where(ran, np.abs(peaks), np.nan),
    )


def learn(misses: Misses) -> Errors:
    """Intervals from the misses of all sources that are given."""
    seen = np.zeros(len(misses.sources), bool)
    for source in np.unique(misses.sources):
        here = misses.sources == source
        seen[here] = _is_among(misses, here, misses.without(source).accelerators())
    dense, mixtures = (
        np.where(misses.is_mixture == is_mixture, misses.times, np.nan)
        for is_mixture in (False, True)
    )
    return Errors(
        sources=len(np.unique(misses.sources)),
        step_time=_sizes(misses, dense, seen, has_doubt=True),
        mixture_step_time=_sizes(misses, mixtures, seen, has_doubt=True),
        peak_memory=_sizes(misses, misses.peaks, seen, has_doubt=False),
        peaks=misses.accelerators(),
    )


def coverage(misses: Misses, here: NDArray[np.bool_]) -> tuple[float, float, float]:
    """What intervals learned from the other sources are worth for some rows of one.

    Returns:
        Shares of its step times and peaks inside, and the median factor to the end of the former.
    """
    errors = learn(misses.without(str(misses.sources[here][0])))
    seen = _is_among(misses, here, errors.peaks)
    reach = errors.reach_of(seen, misses.doubt[here], misses.is_mixture[here])
    return (
        _share(misses.times[here], np.log(reach.step_time)),
        _share(misses.peaks[here], np.log(reach.peak_memory)),
        float(np.median(reach.step_time)),
    )


def conformal(misses: Values, sources: NDArray[np.str_], level: float) -> float:
    """The size that holds `level` of a further source's misses, on average over such sources.

    Every source weighs 1 / (k + 1), shared among its rows; the rest stands for a source that is
    infinitely far off. Fewer sources than the level asks for promise nothing: then half of what
    the level leaves out is left out of the rows there are.
    """
    names, which, counts = np.unique(sources, return_inverse=True, return_counts=True)
    k = len(names)
    wanted = level * (k + 1) / k
    wanted = wanted if wanted < 1 else (1 + level) / 2
    order = np.argsort(misses)
    reached = np.cumsum(1.0 / (k * counts[which])[order]) >= wanted - 1e-9
    return float(misses[order][np.flatnonzero(reached)[0]])


def _sizes(
    misses: Misses, missed: Values, seen: NDArray[np.bool_], *, has_doubt: bool
) -> MissSizes:
    """Sizes in the proportion of the mean misses, made large enough by the conformal quantile.

    The proportion is a least squares fit of the sizes of the misses, every source weighing alike;
    no size is below zero, and where nothing was seen none is narrower for it.
    """
    known = np.isfinite(missed)
    if not known.any():
        return MissSizes(seen=_UNKNOWN, unseen=_UNKNOWN, doubtful=0.0)
    sources, seen, size = misses.sources[known], seen[known], missed[known]
    doubt = misses.doubt[known] * has_doubt
    _, which, counts = np.unique(sources, return_inverse=True, return_counts=True)
    # Sizes of the misses are 1 for everybody, more for what was not seen and for what is doubtful.
    parts = np.stack([np.ones(len(size)), ~seen * 1.0, doubt], axis=1)
    shares = _least_squares(parts, size, 1.0 / counts[which])
    shares = shares if shares.any() else np.array([1.0, 0.0, 0.0])
    expected = np.maximum(parts @ shares, _LEAST)
    times = conformal(size / expected, sources, LEVEL)
    least, unseen, doubtful = (round(float(share * times), 3) for share in shares)
    return MissSizes(seen=least, unseen=round(least + unseen, 3), doubtful=doubtful)


def _least_squares(parts: Values, size: Values, weights: Values) -> Values:
    """Weights of the parts, none below zero: the best of all subsets of three."""
    root = np.sqrt(weights)
    best, found = np.inf, np.zeros(parts.shape[1])
    for kept in ([0], [0, 1], [0, 2], [0, 1, 2]):
        some, *_ = np.linalg.lstsq(parts[:, kept] * root[:, None], size * root, rcond=None)
        left = float(np.sum(weights * (size - parts[:, kept] @ some) ** 2))
        if (some >= 0).all() and left < best:
            best, found = left, np.zeros(parts.shape[1])
            found[kept] = some
    return found


def _share(misses: Values, reach: Values) -> float:
    known = np.isfinite(misses)
    return float(np.mean(misses[known] <= reach[known])) if known.any() else float("nan")


def _is_among(
    misses: Misses, here: NDArray[np.bool_], peaks: Mapping[str, Sequence[float]]
) -> NDArray[np.bool_]:
    """Whether rows' frameworks were seen on such accelerators."""
    pairs = zip(misses.frameworks[here].tolist(), misses.peak_flops[here].tolist(), strict=True)
    return np.array([is_among(peak, peaks.get(framework, ())) for framework, peak in pairs], bool)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    runs = read_runs(options.published)
    fitted = runs.part(np.isin(runs.sources, fitted_sources()))
    errors = learn(misses_of(fitted, leave_one_out(fitted)))
    print(errors.model_dump_json(indent=2))
    if not options.dry_run:
        head = "# Written by benchmarks/fit_errors.py; autotune/cost/errors.py says what it is.\n"
        SHIPPED.write_text(head + yaml.safe_dump(errors.model_dump(), sort_keys=True))


if __name__ == "__main__":
    main()
