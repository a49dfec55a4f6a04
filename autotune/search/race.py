"""The rule of the final comparison: who runs the next round, and when it is over.

Everything follows from log samples/s by candidate and round, so that a comparison that was cut
short goes on as it was. Each round is a block (`autotune.record.blocks`). Two questions are asked
of the same runs:

- Which is the best? Differences below `ZONE` do not matter: whoever is hardly that much faster
  than the leader drops out, and the rest run until another one than the best is `UNLIKELY` to be
  (Kim and Nelson, A Fully Sequential Procedure for Indifference-Zone Selection in Simulation, ACM
  Transactions on Modeling and Computer Simulation 11, 2001). The search's own trial counts as one
  run.
- How large is the gain? Its interval is looked at twice, and each look may end the race. Half of
  the 5% that a 95% interval may miss goes to each (Bonferroni).

`benchmarks/final_comparison.py` shows what the rule is worth.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from autotune.base.student_t import expected_loss, t_quantile, upper_probability
from autotune.contract import Start
from autotune.record.answer import Speedup
from autotune.record.blocks import Blocks, Logs, blocks_of
from autotune.record.spread import PRIOR_DEGREES, PRIOR_DEVIATION
from autotune.search.rounds import Round

BLOCK = 8
"""Round numbers that one race has: those that it runs, and some for a winner that changed late."""
MIN_ROUNDS = 2
"""Below two runs of each there is no between-run variance to speak of."""
LOSS = 0.006
"""Expected loss of samples/s, as a share, below which it does not matter which one is named."""
ZONE = 0.02
"""Difference in log samples/s up to which a choice is as good as another."""
UNLIKELY = 0.08
"""Probability that one of the others is faster by more than `ZONE` at which the best is named."""
FIRST_LOOK, LAST_LOOK = 3, 4
"""Rounds after which the gain is looked at."""
N_CONFIRM = 2
"""Candidates that are confirmed cold: the best and the baseline."""
SURE = 0.03
"""Probability of being faster by more than `ZONE` below which a candidate drops out."""
MISSED = 0.025
"""Share of looks that may miss the true gain, of which there are two."""
NARROW = 0.06
"""Half width of the gain's interval, in log samples/s, that is narrow enough."""
SHARE_OF_GAIN = 1 / 4
"""Or as a share of the gain: whether it is 1.9 or 2.1 times as fast changes nothing."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How runs start, and what that costs."""

    start: Start
    """Start of runs that need not confirm anything."""

    @property
    def selection_rounds(self) -> int:
        """Rounds that everybody runs who may still be the best, at most."""
        return BLOCK - 1 if self.start is Start.WARM else FIRST_LOOK

    def most_runs(self, n_members: int) -> Counter[Start]:
        """Runs of a race of so many, at most, without repeats and a late best."""
        n_pair = min(n_members, N_CONFIRM)
        n = n_members * self.selection_rounds + n_pair
        return self._runs(n if n_members > 1 else n_members * MIN_ROUNDS, n_pair)

    @property
    def usual_runs(self) -> Counter[Start]:
        """Runs of a race of two that ends at the first look: what a search keeps time for."""
        return self._runs(N_CONFIRM * FIRST_LOOK, N_CONFIRM)

    def _runs(self, n: int, n_confirming: int) -> Counter[Start]:
        return Counter({self.start: n - n_confirming}) + Counter({Start.COLD: n_confirming})


WARM = Rules(start=Start.WARM)
"""A run costs little more than its steps."""
COLD = Rules(start=Start.COLD)
"""Every run starts cold."""


def blocks_in(logs: Logs) -> Blocks:
    """The runs of a race, compared; as of one round where rounds cannot be told from noise."""
    blocks = blocks_of(logs)
    return blocks if blocks.degrees else blocks_of(logs, tells_rounds=False)


