"""The record as a search sees it: candidates with their trials, and what is still owed to each."""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar

from autotune.contract import KnobValue, Outcome, Phase, Role, TrialResult
from autotune.record.spread import Spread, spread_of
from autotune.record.study import Trial
from autotune.space.candidate import Candidate, candidate_of

T = TypeVar("T")

MAX_RETRIES = 2
"""Runs that a candidate gets after the first when the platform ended it; then it is left."""
MAX_DEATHS = 20
"""Deaths of the coordinator while a candidate ran that are nobody's fault. Whoever starts a search
over and over again without a look at it would never be done with one that ends the coordinator."""
_SET_BACK_S = 60.0
"""Trials are submitted in the order of their numbers; less than this may be how times are told."""
MANY_TRIALS = 6
"""Measured trials from which on a disturbed majority counts as the machine's normal state: to
repeat each would double a search's price and find no quiet moment either."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate of the record with its trials, by number."""

    candidate: Candidate
    trials: tuple[Trial, ...]
    to_repeat: frozenset[int] = frozenset()
    """Numbers of its trials to repeat, as in `History.to_repeat`."""
    spread: Spread = field(default_factory=Spread)
    """How much runs differ, as in `History.spread`."""

    @cached_property
    def explored(self) -> tuple[Trial, ...]:
        """Its trials outside the final comparison."""
        return tuple(
            trial for trial in self.trials if trial.spec.identity.role is not Role.CONFIRM
        )

    @cached_property
    def measured(self) -> TrialResult | None:
        """The result that its figure rests on; the final comparison's do not count."""
        return counting(self.explored)

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
        """Whether it ran out of memory."""
        return self.fault is not None and self.fault.outcome is Outcome.OOM

    @cached_property
    def is_running(self) -> bool:
        """Whether one of its trials is in flight."""
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
        return not self.explored or any(t.spec.identity.role is Role.SEARCH for t in self.trials)


