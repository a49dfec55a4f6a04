"""Trials in rounds: who runs in the next one, what of it is missing, and what runs cost.

A rule names the members of a round from what the rounds before it measured. A round is over when
the record holds its trials, so whoever starts again goes on where the record ends. The final
comparison (`autotune.search.confirm`), the ladder of changes (`autotune.search.worth`) and a gate
(`autotune.search.gate`) are rules; a plan asks the rule of the comparison how many runs it takes
at most.
"""

import itertools
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from autotune.contract import Role, Start, TrialResult
from autotune.record.blocks import Logs
from autotune.record.spread import is_figure, log_rate
from autotune.record.study import Trial, results
from autotune.search.history import History, counting, is_settled
from autotune.search.runner import Runner
from autotune.search.session import Session
from autotune.search.trial_spec import Run, steps_within
from autotune.space.candidate import Candidate

FULL_ROUNDS = 3
"""Rounds of a comparison in which everybody runs every round."""

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


@dataclass(frozen=True, eq=False)
class Runs:
    """What a record holds of some rounds."""

    trials: Mapping[tuple[str, int], Sequence[Trial]]
    """Candidate's hash and round, from 0 -> the trials of that run, repeats included."""

    @classmethod
    def of(
        cls, trials: Iterable[Trial], first_round: int = 0, n_rounds: int | None = None
    ) -> Self:
        """Trials of the record's rounds from one on; of so many of them, or of all."""
        found: dict[tuple[str, int], list[Trial]] = {}
        end = math.inf if n_rounds is None else n_rounds
        for trial in trials:
            number = trial.spec.identity.confirm_round
            if number is not None and 0 <= (at := number - first_round) < end:
                found.setdefault((trial.candidate_hash, at), []).append(trial)
        return cls(found)

    @cached_property
    def figures(self) -> dict[tuple[str, int], TrialResult]:
        counted = ((at, counting(trials)) for at, trials in sorted(self.trials.items()))
        return {at: run for at, run in counted if run is not None and is_figure(run)}

    @cached_property
    def logs(self) -> Logs:
        logs: dict[str, dict[int, float]] = {}
        for (key, number), run in self.figures.items():
            logs.setdefault(key, {})[number] = log_rate(run)
        return logs

    def figures_of(self, key: str) -> list[TrialResult]:
        return [run for (of, _), run in self.figures.items() if of == key]

    def ended_of(self, key: str) -> list[TrialResult]:
        of_it = (trials for (of, _), trials in self.trials.items() if of == key)
        return results(itertools.chain.from_iterable(of_it))

    def progress(self, rule: Rule, to_repeat: Collection[int] = ()) -> OpenRound:
        """Go through the rounds of a rule up to the first in which a run is missing.

        `to_repeat` are numbers of disturbed trials that have to run again.
        """
        for number in itertools.count():
            asked = rule(number)
            missing = tuple(
                key
                for key in (() if asked is None else asked.keys)
                if not is_settled(self.trials.get((key, number), ()), to_repeat)
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
        return Runs.of(self.runner.history.trials, self.first_round)

    @property
    def to_repeat(self) -> frozenset[int]:
        """Numbers of the disturbed runs of these rounds that deserve to be run once more."""
        return History(itertools.chain.from_iterable(self.runs.trials.values())).to_repeat

    @property
    def step_s(self) -> float | None:
        """Seconds of the longest step so far; None: nobody knows."""
        return max((run.step_time_s or 0.0 for run in self.runs.figures.values()), default=None)

    def run_all(self) -> bool:
        """Run all that the rule asks for; False if the user ended it.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free, or the platform ends one trial after the other.
            RenderError: A configuration does not render.
        """
        seed = self.session.job.seed
        while (at := self.runs.progress(self.round_after, self.to_repeat)).round is not None:
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
        ).again(self.runs.trials.get((key, number), ()), self.to_repeat)
        again = "" if run.repeat_of is None else ", once more: other work disturbed it"
        return self.runner.run_candidate(self.session, run, self.about(run, number) + again)


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
