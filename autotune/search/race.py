"""The rules of the final comparison's race: who runs the next round, and when it is over.

Everything follows from log samples/s by candidate and round, so that a race that was cut short
goes on as it was, and `benchmarks/final_comparison.py` can show what the rules are worth. Each
round is a block of a randomized block design (Fisher, The Design of Experiments, 1935): a machine
that slows down for minutes slows a whole round, and that is no noise of a ratio.

Two different questions are asked of the same runs:

- Which is the best? Those that are surely not drop out, and of two whose difference is worth less
  than `LOSS` the one with the smaller memory stays. That is a decision with expected losses
  (Chick and Inoue, New Two-Stage and Sequential Procedures for Selecting the Best Simulated
  System, Operations Research 49, 2001), and the search's own trials help with it.
- How large is the gain? Its interval is looked at `LOOKS` times, and each look may end the race.
  So each look has a share of the 5% that a 95% interval may miss (`Rules.spent`; Lan and DeMets,
  Discrete Sequential Boundaries for Clinical Trials, Biometrika 70, 1983), and the interval holds
  whenever the race ends: it is a repeated confidence interval (Jennison and Turnbull, Interim
  Analyses: The Repeated Confidence Interval Approach, 1989).
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from autotune.base.student_t import CONFIDENCE, expected_loss, t_quantile, upper_probability
from autotune.record.answer import Speedup
from autotune.record.blocks import BlockRun, Blocks, blocks_of, design_of
from autotune.record.spread import PRIOR_DEGREES, PRIOR_DEVIATION
from autotune.search.rounds import FULL_ROUNDS, Round, RunCount

LOOKS = (3, 5)
"""Rounds after which the interval of the gain is looked at. With fewer than 3 rounds it is too
wide to end anything; 5 make it as narrow as 3 rounds of everybody."""
OPEN_ROUNDS = 7
"""Rounds up to which a race of warm starts goes on while naming the best is still expected to lose
`LOSS`: that is so on noisy machines alone."""
BLOCK = 8
"""Round numbers that one race has: those of `LOOKS`, and some for a winner that changed late."""
MIN_ROUNDS = 2
"""Below two runs of each there is no between-run variance to speak of."""
LOSS = 0.01
"""Expected loss of samples/s, as a share, below which it does not matter which one is named."""
DEAR = 0.02
"""Share of samples/s that a wrong choice must not cost."""
N_CONFIRM = 2
"""Candidates that are confirmed cold: the best and the baseline."""
SURE = 0.02
"""Probability of being the best below which a candidate drops out."""
SHARE_OF_GAIN = 1 / 8
"""Half width of the gain's interval, as a share of the gain in log samples/s, that is narrow
enough: whether it is 2.7 or 2.9 times as fast changes nothing."""
OWN_TRIAL = 1.0
"""Runs that the search's own trial of a candidate counts for in the choice; the gain rests on the
race's runs alone, since a trial may have been picked for being lucky."""

_TAMED_AT = 1.5
_FITS = 8

Logs = Mapping[str, Mapping[int, float]]
"""log samples/s by candidate and round."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How long a race may take; it depends on what a run costs."""

    warm: bool
    """Whether runs start warm where they need not confirm anything."""
    spent: tuple[float, ...]
    """Share of studies that may miss the true gain at each of `LOOKS`, 5% in all."""
    selection_rounds: int
    """Rounds that everybody runs who may still be the best; then the best alone goes on."""
    risk: float
    """Probability of a wrong choice that costs more than `DEAR` which is accepted."""
    narrow: float
    """Half width of the gain's interval, in log samples/s, from which on it is narrow enough."""
    width: float
    """Or its width beside that of `FULL_ROUNDS` rounds of everybody."""

    def missed_after(self, n_rounds: int) -> float:
        """Share that the interval may miss after so many rounds: that of the look they belong to.

        A race that the time ended between two looks takes the share of the look that it will not
        have.
        """
        at = next((i for i, look in enumerate(LOOKS) if n_rounds <= look), len(LOOKS) - 1)
        return self.spent[at]

    def most_runs(self, n_members: int) -> RunCount:
        """Runs of a race of so many, at most.

        Repeats, a late best and a noisy machine come on top.
        """
        if n_members < 2:
            return self._runs(n_members * MIN_ROUNDS, n_members)
        n_later = max(int(self.warm), LOOKS[-1] - self.selection_rounds)
        return self._runs(n_members * self.selection_rounds + N_CONFIRM * n_later, N_CONFIRM)

    @property
    def usual_runs(self) -> RunCount:
        """Runs of a race of two, as most end: what a search keeps back of its time."""
        return self._runs(N_CONFIRM * (LOOKS[-1] if self.warm else FULL_ROUNDS), N_CONFIRM)

    def _runs(self, n: int, n_confirming: int) -> RunCount:
        n_cold = n_confirming if self.warm else n
        return RunCount(warm=n - n_cold, cold=n_cold)


