"""One budget for searches of several kinds of accelerator."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.app import searching
from autotune.app.kinds import BudgetShare, Rounds
from autotune.app.searching import Caller, SearchCall
from autotune.base.errors import NothingFeasibleError
from autotune.fleet.options import FleetOptions
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


def test_what_a_search_did_not_begin_to_spend_goes_to_the_others() -> None:
    rounds = Rounds(2)
    rounds.next(2)
    rounds.give_back()
    assert rounds.next(1) == BudgetShare(of_budget=1.0, is_last=True)


def test_a_first_share_that_is_too_small_for_every_kind_ends_none(monkeypatch) -> None:
    """Of three kinds one can run nothing at all; the others find something in the second round."""
    asked = []

    def run_one(call, caller, share):
        kind = call.options.kind
        asked.append((kind, round(share.of_budget, 3)))
        if kind == "=small":
            raise NothingFeasibleError("nothing fits", "more memory")
        no_time = NothingFeasibleError("no time", "a larger budget")
        error = no_time if share.of_budget < 0.3 else None
        answer = SimpleNamespace(study=SimpleNamespace(name=kind, folder=kind), interrupted=False)
        return SimpleNamespace(answer=answer, error=error)

    said: list[str] = []
    monkeypatch.setattr(searching, "_run_one", run_one)
    monkeypatch.setattr(searching, "_leading", lambda going, *_: list(going.values()))
    options = [FleetOptions(kind=f"={kind}") for kind in ("a", "small", "b")]
    calls = [SearchCall(flags={}, results=Path("results"), options=each) for each in options]
    endings = searching._run_in_rounds(calls, Caller(say=said.append))
    first, second = 1 / 9, 1 / 9 + (1 - 2 / 9) / 2 / 2
    later = [("=a", round(second, 3)), ("=b", round(second, 3)), ("=a", 0.5), ("=b", 0.5)]
    assert asked == [(kind, round(first, 3)) for kind in ("=a", "=small", "=b")] + later
    assert [ending.error for ending in endings] == [None, None]
    assert "small is left out: nothing fits" in said
