"""Searches that are timed: until they hold a candidate that a full table puts near the best.

The table is a study in which every legal candidate ran; its figures judge what a search chose. A
search runs its own trials, or is answered from the table, which costs no time and allows for many
seeds.
"""

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.contract import Origin, Outcome, TrialResult, TrialSpec
from autotune.fleet.base import AnsweringFleet, Fleet
from autotune.fleet.transports.local import local_fleet
from autotune.job.job import Budget
from autotune.record.spread import is_figure, mean_log_rate
from autotune.record.study import Study
from autotune.search.base import Snapshot
from autotune.search.history import History, counting
from autotune.search.interrupt import Interrupt
from autotune.search.loop import run_search
from autotune.search.session import RecordedPlace, Session
from autotune.search.steering import steering_of
from autotune.space.candidate import Candidate

SHARE = 0.02
"""Within which share of the best a search is done."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """A candidate of the table."""

    candidate: Candidate
    samples_per_s: float | None
    """Geometric mean of its runs, those of the final comparison included; None: it did not run."""
    n_runs: int
    result: TrialResult
    """Of the trial by which a search would have known it."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Every legal candidate, measured."""

    rows: Mapping[str, Row]
    """By candidate hash, in the order in which they ran."""
    deviation: float
    """Of log samples/s between runs of one candidate."""

    @classmethod
    def of(cls, session: Session) -> "Table":
        """What the session's study holds."""
        history = session.history_to_resume()
        rows = {}
        for tried in history.tried:
            result = tried.measured or tried.fault
            if result is None:
                continue
            runs = counted_runs(history, tried.candidate)
            rows[tried.candidate.hash] = Row(
                candidate=tried.candidate,
                samples_per_s=math.exp(mean_log_rate(runs)) if runs else None,
                n_runs=len(runs),
                result=result,
            )
        return cls(rows=rows, deviation=math.sqrt(history.spread.variance))

    @cached_property
    def best(self) -> Row:
        """The fastest."""
        return max(self._measured, key=_rate)

    @property
    def median_samples_per_s(self) -> float:
        """Of the candidates that ran."""
        return statistics.median(map(_rate, self._measured))

    @property
    def n_near(self) -> int:
        """Candidates within `SHARE` of the best."""
        return sum(self.is_near(row.candidate) for row in self._measured)

    def is_near(self, candidate: Candidate) -> bool:
        """Whether a candidate is within `SHARE` of the best."""
        row = self.rows.get(candidate.hash)
        return row is not None and _rate(row) >= (1.0 - SHARE) * _rate(self.best)

    def behind(self, candidate: Candidate) -> float:
        """By which share a candidate's samples/s are below the best's."""
        return 1.0 - _rate(self.rows[candidate.hash]) / _rate(self.best)

    @property
    def _measured(self) -> list[Row]:
        return [row for row in self.rows.values() if row.samples_per_s is not None]


@dataclass(frozen=True, kw_only=True)
class Search:
    """One search of a sampler with one seed."""

    sampler: str
    seed: int
    trials_to_near: int | None
    """Trials, the baseline's included, until its best so far by its own figures is near the
    table's best; None: not within its cap."""
    seconds_to_near: float | None
    """The same in seconds of wall clock; of a search that the table answers, in the seconds that
    these trials took when the table was made."""
    n_trials: int
    seconds: float
    """In all, until it was near or at its cap."""


def counted_runs(history: History, candidate: Candidate) -> list[TrialResult]:
    """A candidate's measured runs; a disturbed one gives way to its repeat."""
    tried = history.find(candidate)
    assert tried is not None, "the history holds it"
    by_round: dict[int | None, list[Any]] = {}
    for trial in tried.trials:
        by_round.setdefault(trial.spec.identity.confirm_round, []).append(trial)
    found = [counting(trials) for trials in by_round.values()]
    return [result for result in found if result is not None and is_figure(result)]


def search_live(session: Session, table: Table, *, sampler: str, seed: int, cap: int) -> Search:
    """Run a search's own trials, until it is near the best of the table or at its cap."""
    began = time.monotonic()
    fleet = local_fleet(session.environment, world=session.job.world)
    study = Study(session.study.root, f"live-{sampler}-{seed}")
    study.set_aside()
    return _search(
        session,
        table,
        fleet,
        study,
        sampler=sampler,
        seed=seed,
        cap=cap,
        elapsed_s=lambda: time.monotonic() - began,
    )


