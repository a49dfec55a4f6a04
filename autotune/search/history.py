"""The record as a search sees it: candidates with their trials, and what is still owed to each."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from autotune.contract import KnobValue, Outcome, Phase, Role, Start, TrialResult
from autotune.record.answer import Standing
from autotune.record.spread import Spread, is_figure, outdone, spread_of
from autotune.record.study import Trial, results
from autotune.space.candidate import Candidate, candidate_of

T = TypeVar("T")

MAX_RETRIES = 2
"""Runs that a candidate gets after the first when the platform ended it; then it is left."""
MAX_DEATHS = 20
"""Deaths of the coordinator while a candidate ran that are nobody's fault. Whoever starts a search
over and over again without a look at it would never be done with one that ends the coordinator."""
MANY_TRIALS = 6
"""Measured trials from which on a disturbed majority counts as the machine's normal state: to
repeat each would double a search's price and find no quiet moment either."""


@dataclass(frozen=True, kw_only=True)
class CandidateTrials:
    """A candidate of the record with its trials, by number; its figure is a `Standing`."""

    candidate: Candidate
    trials: tuple[Trial, ...]
    to_repeat: frozenset[int] = frozenset()
    """Numbers of its trials to repeat, as in `History.to_repeat`."""
    spread: Spread = field(default_factory=Spread)
    """How much runs differ, as in `History.spread`."""
    compared: Standing | None = None
    """Its standing in the final comparison that counts; None: it took no part in one."""

    @cached_property
    def explored(self) -> tuple[Trial, ...]:
        """Its trials outside the final comparison."""
        return tuple(trial for trial in self.trials if trial.role is not Role.CONFIRM)

    @cached_property
    def measured(self) -> TrialResult | None:
        """The result that its figure rests on; the final comparison's do not count."""
        return counting(self.explored)

    @cached_property
    def own_figure(self) -> Standing | None:
        """Its standing by its own trial, whatever the objective makes of it; None: no figure."""
        if self.measured is None or not is_figure(self.measured):
            return None
        return self.standing_by([self.measured])

    @cached_property
    def runs(self) -> Mapping[int | None, TrialResult]:
        """The run with a figure that counts of each round of a comparison; None: its own trial."""
        rounds: dict[int | None, list[Trial]] = {}
        for trial in self.trials:
            rounds.setdefault(trial.spec.identity.confirm_round, []).append(trial)
        counted = ((number, counting(trials)) for number, trials in rounds.items())
        return {number: run for number, run in counted if run is not None and is_figure(run)}

    @cached_property
    def figure(self) -> Standing | None:
        """Its standing in the comparison, else by all its runs; None: it has none, or failed.

        A trial is picked for being lucky. Where a comparison ended before it could say anything,
        its few runs count like the trial.
        """
        if self.compared is not None or self.own_figure is None or self.fault is not None:
            return self.compared
        return self.standing_by([*self.runs.values()])

    @property
    def rate(self) -> float:
        """Samples/s to order and to draw by; 0 without a figure."""
        return 0.0 if self.figure is None else self.figure.samples_per_s

    @property
    def peak_bytes(self) -> int:
        """Peak memory to draw by; 0 where it is not known."""
        return 0 if self.figure is None else self.figure.peak_memory_bytes or 0

    @cached_property
    def result(self) -> TrialResult | None:
        """The one that says how it did: a fault before what another run measured; None: none."""
        ended = results(self.trials)
        return self.fault or self.measured or (ended[-1] if ended else None)

    @property
    def number(self) -> int:
        return self.trials[0].number

    @property
    def trial(self) -> int:
        """Number of the trial that stands for it."""
        return self.number if self.result is None else self.result.number

    @property
    def outcome(self) -> Outcome | None:
        """How it did; None: it is in flight."""
        return None if self.result is None else self.result.outcome

    @property
    def evidence(self) -> str:
        """Why it failed, with the place where it says so; empty: it did not."""
        return evidence_of(self.result) if self.result and self.outcome is not Outcome.OK else ""

    def standing_by(self, runs: Sequence[TrialResult]) -> Standing:
        """Its standing by some of its runs, for which `is_figure` has to hold."""
        interval = self.spread.interval(runs)
        peaks = [run.peak_memory_bytes for run in runs if run.peak_memory_bytes is not None]
        files = self.measured or counting(self.trials) or runs[0]
        return Standing(
            trial=files.number,
            candidate=self.candidate,
            samples_per_s=interval.rate,
            samples_per_s_low=interval.low,
            samples_per_s_high=interval.high,
            peak_memory_bytes=max(peaks, default=None),
            n_runs=len(runs),
            n_disturbed=sum(bool(run.disturbed) for run in runs),
        )

    @cached_property
    def peak_memory_bytes(self) -> int | None:
        """The highest peak of all its runs; None: none is known."""
        peaks = [run.peak_memory_bytes for run in results(self.trials)]
        return max((peak for peak in peaks if peak is not None), default=None)

    @cached_property
    def fault(self) -> TrialResult | None:
        """The first result that is a fault of the configuration, in any role: it would recur."""
        return next((r for r in results(self.trials) if r.outcome.is_config_fault), None)

    @cached_property
    def given_up(self) -> str:
        """Why it is left without a figure although it did nothing wrong; empty: it is not."""
        if self.measured is not None or self.fault is not None or not self.is_settled:
            return ""
        ended = results(self.explored)
        if charged := [result for result in ended if is_charged(result)]:
            last = charged[-1]
            return (
                f"the platform ended {len(charged)} trials of it, the last ({last.number}) by "
                f"{last.outcome}: {last.evidence}"
            )
        return f"the coordinator ended {len(ended)} times while it ran"

    @cached_property
    def is_out_of_memory(self) -> bool:
        return self.fault is not None and self.fault.outcome is Outcome.OOM

    @cached_property
    def is_running(self) -> bool:
        return any(trial.result is None for trial in self.trials)

    @cached_property
    def is_settled(self) -> bool:
        """Whether no further trial is owed to it; a cancelled trial settles nothing."""
        return is_settled(self.explored, self.to_repeat)

    @cached_property
    def is_owed(self) -> bool:
        """Whether a trial is due.

        The platform ended or disturbed its trials, or the user ended them, or their record is gone
        and only runs of the final comparison are left.
        """
        return not self.is_settled and not self.is_running

    @cached_property
    def is_searched(self) -> bool:
        """Whether the search proper proposed it, or may have: the record of that is gone."""
        return not self.explored or any(t.role is Role.SEARCH for t in self.trials)


