"""Trials in rounds: who runs in the next one, what of it is missing, and what runs cost.

A rule names the members of a round from what the rounds before it measured. A round is over when
the record holds its trials, so whoever starts again goes on where the record ends. The final
comparison (`autotune.search.confirm`), the ladder of changes (`autotune.search.worth`), the two
halves of a soak (`autotune.search.soak`) and a gate (`autotune.search.gate`) are rules; a plan
asks the rule of the comparison how many runs it takes at most.
"""

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.contract import TrialResult
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.search.history import History, counting, is_settled

FULL_ROUNDS = 3
"""Rounds of a comparison in which everybody runs every round."""

Runs = Mapping[tuple[str, int], Sequence[Trial]]
"""Candidate's hash and round -> the trials of that run, repeats included."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round to run."""

    keys: tuple[str, ...]
    """Hashes of its candidates."""
    cold: bool
    """Whether its runs start cold whatever the job says."""


Rule = Callable[[int], Round | None]
"""The round that follows so many whole ones; None: none does."""


@dataclass(frozen=True, kw_only=True)
class OpenRound:
    """The first round that is not over."""

    number: int
    round: Round | None
    """None: the rule asks for no more."""
    missing: tuple[str, ...]
    """Its candidates that are still to run."""

    @property
    def is_begun(self) -> bool:
        """Whether one of its candidates needs no further run."""
        return self.round is not None and len(self.missing) < len(self.round.keys)


def progress_of(rule: Rule, runs: Runs, to_repeat: Collection[int] = ()) -> OpenRound:
    """Go through recorded rounds up to the first in which a run is missing.

    Args:
        rule: Names the members of each round.
        runs: The record's trials; rounds count from 0.
        to_repeat: Numbers of disturbed trials that have to run again.
    """
    for number in itertools.count():
        asked = rule(number)
        missing = tuple(
            key
            for key in (() if asked is None else asked.keys)
            if not is_settled(runs.get((key, number), ()), to_repeat)
        )
        if asked is None or missing:
            return OpenRound(number=number, round=asked, missing=missing)
    raise AssertionError("unreachable")


def run_rounds(
    rule: Rule,
    runs: dict[tuple[str, int], list[Trial]],
    run_once: Callable[[str, int], Trial | None],
    seed: int,
    *,
    repeats: bool = False,
) -> bool:
    """Run what a rule asks for from where the record ends; False if the user ended it.

    Args:
        rule: Names the members of each round.
        runs: The record's trials, to which those that run are added.
        run_once: Runs a candidate in a round; None: the user ended it.
        seed: Of the order in a round.
        repeats: Whether disturbed runs run once more.
    """
    while True:
        to_repeat = History(itertools.chain(*runs.values())).to_repeat if repeats else ()
        at = progress_of(rule, runs, to_repeat)
        if at.round is None:
            return True
        order = in_turn(at.round.keys, at.number, seed)
        key = next(key for key in order if key in at.missing)
        if (trial := run_once(key, at.number)) is None:
            return False
        runs.setdefault((key, at.number), []).append(trial)


def runs_of(trials: Iterable[Trial], first_round: int = 0) -> dict[tuple[str, int], list[Trial]]:
    """Trials by candidate and round; rounds count from the first one, and earlier ones are out."""
    runs: dict[tuple[str, int], list[Trial]] = {}
    for trial in trials:
        identity = trial.spec.identity
        if identity.confirm_round is not None and identity.confirm_round >= first_round:
            key = identity.candidate_hash, identity.confirm_round - first_round
            runs.setdefault(key, []).append(trial)
    return runs


def figures_in(runs: Runs) -> dict[tuple[str, int], TrialResult]:
    """The result that counts of each run that has a figure."""
    counted = ((at, counting(trials)) for at, trials in sorted(runs.items()))
    return {at: run for at, run in counted if run is not None and is_figure(run)}


def in_turn(keys: Collection[str], number: int, seed: int) -> list[str]:
    """The order of a round: shuffled once by the seed, and turned a bit further every round.

    So nobody always runs first, and drift (a warming machine) meets all alike. Of many candidates
    each runs early, in the middle and late within `FULL_ROUNDS`.
    """
    order = sorted(keys)
    random.Random(seed).shuffle(order)
    turned = number * max(1, len(order) // FULL_ROUNDS) % max(1, len(order))
    return [*order[turned:], *order[:turned]]


@dataclass(frozen=True, kw_only=True)
class RunCount:
    """Runs, by how they start."""

    warm: int = 0
    cold: int = 0

    @property
    def total(self) -> int:
        """Runs of either kind."""
        return self.warm + self.cold


@dataclass(frozen=True, kw_only=True)
class RunSeconds:
    """Seconds that one run takes, by how it starts."""

    warm: float
    cold: float

    def one(self, *, cold: bool) -> float:
        """Seconds of one run."""
        return self.cold if cold else self.warm

    def of(self, count: RunCount) -> float:
        """Seconds of some runs, one after the other."""
        return count.warm * self.warm + count.cold * self.cold