class History:
    """The trials of a record that answer for one job, grouped by candidate.

    Reduced trials are separated here, once: `trials` and `tried` are of the job's own candidates,
    and `reduced` is a history of the others.

    A search asks it after every trial, so a trial that is put costs what its own candidate does,
    and not what the whole record does.
    """

    def __init__(
        self,
        trials: Iterable[Trial] = (),
        *,
        to_repeat: frozenset[int] | None = None,
        of_reduced: bool = False,
    ) -> None:
        """Group the trials of one job; a part of a record takes the `to_repeat` of all of it."""
        self._of_reduced = of_reduced
        self._given_to_repeat = to_repeat
        self._begin(trials)

    def _begin(self, trials: Iterable[Trial]) -> None:
        self._all: dict[int, Trial] = {}
        self._own: dict[int, Trial] = {}
        """Those that are not separated."""
        self._groups: dict[str, dict[int, Trial]] = {}
        """Own trials by the hash of their candidate, in the order of the first, and by number."""
        self._made: dict[str, Tried] = {}
        """Candidates as they were last handed out, by hash."""
        self._made_with: tuple[frozenset[int], Spread] | None = None
        self._changed: set[str] = set()
        """Hashes of the candidates with trials that were put since."""
        self._remade: list[str] = []
        """Hashes of all candidates as they were made, or made again."""
        self._said: dict[object, tuple[int, dict[str, Any]]] = {}
        self._kept: dict[object, tuple[object, Any]] = {}
        """Key and value of `kept`, by who keeps them."""
        self._values: dict[str, dict[KnobValue, None]] = {}
        self._walls, self._measured_walls, self._starts = (
            _SortedTimes(),
            _SortedTimes(),
            _SortedTimes(),
        )
        self._n_disturbed = 0
        self._parts: dict[str, History] = {}
        """Histories of parts of this record, once they were asked for."""
        for trial in sorted(trials, key=_number):
            self.put(trial)

    def put(self, trial: Trial) -> None:
        """Add a trial, or replace it now that it has a result."""
        number = _number(trial)
        before = self._all.get(number)
        is_late = before is None and bool(self._all) and number < next(reversed(self._all))
        if is_late or (before is not None and before.result is not None):
            self._begin([*(t for t in self.recorded if _number(t) != number), trial])
            return
        self._all[number] = trial
        for name in ("recorded", "counts"):
            self.__dict__.pop(name, None)
        if is_reduced(trial) == self._of_reduced:
            self._put_own(trial)
        for name, part in self._parts.items():
            if _BELONGS[name](trial):
                part.put(trial)

    def _put_own(self, trial: Trial) -> None:
        key, result = trial.spec.identity.candidate_hash, trial.result
        if key not in self._groups:
            self._groups[key] = {}
            for name, value in trial.spec.identity.knobs.items():
                self._values.setdefault(name, {})[value] = None
        self._own[_number(trial)] = self._groups[key][_number(trial)] = trial
        self._changed.add(key)
        for name in ("trials", "tried"):
            self.__dict__.pop(name, None)
        if result is None:
            return
        if len(self._groups[key]) > 1:  # one run says nothing of how much two differ
            self.__dict__.pop("spread", None)
        self._n_disturbed += bool(result.disturbed)
        if self._n_disturbed:
            self.__dict__.pop("to_repeat", None)
        if result.wall_s > 0:
            self._walls.add(result.wall_s)
            if result.outcome.is_measured:
                self._measured_walls.add(result.wall_s)
        self._starts.add(sum(result.phases_s.get(p, 0.0) for p in (Phase.SPAWN, Phase.IMPORT)))

    @cached_property
    def recorded(self) -> tuple[Trial, ...]:
        """All trials, reduced or not, by number."""
        return tuple(self._all.values())

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """The trials of the job itself, or of the history of reduced trials those, by number."""
        return tuple(self._own.values())

    @property
    def reduced(self) -> "History":
        """The reduced trials, grouped by what they ran."""
        return self._part("reduced", lambda: History(self.recorded, of_reduced=True))

    @property
    def explored(self) -> "History":
        """The same without the final comparison, which must not change what led to it.

        The whole record still decides what deserves a repeat: without the comparison's runs a
        trial could be owed here and settled there.
        """
        part = self._part("explored", lambda: History(filter(_is_explored, self.trials)))
        if part._given_to_repeat != self.to_repeat:
            part._given_to_repeat = self.to_repeat
            for name in ("to_repeat", "tried"):
                part.__dict__.pop(name, None)
        return part

    def _part(self, name: str, make: Callable[[], "History"]) -> "History":
        if name not in self._parts:
            self._parts[name] = make()
        return self._parts[name]

    @cached_property
    def tried(self) -> tuple[Tried, ...]:
        """The candidates in the order in which they were first tried."""
        self._make_changed()
        return tuple(self._made[key] for key in self._groups)

    def find(self, candidate: Candidate) -> Tried | None:
        """Trials of a candidate in the record."""
        return self.of_hash(candidate.hash) if candidate.hash in self._groups else None

    def of_hash(self, key: str) -> Tried:
        """The trials of a candidate that is known to have some."""
        self._make_changed()
        return self._made[key]

    def each(self, say: Callable[[Tried], T | None], *, by: object = None) -> dict[str, T]:
        """What is said of each candidate, by hash, where anything is; in the order of `tried`.

        Args:
            say: Says it.
            by: Who says it; `say` by default. Asked again, nothing is said anew of a candidate
                that has not changed.
        """
        said = self.those(say, by=by)
        return {key: said[key] for key in self._groups if key in said}

    def those(self, say: Callable[[Tried], T | None], *, by: object = None) -> Mapping[str, T]:
        """The same, in any order.

        The mapping changes with the next `put`. Its cost is that of the changed candidates.
        """
        by = say if by is None else by
        self._make_changed()
        n_seen, said = self._said.get(by, (0, {}))
        for key in dict.fromkeys(self._remade[n_seen:]):
            if (value := say(self._made[key])) is None:
                said.pop(key, None)
            else:
                said[key] = value
        self._said[by] = len(self._remade), said
        return said

    def kept(self, by: object, key: object, make: Callable[[], T]) -> T:
        """A value that `by` keeps; `make` makes it anew when `key` changes."""
        if by not in self._kept or self._kept[by][0] != key:
            self._kept[by] = key, make()
        made: T = self._kept[by][1]
        return made

    @property
    def owed(self) -> list[Tried]:
        """Candidates of the search proper to which a trial is due, in order."""
        own = self.those(lambda t: t if t.is_owed and t.is_searched else None, by="owed")
        return sorted(own.values(), key=lambda t: _number(t.trials[0]))

    @property
    def not_owed(self) -> Set[str]:
        """Hashes of the candidates to which no trial is due; it changes with the next `put`."""
        return self.those(lambda t: None if t.is_owed else True, by="not owed").keys()

    def values(self, knob: str) -> Collection[KnobValue]:
        """Values of a knob that were tried, in the order in which they first were."""
        return self._values.get(knob, {}).keys()

    def _make_changed(self) -> None:
        """Make what is handed out anew, as far as that is due."""
        made_with = self.to_repeat, self.spread
        keys = self._groups if made_with != self._made_with else self._changed
        for key in keys:
            self._make(key, *made_with)
        self._made_with, self._changed = made_with, set()

    def _make(self, key: str, to_repeat: frozenset[int], spread: Spread) -> None:
        """Make what is handed out of a candidate; the same object where nothing has changed."""
        before, group = self._made.get(key), self._groups[key]
        theirs = to_repeat.intersection(group) if to_repeat else to_repeat
        is_same = before is not None and (before.to_repeat, before.spread) == (theirs, spread)
        if key in self._changed or not is_same:
            trials = tuple(group.values())
            candidate = candidate_of(trials[0].spec) if before is None else before.candidate
            self._made[key] = Tried(
                candidate=candidate, trials=trials, to_repeat=theirs, spread=spread
            )
            self._remade.append(key)

    @cached_property
    def spread(self) -> Spread:
        """How much runs of one candidate differ, as far as these trials know."""
        repeated = (group.values() for group in self._groups.values() if len(group) > 1)
        return spread_of(chain.from_iterable(repeated))

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
            result = trial.result
            if result is None or not result.outcome.is_measured:
                continue
            is_usual = n_measured >= MANY_TRIALS and 2 * n_disturbed > n_measured
            if result.disturbed and trial.spec.provenance.repeat_of is None and not is_usual:
                found.add(trial.spec.identity.number)
            n_measured += 1
            n_disturbed += bool(result.disturbed)
        return frozenset(found)

    @cached_property
    def counts(self) -> Counter[Outcome]:
        """Ended trials by outcome, reduced ones included."""
        return Counter(result.outcome for result in results(self.recorded))

    @property
    def typical_s(self) -> float | None:
        """Median seconds of a measured trial, of any ended one where none was; None: no idea."""
        return self._measured_walls.median if self._measured_walls else self._walls.median

    @property
    def slower_start_s(self) -> float:
        """Seconds until its imports were done that the slowest trial took more than the median.

        Among warm trials the first is the slowest: its template imports what a cold one does.
        """
        median_s = self._starts.median
        return 0.0 if median_s is None else self._starts.highest - median_s