@dataclass(frozen=True, kw_only=True)
class Race:
    """A race after some whole rounds."""

    peaks: Mapping[str, float]
    """Those that can still be handed out, the baseline included: candidate -> the largest peak of
    its runs in bytes, infinite where no meter said."""
    trial_logs: Mapping[str, float] = field(default_factory=dict)
    """log samples/s of the search's own trials."""
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
        return blocks_in(self.logs)

    @property
    def can_judge(self) -> bool:
        return self.blocks.degrees > 0

    def gain(self, of: str, over: str) -> Speedup | None:
        """Ratio of two candidates' samples/s with its interval; None: nothing to judge it by.

        They are compared where both ran a round. The ratio of a candidate to itself is exactly 1;
        its interval then says how large a gain this race would have missed. The runs that choose
        the best also judge it, so the interval holds for all the others at once.
        """
        common = set(self.logs.get(of, {})) & set(self.logs.get(over, {}))
        if not self.can_judge or not common:
            return None
        n_others = max(1, len(self.logs) - 1)
        if of != over:
            return self.blocks.gain({of: 1.0, over: -1.0}, of_many=n_others, missed=MISSED)
        half = t_quantile(1 - MISSED / 2 / n_others, self.blocks.degrees)
        half *= math.sqrt(2 * self.blocks.variance / len(common))
        return Speedup.around(0.0, half)

    @cached_property
    def standing(self) -> tuple[str, ...]:
        """Those that may still be the best, the one that would be named first.

        Only who ran the last round is among them: a candidate that dropped out stays out. Of those
        that tie with the fastest, the one with the smallest peak is named.
        """
        if self.named is not None:
            return tuple(self._last)
        order = sorted(self._last, key=self._fastest.index)
        left = [key for key in order if self._probability_ahead(key, order[0]) >= SURE]
        ties = [
            key
            for key in order
            if self._is_tie(key, order[0]) and not self._is_beaten(key, order[0])
        ]
        best = min(ties, key=lambda key: self.peaks[key])
        return (best, *(key for key in left if not self._is_tie(key, best)))

    @property
    def best(self) -> str:
        return self.named or self.standing[0]

    def next_round(self) -> Round | None:
        """The round to run now; None: the race is over."""
        n, start = self.n_rounds, self.rules.start
        if n < 1 or len(self.peaks) < 2:
            keys = tuple(self.peaks)
            is_over = n >= MIN_ROUNDS and set(keys) <= set(self.confirmed)
            last_start = start if n < MIN_ROUNDS - 1 else Start.COLD
            return None if is_over else Round(keys=keys, start=last_start)
        if not self._last:
            return None
        is_chosen = n >= self.rules.selection_rounds or self._is_chosen
        if n >= LAST_LOOK and is_chosen:
            return self.confirmation if n < BLOCK else None
        if n == FIRST_LOOK and self.confirmation is None and self._is_narrow:
            return None
        if is_chosen and n + 1 in (FIRST_LOOK, LAST_LOOK) and self.confirmation is not None:
            return self.confirmation
        return Round(keys=self._pair if is_chosen else self._contenders, start=start)

    @property
    def confirmation(self) -> Round | None:
        """A cold round of the best and the baseline; None: both ran cold, or nothing ran."""
        if not self._last or {self.best, *self._pair} <= set(self.confirmed):
            return None
        return Round(keys=self._pair)

    @property
    def by_score(self) -> tuple[str, ...]:
        """All that ran, the fastest first, those that dropped out included."""
        return tuple(self._fastest)

    def left_behind(self, among: Collection[str]) -> frozenset[str]:
        """Those that dropped out, and that one of some is surely faster than.

        Who stopped for another reason is not among them: the same as the best, or the choice was
        made. Nor is the baseline, which runs on: its interval says whether it is slower.
        """
        leader = next((key for key in self._fastest if key in self._last and key in among), None)
        out = set(self.by_score) - set(self._last) - {self.baseline}
        return frozenset(key for key in out if leader and self._is_beaten(key, leader))

    @property
    def _last(self) -> list[str]:
        """Those that ran the last round; where the platform let nobody, all that ran."""
        ran = [key for key in self.peaks if key in self.logs]
        return [key for key in ran if self.n_rounds - 1 in self.logs[key]] or ran

    @property
    def _pair(self) -> tuple[str, ...]:
        """The best beside the baseline, and the baseline, which also wants somebody to beat it."""
        order = [self.best, *(key for key in self._fastest if key in self._last)]
        return self._beside_baseline([key for key in order if key != self.baseline][:1])

    @property
    def _contenders(self) -> tuple[str, ...]:
        """All who may be the best, and the baseline."""
        others = [key for key in self.standing if key != self.baseline]
        return self._beside_baseline(others) if others else self._pair

    def _beside_baseline(self, others: list[str]) -> tuple[str, ...]:
        return (*others, *(() if self.baseline is None else (self.baseline,)))

    @property
    def _is_chosen(self) -> bool:
        """Whether it does not matter any more which one is named."""
        if self.named is not None or self.n_rounds < MIN_ROUNDS:
            return self.n_rounds >= FIRST_LOOK
        best, *rivals = self.standing
        return math.fsum(self._probability_ahead(rival, best) for rival in rivals) < UNLIKELY

    @property
    def _is_narrow(self) -> bool:
        """Whether the gain is known well enough."""
        gain = None if self.baseline is None else self.gain(self._pair[0], self.baseline)
        if gain is None:
            return self.baseline is None
        enough = max(NARROW, SHARE_OF_GAIN * abs(math.log(gain.ratio)))
        return math.log(gain.high / gain.low) / 2 <= enough

    @cached_property
    def _fit(self) -> Blocks:
        """The runs and the search's own trials, which are one round more, with the prior."""
        trials = {key: {-1: log} for key, log in self.trial_logs.items()}
        blocks = blocks_of(
            {key: {**trials.get(key, {}), **series} for key, series in self.logs.items()}
        )
        squares = blocks.degrees * blocks.variance + PRIOR_DEGREES * PRIOR_DEVIATION**2
        degrees = blocks.degrees + PRIOR_DEGREES
        return replace(blocks, variance=squares / degrees, degrees=degrees)

    @cached_property
    def _fastest(self) -> list[str]:
        """All that ran, the fastest first; as fast but for rounding, as `peaks` has them."""
        effects = self._fit.effects.round(9)
        ran = [key for key in self.peaks if key in self._fit.names]
        return sorted(ran, key=lambda key: -effects[self._fit.names[key]])

    def _ahead(self, key: str, of: str) -> tuple[float, float]:
        """How far one is ahead of another, and the standard error of that."""
        return self._fit.contrast({key: 1.0, of: -1.0})

    def _probability_ahead(self, key: str, of: str, *, margin: float = ZONE) -> float:
        """Probability that one is faster than another by more than that; 1: it is the same."""
        if key == of:
            return 1.0
        ahead, error = self._ahead(key, of)
        return upper_probability((margin - ahead) / error, self._fit.degrees)

    def _is_beaten(self, key: str, leader: str) -> bool:
        """Whether the leader is surely faster, by however little."""
        return self._probability_ahead(key, leader, margin=0.0) < SURE

    def _is_tie(self, key: str, other: str) -> bool:
        """Whether it does not matter which of the two is named."""
        return key == other or max(self._loss(key, other), self._loss(other, key)) < LOSS

    def _loss(self, left: str, named: str) -> float:
        """Expected loss of naming one where the other is left."""
        ahead, error = self._ahead(left, named)
        return error * expected_loss(-ahead / error, self._fit.degrees)