class History:
    """The trials of a record that answer for one job, by number: a list that does not change.

    A trial that begins or ends makes a new list. What is asked of a list is worked out once.
    Reduced trials are separated here: `trials` and `tried` are of the job's own candidates, and
    `reduced` is a history of the others.
    """

    def __init__(
        self,
        trials: Iterable[Trial] = (),
        *,
        to_repeat: frozenset[int] | None = None,
        of_reduced: bool = False,
    ) -> None:
        """List the trials of one job; a part of a record takes the `to_repeat` of all of it."""
        self.recorded: tuple[Trial, ...] = tuple(sorted(trials, key=lambda trial: trial.number))
        """All trials, reduced or not."""
        self._given_to_repeat = to_repeat
        self._of_reduced = of_reduced
        self._answers: dict[Hashable, Any] = {}
        self._before: Mapping[str, CandidateTrials] = {}
        self._explored_before: Mapping[str, CandidateTrials] = {}

    def with_trial(self, trial: Trial) -> "History":
        """This list with one more trial, or with one that now has its result.

        Candidates to which nothing is new are handed on, with all that was asked of them.
        """
        others = (known for known in self.recorded if known.number != trial.number)
        made = History(
            (*others, trial), to_repeat=self._given_to_repeat, of_reduced=self._of_reduced
        )
        made._before = self._by_hash
        if explored := vars(self).get("explored"):
            made._explored_before = vars(explored).get("_by_hash", {})
        return made

    def once(self, question: Hashable, answer: Callable[[], T]) -> T:
        """What a function makes of this list, which is asked for it once."""
        if question not in self._answers:
            self._answers[question] = answer()
        found: T = self._answers[question]
        return found

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the job itself, or of the history of reduced trials those."""
        return tuple(t for t in self.recorded if t.is_reduced == self._of_reduced)

    @cached_property
    def reduced(self) -> "History":
        """The reduced trials, grouped by what they ran."""
        return History((t for t in self.recorded if t.is_reduced), of_reduced=True)

    @cached_property
    def explored(self) -> "History":
        """The same without the final comparison, which must not change what led to it.

        The whole record still decides what deserves a repeat: without the comparison's runs a
        trial could be owed here and settled there.
        """
        trials = (t for t in self.trials if t.role is not Role.CONFIRM)
        explored = History(trials, to_repeat=self.to_repeat)
        explored._before = self._explored_before
        return explored

    def before(self, number: int) -> "History":
        """The same as it was before a trial began, with what has ended since."""
        earlier = (trial for trial in self.recorded if trial.number < number)
        return History(earlier, to_repeat=self.to_repeat, of_reduced=self._of_reduced)

    @cached_property
    def tried(self) -> tuple[CandidateTrials, ...]:
        """The candidates in the order in which they were first tried."""
        return tuple(self._by_hash.values())

    def find(self, candidate: Candidate) -> CandidateTrials | None:
        return self._by_hash.get(candidate.hash)

    def of_hash(self, key: str) -> CandidateTrials:
        """The trials of a candidate that is known to have some."""
        return self._by_hash[key]

    @cached_property
    def values(self) -> Mapping[str, Collection[KnobValue]]:
        """Values of each knob that were tried, in the order in which they first were."""
        found: dict[str, dict[KnobValue, None]] = {}
        for tried in self.tried:
            for name, value in tried.candidate.knobs:
                found.setdefault(name, {})[value] = None
        return found

    @cached_property
    def _by_hash(self) -> Mapping[str, CandidateTrials]:
        """Candidates by their hash, in the order of their first trials."""
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(trial.candidate_hash, []).append(trial)
        found = {}
        for key, trials in ((key, tuple(group)) for key, group in groups.items()):
            to_repeat = self.to_repeat and self.to_repeat.intersection(t.number for t in trials)
            known = self._before.get(key)
            if known is None or (known.trials, known.to_repeat, known.spread) != (
                trials,
                to_repeat,
                self.spread,
            ):
                candidate = candidate_of(trials[0].spec) if known is None else known.candidate
                known = CandidateTrials(
                    candidate=candidate, trials=trials, to_repeat=to_repeat, spread=self.spread
                )
            found[key] = known
        return found

    @cached_property
    def spread(self) -> Spread:
        """How much runs of one candidate differ, as far as these trials know."""
        return spread_of(self.trials)

    @cached_property
    def to_repeat(self) -> frozenset[int]:
        """Numbers of the disturbed trials that deserve to be run once more.

        A trial that is a repeat itself does not, nor one that came when most others were disturbed
        too. Only earlier trials count for that, so that nothing changes on resume.
        """
        if self._given_to_repeat is not None:
            return self._given_to_repeat
        found, n_measured, n_disturbed = set(), 0, 0
        for trial in self.trials:
            if (result := trial.measured) is None:
                continue
            if result.disturbed:
                is_usual = n_measured >= MANY_TRIALS and 2 * n_disturbed > n_measured
                if trial.spec.provenance.repeat_of is None and not is_usual:
                    found.add(result.number)
                n_disturbed += 1
            n_measured += 1
        return frozenset(found)

    @cached_property
    def counts(self) -> Counter[Outcome]:
        """Ended trials by outcome, reduced ones included."""
        return Counter(result.outcome for result in results(self.recorded))

    @cached_property
    def typical_s(self) -> float | None:
        """Median seconds of a measured trial, of any ended one where none was; None: no idea."""
        ended = [result for result in results(self.trials) if result.wall_s > 0]
        measured = [result for result in ended if result.outcome.is_measured]
        walls = [result.wall_s for result in measured or ended]
        return statistics.median(walls) if walls else None

    @cached_property
    def usual_s(self) -> Mapping[tuple[bool, Start], float]:
        """Median seconds of measured trials: of the final comparison or not, by their start."""
        walls: dict[tuple[bool, Start], list[float]] = {}
        for result in results(self.trials):
            if result.outcome.is_measured:
                kind = (result.role is Role.CONFIRM, result.start)
                walls.setdefault(kind, []).append(result.wall_s)
        return {kind: statistics.median(of_kind) for kind, of_kind in walls.items()}

    @cached_property
    def slower_start_s(self) -> float:
        """Seconds until its imports were done that the slowest trial took more than the median.

        Among warm trials the first is the slowest: its template imports what a cold one does.
        """
        starts = [
            sum(result.phases_s.get(phase, 0.0) for phase in (Phase.SPAWN, Phase.IMPORT))
            for result in results(self.trials)
        ]
        return max(starts) - statistics.median(starts) if starts else 0.0


def evidence_of(result: TrialResult) -> str:
    """The line that an outcome was read from, and where it stands."""
    return result.evidence + (f" [{result.evidence_source}]" if result.evidence_source else "")


def counting(trials: Sequence[Trial]) -> TrialResult | None:
    """The measured result that counts of one candidate's trials; None: none is measured."""
    left_out = outdone(trials)
    return next((t.measured for t in trials if t.measured and t.number not in left_out), None)