def search_table(session: Session, table: Table, *, sampler: str, seed: int, cap: int) -> Search:
    """The same where the table answers for the trials."""
    spent_s: list[float] = []

    def answer(spec: TrialSpec) -> TrialResult:
        result = answered(table, spec)
        spent_s.append(result.wall_s)
        return result

    with tempfile.TemporaryDirectory() as scratch:
        return _search(
            session,
            table,
            AnsweringFleet(answer, Origin.REPLAYED),
            Study(Path(scratch), f"answered-{sampler}-{seed}"),
            sampler=sampler,
            seed=seed,
            cap=cap,
            elapsed_s=lambda: sum(spent_s),
            interrupt=_Unhurried(),
        )


def answered(table: Table, spec: TrialSpec) -> TrialResult:
    """What the table has of a trial's candidate."""
    told = {
        "number": spec.identity.number,
        "role": spec.identity.role,
        "candidate_hash": spec.identity.candidate_hash,
        "origin": Origin.REPLAYED,
    }
    row = table.rows.get(spec.identity.candidate_hash)
    if row is None:
        return TrialResult(**told, outcome=Outcome.INVALID, evidence="it is not in the table")
    if row.samples_per_s is None:
        result = row.result
        return TrialResult(
            **told, outcome=result.outcome, evidence=result.evidence, wall_s=result.wall_s
        )
    step_time_s = spec.layout.global_batch / row.samples_per_s
    return TrialResult(
        **told,
        outcome=Outcome.OK,
        wall_s=row.result.wall_s,
        step_times_s=[step_time_s],
        step_time_s=step_time_s,
        samples_per_s=row.samples_per_s,
        peak_memory_bytes=row.result.peak_memory_bytes,
    )


def summarize_searches(searches: Sequence[Search]) -> dict[str, Any]:
    """Means over the searches of one sampler.

    One that did not get near counts with all the trials and seconds that it had, which flatters
    it; `unsolved` says how many those are.
    """
    trials = [s.n_trials if s.trials_to_near is None else s.trials_to_near for s in searches]
    seconds = [s.seconds if s.seconds_to_near is None else s.seconds_to_near for s in searches]
    return {
        "searches": len(searches),
        "mean_trials_to_2pct": statistics.fmean(trials),
        "max_trials_to_2pct": max(trials),
        "mean_seconds_to_2pct": statistics.fmean(seconds),
        "unsolved": sum(s.trials_to_near is None for s in searches),
    }


class _Unhurried(Interrupt):
    """Of a search whose answers are there at once."""

    def wait(self, seconds: float) -> None:
        """Nothing to wait for."""


class _UntilNear:
    """Ends a search once its best so far is near the table's best."""

    def __init__(self, table: Table, interrupt: Interrupt, elapsed_s: Callable[[], float]) -> None:
        self._table, self._interrupt, self._elapsed_s = table, interrupt, elapsed_s
        self.near_at: tuple[int, float] | None = None
        self.n_trials = 0

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """Look at the best so far."""
        self.n_trials = sum(snapshot.counts.values())
        best = snapshot.best
        if self.near_at is None and best is not None and self._table.is_near(best.candidate):
            self.near_at = self.n_trials, self._elapsed_s()
            self._interrupt.request()

    def on_note(self, note: str) -> None:
        """Not of interest."""


def _search(
    session: Session,
    table: Table,
    fleet: Fleet,
    study: Study,
    *,
    sampler: str,
    seed: int,
    cap: int,
    elapsed_s: Callable[[], float],
    interrupt: Interrupt | None = None,
) -> Search:
    job = dataclasses.replace(
        session.job,
        sampler=sampler,
        seed=seed,
        budget=Budget(trials=cap, time_s=None, patience=None),
        study=study.name,
    )
    searched = Session(
        job=job,
        engine=session.engine,
        place=RecordedPlace(session.environment, {}),
        study=study,
        known_lattice=session.lattice,
    )
    searched.place.compares = False  # it takes longer than it tells here
    study.lock()
    interrupt = interrupt or Interrupt()
    watch = _UntilNear(table, interrupt, elapsed_s)
    try:
        run_search(
            searched,
            fleet,
            observer=watch,
            interrupt=interrupt,
            steering=steering_of(searched) if sampler == "calibrated" else None,
        )
    finally:
        fleet.close()
        study.unlock()
    near_at = watch.near_at
    return Search(
        sampler=sampler,
        seed=seed,
        trials_to_near=None if near_at is None else near_at[0],
        seconds_to_near=None if near_at is None else near_at[1],
        n_trials=watch.n_trials,
        seconds=elapsed_s(),
    )


def _rate(row: Row) -> float:
    return row.samples_per_s or 0.0
