"""Trials in rounds: who runs in the next one, what of it is missing, and what runs cost.

A rule names the members of a round from what the rounds before it measured. A round is over when
the record holds its trials, so whoever starts again goes on where the record ends. The final
comparison (`autotune.search.confirm`), the ladder of changes (`autotune.search.worth`) and a gate
(`autotune.search.gate`) are rules; a plan asks the rule of the comparison how many runs it takes
at most.
"""

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.contract import Role, Start, TrialResult
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.search.history import History, counting, is_settled
from autotune.search.runner import Runner
from autotune.search.session import Session
from autotune.search.trial_spec import Run, steps_within
from autotune.space.candidate import Candidate

FULL_ROUNDS = 3
"""Rounds of a comparison in which everybody runs every round."""

Runs = Mapping[tuple[str, int], Sequence[Trial]]
"""Candidate's hash and round -> the trials of that run, repeats included."""


Seconds = Mapping[Start, float]
"""Seconds of one run, by its start."""


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round to run."""

    keys: tuple[str, ...]
    """Hashes of its candidates."""
    start: Start = Start.COLD
    """Whether its runs start cold whatever the job says, or warm where they may."""


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


@dataclass(kw_only=True)
class Rounds(ABC):
    """Candidates of a session that run again in rounds, one by one, from where its record ends."""

    session: Session
    runner: Runner
    n_rounds: int
    """Rounds, at most."""
    first_round: int = 0
    """The record's round that is the first of these; others have those before."""

    def __post_init__(self) -> None:
        self.runner.history = self.session.history_to_resume()

    @abstractmethod
    def round_after(self, n_rounds: int) -> Round | None:
        """The rule."""

    @abstractmethod
    def candidate_of(self, key: str) -> Candidate:
        """The candidate of a hash that the rule named."""

    @abstractmethod
    def about(self, run: Run, number: int) -> str:
        """What is run in a round, in words."""

    @property
    def runs(self) -> Runs:
        """The record's trials of these rounds."""
        return runs_of(self.runner.history.trials, self.first_round)

    @property
    def figures(self) -> dict[tuple[str, int], TrialResult]:
        """The result that counts of each run that has a figure."""
        return figures_in(self.runs)

    @property
    def to_repeat(self) -> frozenset[int]:
        """Numbers of the disturbed runs of these rounds that deserve to be run once more."""
        return History(itertools.chain.from_iterable(self.runs.values())).to_repeat

    @property
    def step_s(self) -> float | None:
        """Seconds of the longest step so far; None: nobody knows."""
        return max((run.step_time_s or 0.0 for run in self.figures.values()), default=None)

    def run_all(self) -> bool:
        """Run all that the rule asks for; False if the user ended it.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free, or the platform ends one trial after the other.
            RenderError: A configuration does not render.
        """
        seed = self.session.job.seed
        while (at := progress_of(self.round_after, self.runs, self.to_repeat)).round is not None:
            order = in_turn(at.round.keys, at.number, seed)
            if self.run_once(next(key for key in order if key in at.missing), at.number) is None:
                return False
        return True

    def run_once(self, key: str, number: int) -> Trial | None:
        """Run a candidate in a round; again where it was ended by the platform, or disturbed."""
        run = Run(
            candidate=self.candidate_of(key),
            role=Role.CONFIRM,
            confirm_round=self.first_round + number,
            least_steps=steps_within(self.session.job.guard_steps, self.step_s),
        ).again(self.runs.get((key, number), ()), self.to_repeat)
        again = "" if run.repeat_of is None else ", once more: other work disturbed it"
        return self.runner.run_candidate(self.session, run, self.about(run, number) + again)


def runs_of(trials: Iterable[Trial], first_round: int = 0) -> Runs:
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


def seconds_of(count: Mapping[Start, int], one_s: Seconds) -> float:
    """Seconds of some runs, one after the other."""
    return sum(n * one_s[start] for start, n in count.items())