WARM = Rules(
    warm=True,
    spent=(0.01, 0.04),
    selection_rounds=LOOKS[-1],
    risk=0.02,
    narrow=0.03,
    width=1.0,
)
"""A run costs little more than its steps. Most races end at the second look."""
COLD = Rules(
    warm=False,
    spent=(0.04, 0.01),
    selection_rounds=FULL_ROUNDS,
    risk=0.15,
    narrow=0.05,
    width=4 / 3,
)
"""Every run starts cold: most races end at the first look, with a somewhat wider interval."""


@dataclass(frozen=True, kw_only=True)
class Racer:
    """A candidate of the race."""

    key: str
    peak_bytes: float
    """Largest peak of its runs; infinite where no meter said."""
    own_log: float | None = None
    """log samples/s of the search's own trial; None: nothing to go by."""


@dataclass(frozen=True, kw_only=True)
class _RobustFit:
    """How fast candidates are, as far as one can know: an additive fit that outliers do not turn.

    Runs beyond `_TAMED_AT` deviations count for less (Huber, Robust Estimation of a Location
    Parameter, 1964): one that met a slow phase would decide otherwise.
    """

    scores: Mapping[str, float]
    """log samples/s of each candidate, less that of the rounds."""
    weights: Mapping[str, float]
    """Runs of each."""
    variance: float
    degrees: int

    def ahead(self, one: str, other: str) -> tuple[float, float]:
        """How far one is ahead of another, and the standard error of that."""
        error = math.sqrt(self.variance * (1 / self.weights[one] + 1 / self.weights[other]))
        return self.scores[one] - self.scores[other], error


def _fit(logs: Logs, own: Mapping[str, float]) -> _RobustFit:
    """Fit the runs of a race and the search's own trials, which are one round more."""
    cells = [(key, -1, value, OWN_TRIAL) for key, value in own.items()]
    cells += [(key, n, value, 1.0) for key, runs in logs.items() for n, value in runs.items()]
    names, design = design_of([(key, n) for key, n, _, _ in cells])
    values = np.array([value for _, _, value, _ in cells])
    counts = np.array([count for _, _, _, count in cells])
    known, squares, degrees = counts.copy(), PRIOR_DEGREES * PRIOR_DEVIATION**2, PRIOR_DEGREES
    for _ in range(_FITS):
        root = np.sqrt(known)
        fit, _, rank, _ = np.linalg.lstsq(design * root[:, None], values * root, rcond=None)
        rest = (values - design @ fit) * np.sqrt(counts)
        free = len(cells) - int(rank)
        # Residuals of so few cells are smaller than the noise, by as much as the fit took.
        middle = float(np.median(np.abs(rest))) / 0.6745 * math.sqrt(len(cells) / max(1, free))
        scale = math.sqrt((squares + free * middle**2) / (degrees + free))
        tamed = np.minimum(1.0, _TAMED_AT * scale / np.maximum(np.abs(rest), 1e-12))
        known = counts * tamed
    share = float((tamed == 1.0).mean())
    variance = squares + float(((rest * tamed) ** 2).sum()) / max(0.25, share) ** 2
    return _RobustFit(
        scores=dict(zip(names, map(float, fit), strict=False)),
        weights={n: math.fsum(c for key, _, _, c in cells if key == n) for n in names},
        variance=variance / (degrees + free),
        degrees=degrees + free,
    )


def blocks_in(logs: Logs) -> Blocks:
    """The runs of a race, compared; as of one round where rounds cannot be told from noise."""
    runs = [
        BlockRun(of=key, round_number=number, log_rate=value)
        for key, by_round in logs.items()
        for number, value in by_round.items()
    ]
    blocks = blocks_of(runs)
    return blocks if blocks.degrees else blocks_of([replace(run, round_number=0) for run in runs])


def _half_width(
    variance: float, degrees: int, *, n_common: int, missed: float, n_others: int
) -> float:
    """Half the width of the interval of a gain over rounds that two ran, in log samples/s.

    The runs that choose the best also judge it, and the luckiest of some equals looks faster than
    the baseline too often. So the interval holds for all the others against the baseline at once.
    """
    quantile = t_quantile(1 - missed / 2 / n_others, degrees)
    return quantile * math.sqrt(2 * variance / n_common)