def owed_repeat(trials: Sequence[Trial], to_repeat: Collection[int]) -> int | None:
    """Number of a candidate's disturbed trial that is still to be repeated; None: there is none.

    Of the final comparison, the trials are those of one round.
    """
    measured = [t for t in trials if t.measured]
    owed = set(to_repeat) - {t.spec.provenance.repeat_of for t in measured}
    return next((t.number for t in measured if t.number in owed), None)


def is_settled(trials: Sequence[Trial], to_repeat: Collection[int] = ()) -> bool:
    """Whether these trials of one candidate answer, or the platform failed it too often."""
    ended = results(trials)
    if any(result.outcome.is_config_fault for result in ended):
        return True
    if sum(map(is_charged, ended)) > MAX_RETRIES:
        return True
    if sum(result.is_orphaned for result in ended) > MAX_DEATHS:
        return True
    return counting(trials) is not None and owed_repeat(trials, to_repeat) is None


def is_charged(result: TrialResult) -> bool:
    """Whether it counts against its candidate that the platform ended it.

    The death of the coordinator does not: it ends whatever runs.
    """
    return result.outcome.is_platform_fault and not result.is_orphaned


def busy_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of the (start, end) intervals covers."""
    covered_s, reached = 0.0, -math.inf
    for start, end in sorted(intervals):
        if end > reached:
            covered_s += end - max(start, reached)
            reached = end
    return covered_s


def intervals(
    trials: Iterable[Trial], running: Mapping[int, tuple[float, float]] | None = None
) -> list[tuple[float, float]]:
    """When trials ran, as (start, end) in Unix seconds: the ended ones, and those running."""
    ended = [(r.started_at_s, r.started_at_s + r.wall_s) for r in results(trials)]
    return [*ended, *(running or {}).values()]