class _SortedTimes:
    """Times in order, so that one more does not sort all of them."""

    def __init__(self) -> None:
        self._sorted: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._sorted)

    def add(self, length_s: float) -> None:
        """Take one in."""
        bisect.insort(self._sorted, length_s)

    @property
    def median(self) -> float | None:
        """The median; None: there are none."""
        times, n = self._sorted, len(self._sorted)
        return (times[(n - 1) // 2] + times[n // 2]) / 2 if n else None

    @property
    def highest(self) -> float:
        """The highest of at least one."""
        return self._sorted[-1]


def _number(trial: Trial) -> int:
    return trial.spec.identity.number


def is_reduced(trial: Trial) -> bool:
    """Whether a trial ran less than the job asks for: no figure of it is a candidate's."""
    return trial.spec.identity.fidelity is not None


def _is_explored(trial: Trial) -> bool:
    return not is_reduced(trial) and trial.spec.identity.role is not Role.CONFIRM


_BELONGS: dict[str, Callable[[Trial], bool]] = {"reduced": is_reduced, "explored": _is_explored}
"""Parts of a history, and which trials are in them."""


def results(trials: Iterable[Trial]) -> list[TrialResult]:
    """The results that there are."""
    return [trial.result for trial in trials if trial.result is not None]


def counting(trials: Sequence[Trial]) -> TrialResult | None:
    """The measured result that counts of one candidate's trials; None: none is measured.

    The repeat of a disturbed trial takes its place, disturbed or not: the first is known to be
    wrong.
    """
    measured = [t for t in trials if t.result is not None and t.result.outcome.is_measured]
    repeats = [t for t in measured if t.spec.provenance.repeat_of is not None]
    return next((t.result for t in (*repeats, *measured)), None)


def owed_repeat(trials: Sequence[Trial], to_repeat: Collection[int]) -> int | None:
    """Number of a candidate's disturbed trial that is still to be repeated; None: there is none.

    Of the final comparison, the trials are those of one round.
    """
    result = counting(trials)
    return result.number if result is not None and result.number in to_repeat else None


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


class BusyTime:
    """Seconds with a trial in flight, as a record of them grows.

    What the first trials have covered is kept, up to the first that has not ended: thousands of
    them are not gone through again for each one more.
    """

    def __init__(self) -> None:
        self._n_settled = 0
        self._covered: list[tuple[float, float]] = []
        self._clock = _RunTimes()

    def so_far_s(
        self, recorded: Sequence[Trial], running: Mapping[int, tuple[float, float]]
    ) -> float:
        """Seconds that trials took until now.

        Args:
            recorded: By number; those of the last call, and more.
            running: When those in flight began, and now, by number.
        """
        settled = self._n_settled
        while settled < len(recorded) and recorded[settled].result is not None:
            settled += 1
        ended = _ended(recorded[self._n_settled : settled])
        self._covered = _merged([*self._covered, *self._clock.told(ended)])
        self._n_settled = settled
        rest = replace(self._clock).told(_ended(recorded[settled:]) | dict(running))
        return busy_s([*self._covered, *rest])


def busy_s(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds that at least one of the (start, end) intervals covers."""
    return math.fsum(end - start for start, end in _merged(intervals))


def _merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time as intervals that are apart from each other."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def intervals(
    trials: Iterable[Trial], running: Mapping[int, tuple[float, float]] | None = None
) -> list[tuple[float, float]]:
    """When trials ran, as (start, end) in Unix seconds: the ended ones, and by number the running.

    A trial that began before one of a lower number shows that the clock was set back between two
    sessions. It counts from where the record had got to, and so does what follows: taken at their
    word, both sessions would be one.
    """
    return _RunTimes().told(_ended(trials) | dict(running or {}))


def _ended(trials: Iterable[Trial]) -> dict[int, tuple[float, float]]:
    """When the trials ran that have ended, by number; those that took no time are left out."""
    told = {r.number: (r.started_at_s, r.started_at_s + r.wall_s) for r in results(trials)}
    return {number: times for number, times in told.items() if times[0] != times[1]}


@dataclass
class _RunTimes:
    """How far trials have got, by a clock that may have been set back; see `intervals`."""

    shift_s: float = 0.0
    begun_s: float = -math.inf
    reached_s: float = -math.inf

    def told(self, times: Mapping[int, tuple[float, float]]) -> list[tuple[float, float]]:
        """When trials ran, given by number; all of them come after those that were told before."""
        found = []
        for number in sorted(times):
            start, end = (time_s + self.shift_s for time_s in times[number])
            if start < self.begun_s - _SET_BACK_S:
                self.shift_s += self.reached_s - start
                start, end = self.reached_s, end + self.reached_s - start
            found.append((start, end))
            self.begun_s, self.reached_s = start, max(self.reached_s, end)
        return found
