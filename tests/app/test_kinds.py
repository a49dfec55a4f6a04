"""One budget for searches of several kinds of accelerator."""

import pytest

from autotune.app.kinds import BudgetShare, Rounds
from autotune.job.job import Budget


@pytest.mark.parametrize(
    ("going", "shares"),
    [
        ([2, 1], [1 / 4, 3 / 4]),
        ([2, 2], [1 / 4, 1 / 2]),
        ([3, 2, 1], [1 / 9, 5 / 18, 11 / 18]),
        ([3, 1], [1 / 9, 7 / 9]),
        ([1], [1.0]),
    ],
)
def test_rounds_spend_the_budget_once(going: list[int], shares: list[float]) -> None:
    rounds = Rounds(going[0])
    found = [rounds.next(n_searches) for n_searches in going]
    assert [share.of_budget for share in found] == pytest.approx(shares)
    assert [share.is_last for share in found] == [False] * (len(going) - 1) + [True]
    ends = zip(going, [*going[1:], 0], found, strict=True)
    assert sum((n - left) * share.of_budget for n, left, share in ends) == pytest.approx(1)


def test_a_share_is_a_trial_at_the_least() -> None:
    budget = Budget(trials=3, time_s=60.0, patience=5)
    shared = BudgetShare(of_budget=0.25, is_last=False).apply(budget)
    assert shared == Budget(trials=1, time_s=15.0, patience=5)
