"""How wrong the analytic model is here, learned from trials, with what is left uncertain.

The model's error is log(measured / predicted), a Gaussian process over the candidates:

    b + sum_i w_i share_i + sum_j v_j position_j + g(position) + noise

where b is an error of everything alike (a peak that is never reached); share_i is the share of the
predicted figure that its i-th part makes up, so that w_i is the relative error of that part, to
first order; position_j are the candidate's choices in doublings, and g is whatever is left, alike
for candidates that are alike (a squared-exponential kernel). Scales are not fitted but averaged
over: draws from their priors, weighted by the marginal likelihood of what was seen, so that three
trials do not decide what only thirty can. Where the errors seen are larger than all of that
allows, everything that is believed becomes less certain by as much: the scales have a common
factor with an inverse gamma prior, which makes it a Student-t process (Shah, Wilson and
Ghahramani, Student-t Processes as Alternatives to Gaussian Processes, AISTATS 2014, section 3).

Source: Rasmussen and Williams, Gaussian Processes for Machine Learning (2006), chapters 2 and 5;
linear terms with Gaussian weights are the kernel of section 2.7.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.base.student_t import t_quantile
from autotune.cost.errors import UPPER
from autotune.cost.normal import Floats, beyond_bound
from autotune.cost.plans import PlanColumns

_N_DRAWS = 48
"""Draws of the scales."""
MOST_SEEN = 256
"""Trials up to which all of them are learned from."""
_LEAST_WEIGHT = 1e-3
"""Draws that count for less are left out of the prediction."""
PRIOR_DEGREES = 4
"""How many trials' worth the prior's scales are held to be right as a whole."""
VARIATION = 0.03
"""Deviation of log seconds by knobs that the forecast does not know, where a study has any."""
MEMORY_VARIATION = 0.12
"""Deviation of log peak by what allocators and meters do. With it intervals hold nine of ten
published peaks, of the rows left after five (`benchmarks/accuracy.py`)."""
_JITTER = 1e-10
"""Keeps the covariance of equal candidates invertible."""
_LEAST_VARIANCE = 1e-12
"""Lower bound of a variance, since rounding may make it negative."""
_CHUNK = 4096
"""Candidates at a time: their covariances with what was seen stay in the cache."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Features(PlanColumns):
    """Candidates as the residual sees them, a row each."""

    shares: Floats
    """(n, parts): share of the predicted figure per part, 0 to 1."""
    position: Floats
    """(n, choices): powers of two in doublings; 0 or 1 for what has no order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen(PlanColumns):
    """Measurements of trials, by row of `features`."""

    features: Features
    log_ratio: Floats
    """log(measured / predicted); where only the limit is known, log(limit / predicted)."""
    side: Floats
    """0: measured. 1: it is above that, since the trial ran out of memory. -1: it is below, since
    the trial ran and nobody looked at its peak."""
    study: "np.ndarray[tuple[int], np.dtype[np.intp]]"
    """Number of the trial's study; 0 is this one."""
    kinship: Floats
    """Correlation of its study's errors with this one's, 0 to 1: 1 on the same device, engine and
    model family. Equal studies have equal kinship."""

    @classmethod
    def here(
        cls, features: Features, log_ratio: Floats, side: Sequence[float] | None = None
    ) -> "Seen":
        n = len(features)
        return cls(
            features=features,
            log_ratio=np.asarray(log_ratio, dtype=np.float64),
            side=np.zeros(n) if side is None else np.asarray(side, dtype=np.float64),
            study=np.zeros(n, np.intp),
            kinship=np.ones(n),
        )

    def thinned(self) -> "Seen":
        """The same, or where they are more than `MOST_SEEN` half as many of them.

        The effort grows with their cube, and after hundreds one more says little.
        """
        n = len(self.study)
        return self if n <= MOST_SEEN else self.take(spread_over(n, MOST_SEEN // 2))


def spread_over(n: int, most: int) -> "np.ndarray[tuple[int], np.dtype[np.intp]]":
    """Positions of at most so many of `n`: half of them the last ones, half evenly before."""
    if n <= most:
        return np.arange(n, dtype=np.intp)
    last = most // 2
    before = np.linspace(0, n - last - 1, most - last).astype(np.intp)
    return np.concatenate([before, np.arange(n - last, n, dtype=np.intp)])


@dataclass(frozen=True, kw_only=True)
class Scale:
    """A positive scale of which the order of magnitude is known: log-normal."""

    median: float
    spread: float
    """Standard deviation of its logarithm."""


@dataclass(frozen=True, kw_only=True)
class ResidualPrior:
    """Prior of the errors before any trial; all in natural logarithms."""

    everywhere: float
    """Deviation of what all candidates share, on every model of this device and engine."""
    study: float
    """Deviation of what the candidates of one study share besides."""
    share: Scale
    """Relative error of a part of the prediction."""
    position: Scale
    """Error per doubling of a choice."""
    rough: Scale
    """Deviation of what is left."""
    reach: Scale
    """Doublings over which that changes."""
    noise: Scale
    """Noise of one measurement: how much two runs differ."""

    @cached_property
    def draws(self) -> Floats:
        """(draws, 5): share, position, rough, reach, noise; always the same numbers."""
        scales = (self.share, self.position, self.rough, self.reach, self.noise)
        medians = np.log([scale.median for scale in scales])
        spreads = np.array([scale.spread for scale in scales])
        normal = np.random.default_rng(0).standard_normal((_N_DRAWS, len(scales)))
        drawn: Floats = np.exp(medians + spreads * normal)
        return drawn


TIME_PRIOR = ResidualPrior(
    everywhere=0.15,
    study=0.1,
    share=Scale(median=0.3, spread=0.6),
    position=Scale(median=0.03, spread=0.7),
    rough=Scale(median=0.12, spread=1.0),
    reach=Scale(median=0.7, spread=0.4),
    noise=Scale(median=0.02, spread=0.5),
)
"""Prior for step times: a part may be a third slower than the model has it, since kernels and
links reach their peaks unequally; the noise is that of a run among equals on a calm machine. What
is left may be several times as much: a trial that is far off is most likely so by itself, and says
little of other layouts. `benchmarks/search_efficiency.py` says what they are worth."""

MEMORY_PRIOR = ResidualPrior(
    everywhere=0.1,
    study=0.05,
    share=Scale(median=0.3, spread=0.6),
    position=Scale(median=0.01, spread=0.5),
    rough=Scale(median=0.08, spread=0.9),
    reach=Scale(median=2.0, spread=0.4),
    noise=Scale(median=0.02, spread=0.5),
)
"""Prior for peaks. They hardly differ between runs; the error is in what the model leaves out: as
much as on sources that its constants had not seen (`benchmarks/accuracy.py`)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Belief about the error of some candidates' figures, without the noise of a run."""

    mean: Floats
    deviation: Floats


def reach_of(deviation: Floats, variation: float, *, n_measured: int) -> Floats:
    """How far log(measured) may be from a calibrated figure, to either side, in 90% of cases.

    The difference between runs, `variation`, adds to the uncertainty of the figure itself. A
    Student-t process: what was measured adds to the prior's degrees of freedom.
    """
    quantile = t_quantile(UPPER, PRIOR_DEGREES + n_measured)
    found: Floats = quantile * np.hypot(deviation, variation)
    return found


def calibrate(at: Features, seen: Seen, prior: ResidualPrior) -> Calibration:
    """Belief about the error at every candidate; `seen` may be empty, and is thinned."""
    return learn(seen, prior).at(at)


def learn(seen: Seen, prior: ResidualPrior) -> "ErrorFits":
    """Fit what was seen; it may be empty, and is thinned."""
    seen = seen.thinned()
    return ErrorFits(seen, *_with_bounds(seen, prior), prior)


class ErrorFits:
    """What trials say of the error, fitted once, whatever candidates it is asked of."""

    def __init__(self, seen: Seen, values: Floats, extra: Floats, prior: ResidualPrior) -> None:
        """Take what `_with_bounds` says of the trials."""
        known = np.flatnonzero(np.isfinite(extra))
        self._seen = seen.take(known)
        fits = _Fits(self._seen, values[known], extra[known], prior)
        weights = _weights(fits.log_evidence)
        self._weighed = [(weights[at], fits.of_draw(int(at))) for at in np.flatnonzero(weights)]

    def at(self, at: Features) -> Calibration:
        """Belief about the error at every candidate."""
        mean, square = np.zeros(len(at)), np.zeros(len(at))
        for start in range(0, len(at), _CHUNK):
            rows = slice(start, start + _CHUNK)
            alike = _Alike.of(self._seen.features, at.take(rows))
            for weight, fit in self._weighed:
                its_mean, its_variance = fit.predict(at.take(rows), alike)
                mean[rows] += weight * its_mean
                square[rows] += weight * (its_variance + its_mean**2)
        deviation = np.sqrt(np.maximum(square - mean**2, _LEAST_VARIANCE))
        return Calibration(mean=mean, deviation=deviation)


def _with_bounds(seen: Seen, prior: ResidualPrior) -> tuple[Floats, Floats]:
    """Figures and extra variances that stand for what was seen, bounds included.

    A bound moves the error at its candidate as little as it must: one after the other they become
    measurements with the noise that gives the truncated normal's mean and variance there (assumed
    density filtering: Minka, Expectation Propagation, UAI 2001, section 2).

    Returns:
        Values, and variances besides the noise; infinite: says nothing yet.
    """
    values = seen.log_ratio.copy()
    extra = np.where(seen.side != 0, np.inf, 0.0)
    bounds = np.flatnonzero(seen.side)
    if not len(bounds):
        return values, extra
    measured = seen.take(np.flatnonzero(seen.side == 0))
    at_bounds = _AtBounds(measured, seen.take(bounds), prior)
    for position, row in enumerate(bounds):
        mean, variance = at_bounds.believed(position)
        new_mean, new_variance = beyond_bound(
            mean, variance, float(seen.log_ratio[row]), is_above=seen.side[row] > 0
        )
        precision = 1 / new_variance - 1 / variance
        if precision <= 1e-9:
            continue  # it was known before
        extra[row] = 1 / precision
        values[row] = (new_mean / new_variance - mean / variance) / precision
        at_bounds.learn(position, values[row], extra[row])
    return values, extra


class _AtBounds:
    """What every draw of the scales believes where only a bound is known, as bounds are told.

    A bound changes it by one observation (Rasmussen and Williams, appendix A.2), so nothing is
    fitted anew for it.
    """

    def __init__(self, measured: Seen, bounds: Seen, prior: ResidualPrior) -> None:
        fits = _Fits(measured, measured.log_ratio, np.zeros(len(measured.log_ratio)), prior)
        self._mean, self._covariance = fits.predict_jointly(bounds)
        self._noise = fits.noise_variance
        self._log_evidence = fits.log_evidence.copy()

    def believed(self, position: int) -> tuple[float, float]:
        """Mean and variance of the error at a bound's candidate, in its own study."""
        weights = _weights(self._log_evidence)
        means, variances = self._mean[:, position], self._covariance[:, position, position]
        mean = float(weights @ means)
        square = float(weights @ (np.maximum(variances, _LEAST_VARIANCE) + means**2))
        return mean, max(square - mean**2, _LEAST_VARIANCE)

    def learn(self, position: int, value: float, extra: float) -> None:
        """Take in that the error there was measured, with a variance besides the noise."""
        along = self._covariance[:, :, position]
        total = np.maximum(along[:, position], 0.0) + self._noise + extra
        surprise = value - self._mean[:, position]
        self._log_evidence -= 0.5 * (surprise**2 / total + np.log(total))
        self._mean = self._mean + along * (surprise / total)[:, None]
        taken = along / np.sqrt(total)[:, None]
        self._covariance = self._covariance - taken[:, :, None] * taken[:, None, :]


def _weights(log_evidence: Floats) -> Floats:
    """Weights of the draws; they add up to 1."""
    likely = np.exp(log_evidence - log_evidence.max())
    weighty = np.where(likely < _LEAST_WEIGHT, 0.0, likely)
    weights: Floats = weighty / weighty.sum()
    return weights


@dataclass(frozen=True, kw_only=True, eq=False)
class _Kinship:
    """How the studies of trials go together; (first, second) each."""

    is_same: "np.ndarray[tuple[int, int], np.dtype[np.bool_]]"
    correlation: Floats

    @classmethod
    def of(cls, first: Seen, second: Seen) -> "_Kinship":
        is_same = first.study[:, None] == second.study[None, :]
        across = first.kinship[:, None] * second.kinship[None, :]
        return cls(is_same=is_same, correlation=np.where(is_same, 1.0, across))


@dataclass(frozen=True, kw_only=True, eq=False)
class _Alike:
    """Parts of the covariance of candidates, whatever the scales; (first, second) each."""

    shares: Floats
    """Inner products."""
    position: Floats
    apart: Floats
    """Squared distance of the positions."""

    @classmethod
    def of(cls, first: Features, second: Features) -> "_Alike":
        """Compare every candidate of the first with every one of the second."""
        products = first.position @ second.position.T
        lengths = np.square(first.position).sum(axis=1)[:, None] + np.square(second.position).sum(
            axis=1
        )
        return cls(
            shares=first.shares @ second.shares.T,
            position=products,
            apart=np.maximum(lengths - 2 * products, 0.0),
        )


class _Scales:
    """Draws of the scales: a number each for one of them, or an array each."""

    def __init__(
        self,
        prior: ResidualPrior,
        share: Floats,
        position: Floats,
        rough: Floats,
        reach: Floats,
        noise: Floats,
    ) -> None:
        self.prior = prior
        self.share, self.position, self.rough = share, position, rough
        self.reach, self.noise = reach, noise

    def shared(self, alike: _Alike) -> Floats:
        """Covariance of what the errors of all studies have in common, per draw."""
        share, position, rough, reach = (
            np.asarray(scale)[..., None, None]
            for scale in (self.share, self.position, self.rough, self.reach)
        )
        found: Floats = (
            self.prior.everywhere**2
            + share**2 * alike.shares
            + position**2 * alike.position
            + rough**2 * np.exp(-0.5 * alike.apart / reach**2)
        )
        return found


class _Fits:
    """The process with each draw of the scales, given what was seen; arrays have a draw each.

    They are computed side by side: in tens of small matrices one by one, most of the time goes to
    the calls.
    """

    def __init__(self, seen: Seen, values: Floats, extra: Floats, prior: ResidualPrior) -> None:
        self._scales, self._prior, self._seen = _Scales(prior, *prior.draws.T), prior, seen
        features = seen.features
        covariance = self._across(_Alike.of(features, features), _Kinship.of(seen, seen))
        noise = self._scales.noise**2 + _JITTER
        diagonal = np.arange(len(values))
        covariance[:, diagonal, diagonal] += noise[:, None]
        measured = np.flatnonzero(extra == 0)
        is_all = len(measured) == len(values)
        root = _roots(covariance if is_all else covariance[:, measured[:, None], measured])
        whitened = _solved(root, values[measured])
        surprise = np.square(whitened).sum(axis=1)
        degrees = PRIOR_DEGREES + len(measured)
        # Never below 1: that errors are smaller than expected, the draws of the scales tell.
        self._inflation = np.maximum(1.0, (PRIOR_DEGREES + surprise) / degrees)
        self.noise_variance: Floats = self._inflation * noise
        self.log_evidence: Floats = -0.5 * degrees * np.log1p(surprise / PRIOR_DEGREES)
        self.log_evidence -= _log_diagonal(root)
        stretch = np.sqrt(self._inflation)
        self._root = root * stretch[:, None, None]
        self._whitened = whitened / stretch[:, None]
        if not is_all:
            of_measured = self._log_density
            covariance *= self._inflation[:, None, None]
            covariance[:, diagonal, diagonal] += extra
            self._root = _roots(covariance)
            self._whitened = _solved(self._root, values)
            self.log_evidence += self._log_density - of_measured

    @property
    def _log_density(self) -> Floats:
        """Log density of the fitted values, with the scale as it is, but for a constant."""
        found: Floats = -0.5 * np.square(self._whitened).sum(axis=1) - _log_diagonal(self._root)
        return found

    def of_draw(self, at: int) -> "_Fit":
        """The process with one draw; nothing else of the fits is kept for it."""
        return _Fit(
            scales=_Scales(self._prior, *self._prior.draws[at]),
            seen=self._seen,
            inflation=float(self._inflation[at]),
            root=self._root[at].copy(),
            whitened=self._whitened[at].copy(),
        )

    def predict_jointly(self, at: Seen) -> tuple[Floats, Floats]:
        """Mean and covariance of the errors of trials, each in its own study."""
        inflation = self._inflation[:, None, None]
        across = self._across(
            _Alike.of(self._seen.features, at.features), _Kinship.of(self._seen, at)
        )
        whitened = np.linalg.solve(self._root, inflation * across).transpose(0, 2, 1)
        prior = self._across(_Alike.of(at.features, at.features), _Kinship.of(at, at))
        prior *= inflation
        mean: Floats = (whitened @ self._whitened[:, :, None])[:, :, 0]
        return mean, prior - whitened @ whitened.transpose(0, 2, 1)

    def _across(self, alike: _Alike, kinship: _Kinship) -> Floats:
        """Covariance of the errors of trials, each in its own study."""
        found: Floats = kinship.correlation * self._scales.shared(alike)
        found += self._prior.study**2 * kinship.is_same
        return found


def _roots(covariances: Floats) -> Floats:
    """Lower triangular, one of each."""
    return np.asarray(np.linalg.cholesky(covariances), dtype=np.float64)


def _solved(roots: Floats, values: Floats) -> Floats:
    """The values, whitened by each root."""
    return np.asarray(np.linalg.solve(roots, values[:, None])[:, :, 0], dtype=np.float64)


def _log_diagonal(roots: Floats) -> Floats:
    """Half the log determinant of what each is the root of."""
    found: Floats = np.log(np.diagonal(roots, axis1=1, axis2=2)).sum(axis=1)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class _Fit:
    """The process with one draw of the scales, given what was seen."""

    scales: _Scales
    seen: Seen
    inflation: float
    root: Floats
    whitened: Floats

    def predict(self, at: Features, alike: _Alike) -> tuple[Floats, Floats]:
        """Mean and variance at candidates of this study; `alike` is what was seen with them."""
        scales, prior = self.scales, self.scales.prior
        is_here = self.seen.study == 0
        across = self.seen.kinship[:, None] * scales.shared(alike)
        across += prior.study**2 * is_here[:, None]
        across *= self.inflation
        whitened = np.linalg.solve(self.root, across)
        prior_variance = prior.everywhere**2 + prior.study**2 + scales.rough**2
        prior_variance = prior_variance + scales.share**2 * np.square(at.shares).sum(axis=1)
        prior_variance = prior_variance + scales.position**2 * np.square(at.position).sum(axis=1)
        variance = self.inflation * prior_variance - np.square(whitened).sum(axis=0)
        return whitened.T @ self.whitened, np.maximum(variance, _LEAST_VARIANCE)
