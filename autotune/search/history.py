"""The record as a search sees it: candidates with their trials, and what is still owed to each."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.candidate import Candidate
from autotune.contract import Outcome, Phase, Role, TrialResult, TrialSpec
from autotune.record import Trial

MAX_RETRIES = 2
"""Runs that a candidate gets after the first when the platform ended it; then it is left."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate of the record with its trials, by number."""

    candidate: Candidate
    trials: tuple[Trial, ...]

    @property
    def explored(self) -> tuple[Trial, ...]:
        """Its trials outside the final comparison."""
        return tuple(trial for trial in self.trials if trial.spec.role is not Role.CONFIRM)

    @property
    def measured(self) -> TrialResult | None:
        """The first result with a step time; the final comparison's do not count."""
        return next((r for r in results(self.explored) if r.outcome.is_measured), None)

    @property
    def fault(self) -> TrialResult | None:
        """The first result that the configuration spoilt, in any role: it would happen again."""
        return next((r for r in results(self.trials) if r.outcome.is_config_fault), None)

    @property
    def is_running(self) -> bool:
        """Whether one of its trials is in flight."""
        return any(trial.result is None for trial in self.trials)

    @property
    def is_settled(self) -> bool:
        """Whether no further trial is owed to it; a cancelled trial settles nothing."""
        return is_settled(self.explored)

    @property
    def is_owed(self) -> bool:
        """Whether the platform or the user ended its trials, and it deserves another."""
        return bool(self.explored) and not self.is_settled and not self.is_running

    @property
    def is_searched(self) -> bool:
        """Whether the search proper proposed it."""
        return any(trial.spec.role is Role.SEARCH for trial in self.trials)


class History:
    """The trials of a record that answer for one job, grouped by candidate."""

    def __init__(self, trials: Iterable[Trial] = ()) -> None:
        self._trials: dict[int, Trial] = {}
        for trial in trials:
            self.put(trial)

    def put(self, trial: Trial) -> None:
        """Add a trial, or replace it now that it has a result."""
        self._trials[trial.spec.number] = trial

    @property
    def trials(self) -> tuple[Trial, ...]:
        """All trials, by number."""
        return tuple(self._trials[number] for number in sorted(self._trials))

    @property
    def explored(self) -> "History":
        """The same without the final comparison, which must not change what led to it."""
        return History(t for t in self.trials if t.spec.role is not Role.CONFIRM)

    @property
    def tried(self) -> tuple[Tried, ...]:
        """The candidates in the order in which they were first tried."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.spec.candidate_hash, []).append(trial)
        return tuple(
            Tried(candidate=candidate_of(group[0].spec), trials=tuple(group))
            for group in groups.values()
        )

    def find(self, candidate: Candidate) -> Tried | None:
        """What the record holds of a candidate."""
        trials = tuple(t for t in self.trials if t.spec.candidate_hash == candidate.hash)
        return Tried(candidate=candidate, trials=trials) if trials else None

    @property
    def counts(self) -> Counter[Outcome]:
        """Ended trials by outcome."""
        return Counter(result.outcome for result in results(self.trials))

    @property
    def typical_s(self) -> float | None:
        """Median seconds of a measured trial, of any ended one where none was; None: no idea."""
        ended = [r for r in results(self.trials) if r.wall_s > 0]
        measured = [r for r in ended if r.outcome.is_measured]
        return statistics.median(r.wall_s for r in measured or ended) if ended else None

    @property
    def slower_start_s(self) -> float:
        """Seconds until its imports were done that the slowest trial took more than the median.

        Of warm trials that is the first: its template imports what a cold one does.
        """
        phases = (Phase.SPAWN, Phase.IMPORT)
        starts = [sum(r.phases_s.get(p, 0.0) for p in phases) for r in results(self.trials)]
        return max(starts) - statistics.median(starts) if starts else 0.0


def results(trials: Iterable[Trial]) -> list[TrialResult]:
    """The results that there are."""
    return [trial.result for trial in trials if trial.result is not None]


def is_settled(trials: Sequence[Trial]) -> bool:
    """Whether these trials of one candidate answer, or the platform failed it too often."""
    outcomes = [result.outcome for result in results(trials)]
    if any(outcome.is_measured or outcome.is_config_fault for outcome in outcomes):
        return True
    return sum(outcome.is_platform_fault for outcome in outcomes) > MAX_RETRIES


def candidate_of(spec: TrialSpec) -> Candidate:
    """The candidate that a trial ran."""
    return Candidate.of(spec.knobs, world=spec.world, global_batch=spec.global_batch)


def busy_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of the (start, end) intervals covers."""
    total_s, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total_s += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total_s


def intervals(trials: Iterable[Trial]) -> list[tuple[float, float]]:
    """When the ended trials ran, as (start, end) in Unix seconds."""
    return [(r.started_at_s, r.started_at_s + r.wall_s) for r in results(trials)]