@dataclass(frozen=True, kw_only=True)
class Race:
    """A race after some whole rounds."""

    racers: tuple[Racer, ...]
    """Those that can still be handed out, the baseline included."""
    baseline: str | None
    logs: Logs
    """Runs of all that have a figure; rounds without gaps up to `n_rounds`."""
    n_rounds: int
    confirmed: Collection[str] = ()
    """Candidates that ran cold."""
    rules: Rules
    named: str | None = None
    """The best by another objective than samples/s, where nobody drops out early; None: the
    fastest is the best."""

    @cached_property
    def blocks(self) -> Blocks:
        """The runs so far, compared."""
        return blocks_in(self.logs)

    @property
    def n_others(self) -> int:
        """Candidates that the interval of a gain over another one has to hold for."""
        return max(1, len(self.logs) - 1)

    def gain(self, of: str, over: str) -> Speedup | None:
        """Ratio of two candidates' samples/s with its interval; None: nothing to judge it by.

        They are compared where both ran a round. The ratio of a candidate to itself is exactly 1;
        its interval then says how large a gain this race would have missed.
        """
        common = set(self.logs.get(of, {})) & set(self.logs.get(over, {}))
        if not self.can_judge or not common:
            return None
        if of == over:
            half = self._half_width(len(common), self.n_rounds)
            return Speedup(ratio=1.0, low=math.exp(-half), high=math.exp(half))
        weights, missed = {of: 1.0, over: -1.0}, self.rules.missed_after(self.n_rounds)
        return self.blocks.gain(weights, of_many=self.n_others, missed=missed)

    @cached_property
    def standing(self) -> tuple[str, ...]:
        """Those that may still be the best, the one that would be named first.

        Only who ran the last round is among them: a candidate that dropped out stays out.
        """
        if self.named is not None:
            return tuple(r.key for r in self._last)
        order = sorted(self._last, key=lambda r: -self._fit.scores[r.key])
        kept: list[Racer] = []
        for racer in order:
            if not kept or not self._is_beaten(racer, order[0]):
                kept.append(racer)
        best = min(
            (r for r in kept if self._is_same(r, order[0])),
            key=lambda r: (r.peak_bytes, order.index(r)),
        )
        # Those that are the same as the best stop being told apart from it.
        kept = [r for r in kept if r is best or not self._is_same(r, best)]
        return (best.key, *(r.key for r in kept if r is not best))

    @property
    def _last(self) -> list[Racer]:
        """Those that ran the last round; where the platform let nobody, all that ran."""
        ran = [r for r in self.racers if r.key in self.logs]
        return [r for r in ran if self.n_rounds - 1 in self.logs[r.key]] or ran

    @property
    def best(self) -> str:
        """The one that would be named now."""
        return self.named or self.standing[0]

    @property
    def loss(self) -> float:
        """Expected loss of naming the best now, as a share: at most the sum over its rivals."""
        best = self._racer(self.standing[0])
        return math.fsum(self._loss(self._racer(key), best) for key in self.standing[1:])

    def next_round(self) -> Round | None:
        """The round to run now; None: the race is over."""
        if self.n_rounds < 1 or not any(r.key != self.baseline for r in self.racers):
            keys = tuple(r.key for r in self.racers)
            is_over = self.n_rounds >= MIN_ROUNDS and set(keys) <= set(self.confirmed)
            cold = not self.rules.warm or self.n_rounds >= MIN_ROUNDS - 1
            return None if is_over else Round(keys=keys, cold=cold)
        if not self._last:
            return None
        confirm, pair = self.confirmation, self._pair
        if self._is_open:
            return Round(keys=self._contenders, cold=False)
        if self.n_rounds >= LOOKS[-1]:
            return confirm if self.n_rounds < BLOCK else None
        is_closed = self._is_closed
        may_end = is_closed or self.n_rounds >= self.rules.selection_rounds
        if may_end and self.n_rounds >= MIN_ROUNDS:
            if self._is_enough(self.n_rounds, 0):
                return confirm
            if confirm is not None and self._is_enough(self.n_rounds + 1, len(pair) - 1):
                return confirm
        return Round(keys=pair if is_closed else self._contenders, cold=not self.rules.warm)

    @property
    def confirmation(self) -> Round | None:
        """A cold round of the best and the baseline; None: both ran cold, or nothing ran."""
        if not self._last:
            return None
        pair = self._pair
        if {self.best, *pair} <= set(self.confirmed):
            return None
        return Round(keys=pair, cold=True)

    @property
    def can_judge(self) -> bool:
        """Whether ratios have an interval."""
        return self.blocks.degrees > 0

    @property
    def by_score(self) -> tuple[str, ...]:
        """All that ran, the fastest first, those that dropped out included."""
        ran = [r.key for r in self.racers if r.key in self.logs]
        return tuple(sorted(ran, key=lambda key: -self._fit.scores[key]))

    def left_behind(self, among: Collection[str]) -> frozenset[str]:
        """Those that dropped out, and that one of some is surely faster than.

        Who stopped for another reason is not among them: the same as the best, or the choice was
        made. Nor is the baseline, which runs on: its interval says whether it is slower.
        """
        ahead = [racer for racer in self._last if racer.key in among]
        leader = max(ahead, key=lambda racer: self._fit.scores[racer.key], default=None)
        return frozenset(
            racer.key
            for racer in self.racers
            if leader is not None
            and racer.key in self.logs
            and racer not in self._last
            and racer.key != self.baseline
            and self._is_beaten(racer, leader)
        )

    @property
    def _pair(self) -> tuple[str, ...]:
        """The best beside the baseline, and the baseline, which also wants somebody to beat it."""
        order = [r.key for r in sorted(self._last, key=lambda r: -self._fit.scores[r.key])]
        others = [key for key in (self.best, *order) if key != self.baseline]
        fixed = () if self.baseline is None else (self.baseline,)
        return (*others[:1], *fixed)

    @property
    def _contenders(self) -> tuple[str, ...]:
        """All who may be the best, and the baseline."""
        others = [key for key in self.standing if key != self.baseline]
        fixed = () if self.baseline is None else (self.baseline,)
        return (*others, *fixed) if others else self._pair

    @property
    def _is_open(self) -> bool:
        """Whether the last look is over, and which one is named still matters."""
        is_late = LOOKS[-1] <= self.n_rounds < OPEN_ROUNDS
        return is_late and self.rules.warm and self.named is None and self.loss >= LOSS

    @property
    def _is_closed(self) -> bool:
        """Whether it does not matter any more which one is named."""
        if self.named is not None:
            return self.n_rounds >= FULL_ROUNDS
        if self.loss >= LOSS:
            return False
        best = self._racer(self.standing[0])
        rivals = map(self._racer, self.standing[1:])
        return math.fsum(self._risk(rival, best) for rival in rivals) < self.rules.risk

    def _is_enough(self, n_rounds: int, n_more_degrees: int) -> bool:
        """Whether the interval is narrow enough after so many rounds, as far as one can know."""
        if self.baseline is None:
            return True
        gain = self.gain(self._pair[0], self.baseline)
        if n_rounds not in LOOKS or gain is None:
            return False
        # As wide as `FULL_ROUNDS` of everybody would have it, with nobody looking before.
        full = _half_width(
            self.blocks.variance,
            self.n_others * (FULL_ROUNDS - 1),
            n_common=FULL_ROUNDS,
            missed=2 * (1 - CONFIDENCE),
            n_others=self.n_others,
        )
        enough = max(self.rules.narrow, SHARE_OF_GAIN * abs(math.log(gain.ratio)))
        half = self._half_width(n_rounds, n_rounds, n_more_degrees)
        return half <= max(enough, self.rules.width * full)

    def _half_width(self, n_common: int, n_rounds: int, n_more_degrees: int = 0) -> float:
        return _half_width(
            self.blocks.variance,
            self.blocks.degrees + n_more_degrees,
            n_common=n_common,
            missed=self.rules.missed_after(n_rounds),
            n_others=self.n_others,
        )

    def _racer(self, key: str) -> Racer:
        return next(r for r in self.racers if r.key == key)

    @cached_property
    def _fit(self) -> _RobustFit:
        own = {r.key: r.own_log for r in self.racers if r.own_log is not None}
        return _fit(self.logs, {key: log for key, log in own.items() if key in self.logs})

    def _is_beaten(self, racer: Racer, leader: Racer) -> bool:
        ahead, error = self._fit.ahead(racer.key, leader.key)
        return upper_probability(-ahead / error, self._fit.degrees) < SURE

    def _is_same(self, one: Racer, other: Racer) -> bool:
        """Whether it does not matter which of the two is named."""
        return one is other or (
            max(self._loss(one, other), self._loss(other, one)) < LOSS
            and max(self._risk(one, other), self._risk(other, one)) < self.rules.risk
        )

    def _loss(self, left: Racer, named: Racer) -> float:
        """Expected loss of naming one where the other is left."""
        ahead, error = self._fit.ahead(left.key, named.key)
        return error * expected_loss(-ahead / error, self._fit.degrees)

    def _risk(self, left: Racer, named: Racer) -> float:
        """Probability that naming one where the other is left costs more than `DEAR`."""
        ahead, error = self._fit.ahead(left.key, named.key)
        return upper_probability((DEAR - ahead) / error, self._fit.degrees)
