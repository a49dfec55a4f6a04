"""How much two runs of one configuration differ, and the interval that follows from it.

The steps of one run say how well its own median is known. Another set of processes of the same
configuration has other addresses, other threads on other cores, another moment: its median is a
different one. So the interval that is reported with samples/s is a prediction interval: where a
re-run that measures as long will be, in 95% of cases. This file is the one place that makes it.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Role, TrialResult
from autotune.record.study import Trial, results
from autotune.trial.statistics import MIN_SAMPLES, n_effective

PRIOR_DEVIATION = 0.03
"""Deviation of log samples/s between processes. Over 50 runs of 10 candidates it was 2.8% on one
machine and 9.2% on another, with 40 degrees of freedom each
(`results/recorded/repeatability-*.json`): it depends on the machine, so the assumed value is near
that of the calm one."""
PRIOR_DEGREES = 4
"""Degrees of freedom that the prior counts as: those of a final comparison of two, so that a
study's own repeats weigh as much once it has one."""

_QUARTILES_OF_NORMAL = 1.349
"""Distance of a standard normal distribution's quartiles."""
_ENOUGH_RUNS = 4
"""Runs from which it is known what variance by steps is typical."""
_ALLOWANCE = 3.0
"""Factor for what the quartiles of few steps miss."""
_NORMAL = 1.96
"""The normal distribution's quantile: an interval of steps reaches so many standard errors."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A rate with its 95% prediction interval."""

    rate: float
    """Samples/s; the geometric mean of several runs."""
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The variance between sets of processes of one configuration, of log samples/s."""

    variance: float = PRIOR_DEVIATION**2
    degrees: int = PRIOR_DEGREES
    of_steps: float | None = None
    """Typical variance of a run's median by its own steps, over the study; None: not known."""

    @property
    def knows_repeats(self) -> bool:
        """Whether the study has repeats that it could be estimated from."""
        return self.degrees > PRIOR_DEGREES

    def interval(self, runs: Sequence[TrialResult]) -> Interval:
        """Where another run of a configuration would be, given these.

        A run is off by v = `variance` + the square of its own median's standard error. The mean of
        n runs is off by v / n, the re-run by v again: the interval reaches t sqrt(v (1 + 1/n)) to
        either side (Student's t; Hahn and Meeker, Statistical Intervals, 1991, section 4.7).

        Raises:
            ValueError: There is no run, or one without samples/s.
        """
        if not runs or not all(map(is_figure, runs)):
            raise ValueError("no runs, or one without samples/s")
        mean = mean_log_rate(runs)
        own_variance = statistics.fmean(map(self._variance_of_steps, runs))
        half_width = self.half_width(own_variance, n_runs=len(runs))
        return Interval(
            rate=math.exp(mean),
            low=math.exp(mean - half_width),
            high=math.exp(mean + half_width),
        )

    def variance_of_mean(self, runs: Sequence[TrialResult]) -> float:
        """Variance of the mean log samples/s of one configuration's runs; at least one run."""
        own_variance = statistics.fmean(map(self._variance_of_steps, runs))
        return (self.variance + own_variance) / len(runs)

    def _variance_of_steps(self, run: TrialResult) -> float:
        """As of `variance_of_steps`, weighted with what is typical of the study's runs.

        The steps of one run count as the degrees of freedom that their independent ones have,
        what is typical as `PRIOR_DEGREES`: few steps say little of their own variance.
        """
        variance = variance_of_steps(run)
        if self.of_steps is None or not run.step_times_s:
            return variance
        degrees = max(0.0, n_effective(run.step_times_s) - 1.0)
        return (PRIOR_DEGREES * self.of_steps + degrees * variance) / (PRIOR_DEGREES + degrees)

    def half_width(self, own_variance: float = 0.0, *, n_runs: int = 1) -> float:
        """How far a re-run may be from the mean of some runs, in log samples/s.

        Args:
            own_variance: Variance of a run's median, from its own steps; 0: leave that out.
            n_runs: Runs behind the mean.
        """
        variance = (self.variance + own_variance) * (1 + 1 / n_runs)
        return t_quantile(CONFIDENCE, self.degrees) * math.sqrt(variance)


def spread_of(trials: Iterable[Trial]) -> Spread:
    """The spread of one job's trials, from the candidates that were tried more than once.

    The others say nothing, not even of what a run's steps leave: more of them move no interval.
    Trials of the search and of the final comparison are kept apart, since the first may have been
    picked for being lucky. Those whose repeat counts instead are left out (`outdone`); one that
    counts although it was disturbed is what a re-run may meet as well.
    """
    groups: dict[tuple[str, bool], list[TrialResult]] = {}
    known = list(trials)
    n_of = Counter(trial.candidate_hash for trial in known)
    repeated = (trial for trial in known if n_of[trial.candidate_hash] > 1)
    measured = [t for t in repeated if t.result is not None and is_figure(t.result)]
    left_out = outdone(measured)
    for run in results(measured):
        if run.number not in left_out:
            groups.setdefault((run.candidate_hash, run.role is Role.CONFIRM), []).append(run)
    return pooled(groups.values())


