"""Candidates in columns, which are objects once somebody looks at one."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar, overload

import numpy as np

from autotune.space.candidate import Candidate
from autotune.space.table import Indices, Table, Watched, WatchedAnswers, answers

A = TypeVar("A", bound=Hashable)

MANY = 20_000
"""Up to so many candidates each is made once; of more, each is made whenever it is asked for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CandidateRows(Sequence[Candidate]):
    """Candidates of one job in columns: their knobs are canonical, and no two are equal."""

    table: Table
    world: int
    global_batch: int

    def __len__(self) -> int:
        return self.table.n

    @overload
    def __getitem__(self, index: int) -> Candidate: ...

    @overload
    def __getitem__(self, index: slice) -> "CandidateRows": ...

    def __getitem__(self, index: int | slice) -> "Candidate | CandidateRows":
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        row = range(len(self))[index]
        if (made := self._made.get(row)) is None:
            made = Candidate.of(
                self.table.row(row), world=self.world, global_batch=self.global_batch
            )
            if len(self) <= MANY:
                self._made[row] = made
        return made

    def __contains__(self, candidate: object) -> bool:
        return isinstance(candidate, Candidate) and self.find(candidate) is not None

    def index(self, candidate: Candidate, start: int = 0, stop: int | None = None) -> int:
        """The place of a candidate; arguments and errors as of any sequence."""
        row = self.find(candidate)
        if row is None or row not in range(len(self))[start:stop]:
            raise ValueError(f"{candidate} is none of the candidates")
        return row

    def find(self, candidate: Candidate) -> int | None:
        if (candidate.world, candidate.global_batch) != (self.world, self.global_batch):
            return None
        values, levels = candidate.values, self.table.levels
        if candidate.layers is not None or not values.keys() <= levels.keys():
            return None
        left = np.arange(len(self))
        for name, column_values in levels.items():
            if (value := values.get(name)) not in column_values:
                return None
            if (codes := self.table.codes.get(name)) is not None:
                left = left[codes[left] == column_values.index(value)]
        return int(left[0]) if len(left) else None

    def take(self, rows: Indices) -> "CandidateRows":
        return CandidateRows(
            table=self.table.take(rows), world=self.world, global_batch=self.global_batch
        )

    def answers(self, function: Callable[[Candidate], A]) -> WatchedAnswers[A]:
        """The answer of a function, asked once per combination of the knobs that it reads."""

        def ask(row: int) -> tuple[A, set[str]]:
            watched = _WatchedCandidate(self, row)
            return function(watched), watched.watched.read

        return answers(self.table, ask)

    @cached_property
    def _made(self) -> dict[int, Candidate]:
        return {}


class _WatchedCandidate(Candidate):
    """A candidate of some rows, which notes the knobs that are read."""

    def __init__(self, rows: CandidateRows, row: int) -> None:
        super().__init__((), rows.world, rows.global_batch)
        watched = self.watched = Watched(rows.table, row)
        self.__dict__["values"] = watched


def answers_of(
    candidates: Sequence[Candidate], function: Callable[[Candidate], A]
) -> WatchedAnswers[A]:
    """The answer of a function for each candidate; those in columns are not made for it."""
    if isinstance(candidates, CandidateRows):
        return candidates.answers(function)
    places: dict[A, int] = {}
    which = [places.setdefault(function(one), len(places)) for one in candidates]
    return WatchedAnswers(distinct=tuple(places), which=np.array(which, np.intp))
