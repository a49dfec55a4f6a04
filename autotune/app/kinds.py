"""Shares of one budget for a search of each kind of accelerator of a fleet."""

import math
from dataclasses import dataclass, replace

from autotune.job.job import Budget


@dataclass(frozen=True, kw_only=True)
class BudgetShare:
    """What each search may have spent of a common budget by the end of a round."""

    of_budget: float
    """0 to 1."""
    is_last: bool
    """Whether this is the last round, which uses up the budget."""

    def apply(self, budget: Budget) -> Budget:
        """This share of a budget; a trial at the least."""
        time_s = None if budget.time_s is None else budget.time_s * self.of_budget
        return replace(budget, trials=max(1, int(budget.trials * self.of_budget)), time_s=time_s)


WHOLE = BudgetShare(of_budget=1.0, is_last=True)
"""The share of a search that has a budget of its own."""


class Rounds:
    """Shares of one budget for several searches, of which those that are behind drop out.

    Every round spends as much, so that the fewer go on, the more each of them gets (successive
    halving: Jamieson and Talwalkar, Non-stochastic Best Arm Identification, AISTATS 2016).
    """

    def __init__(self, n_searches: int) -> None:
        self._n_left = _n_rounds(n_searches)
        """Rounds that are left at the most."""
        self._unspent = 1.0
        """Share of the budget that no round has given away."""
        self._each = 0.0
        """Share that each of those that go on has got so far."""
        self._latest = 0.0
        """What the latest round added to it."""

    def next(self, n_searches: int) -> BudgetShare:
        """The share of each of those that go on."""
        n_rounds = min(self._n_left, _n_rounds(n_searches))
        more = self._latest = self._unspent / n_rounds / n_searches
        self._n_left = n_rounds - 1
        self._unspent -= more * n_searches
        self._each += more
        return BudgetShare(of_budget=self._each, is_last=n_rounds == 1)

    def give_back(self) -> None:
        """A search of the latest round spent nothing of what that round added to its share."""
        self._unspent += self._latest


def _n_rounds(n_searches: int) -> int:
    """Rounds after which one is left where half of them drop out each time, and its own."""
    return 1 + math.ceil(math.log2(n_searches))