def outdone(trials: Iterable[Trial]) -> set[int]:
    """Numbers of the disturbed trials whose repeat counts instead, and of repeats that do not.

    The repeat of a disturbed trial counts, unless it was disturbed too and is slower: what
    disturbs a run takes time from it, so the faster of both was disturbed less. In rounds the
    repeat counts in any case: who ran twice would have the better of two runs, others have one.
    """
    runs = [(t.measured, t.spec.provenance.repeat_of) for t in trials if t.measured]
    measured = {run.number: run for run, _ in runs}
    found = set()
    for repeat, number in runs:
        if number in measured:
            first = measured[number]
            rates = [run.samples_per_s or 0.0 for run in (repeat, first)]
            is_worse = repeat.disturbed and rates[0] < rates[1]
            is_in_round = repeat.role is Role.CONFIRM
            found.add(repeat.number if is_worse and not is_in_round else number)
    return found


def pooled(groups: Iterable[Sequence[TrialResult]], deviation: float = PRIOR_DEVIATION) -> Spread:
    """The spread that runs show, each group being those of one configuration.

    Their variance, pooled over the groups and less what the steps of each run explain, is weighted
    with the prior by degrees of freedom: the conjugate scaled inverse chi-squared prior (Gelman et
    al., Bayesian Data Analysis, 3rd edition, 2.6). With no repeats it is the prior alone.

    Args:
        groups: Runs for which `is_figure` holds; a group of one says nothing.
        deviation: That of the prior.
    """
    known = list(groups)
    squares, degrees = between(known)
    prior = PRIOR_DEGREES * deviation**2
    variances = [variance_of_steps(run) for runs in known for run in runs if run.step_times_s]
    return Spread(
        variance=(prior + max(0.0, squares)) / (PRIOR_DEGREES + degrees),
        degrees=PRIOR_DEGREES + degrees,
        of_steps=statistics.median(variances) if len(variances) >= _ENOUGH_RUNS else None,
    )


def between(groups: Iterable[Sequence[TrialResult]]) -> tuple[float, int]:
    """Squares of log samples/s between processes, less what steps explain, and their degrees."""
    squares, degrees = 0.0, 0
    for runs in groups:
        mean = mean_log_rate(runs)
        squares += math.fsum((log_rate(run) - mean) ** 2 for run in runs)
        squares -= (len(runs) - 1) * statistics.fmean(map(variance_of_steps, runs))
        degrees += len(runs) - 1
    return squares, degrees


def is_figure(result: TrialResult) -> bool:
    """Whether a result has samples/s to compare; a damaged record may hold anything."""
    return result.outcome.is_measured and _is_rate(result.samples_per_s)


def log_rate(result: TrialResult) -> float:
    """Logarithm of a measured result's samples/s."""
    return math.log(result.samples_per_s or 1.0)


def mean_log_rate(runs: Sequence[TrialResult]) -> float:
    """Mean of the logarithms of some measured results' samples/s."""
    return statistics.fmean(map(log_rate, runs))


def variance_of_steps(result: TrialResult) -> float:
    """Variance of log samples/s that the run's own steps leave in their median; 0: none known.

    The interval of the median by order statistics asks for six independent steps; where a busy
    machine makes neighbours alike there are fewer, and it is the whole range then, which one odd
    step decides. So the variance is at most that of a median of `n_effective` normal steps,
    pi/2 s^2 / n, and never more than one step's, s^2; s is the range of the middle half of the
    steps over 1.349 (Kenney and Keeping, Mathematics of Statistics 2, 1951, section 7.12, for the
    median; David and Nagaraja, Order Statistics, section 9.1, for the quartiles).
    `benchmarks/single_runs.py` says what such intervals hold.
    """
    low, high = result.samples_per_s_low, result.samples_per_s_high
    if low is None or high is None or not (_is_rate(low) and _is_rate(high)):
        return 0.0
    by_order = (math.log(high / low) / 2 / _NORMAL) ** 2
    steps_s = result.step_times_s
    if len(steps_s) < MIN_SAMPLES:
        return by_order
    first, _, third = statistics.quantiles(map(math.log, steps_s), n=4)
    of_step = _ALLOWANCE * ((third - first) / _QUARTILES_OF_NORMAL) ** 2
    return min(by_order, of_step * min(1.0, math.pi / 2 / n_effective(steps_s)))


def _is_rate(samples_per_s: float | None) -> bool:
    return samples_per_s is not None and 0 < samples_per_s < math.inf
