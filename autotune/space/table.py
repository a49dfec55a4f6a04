"""Rows in columns, and functions that are asked once per distinct combination of what they read.

A function is watched: it gets one row and says which columns it read. Rows that agree in these
have the same answer, so it is asked once for all of them.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.contract import KnobValue

Codes = NDArray[np.int16]
Indices = NDArray[np.intp]
Levels = tuple[KnobValue | None, ...]
"""The values of a column; None: the knob does not act, or is not chosen."""
A = TypeVar("A", bound=Hashable)

Ask = Callable[[int], tuple[A, Collection[str]]]
"""Index of a row -> the answer for it, and the names of the columns that decided it."""

_MOST_KEYS = 1 << 21
"""Combinations that are told apart by their place in an array; more are sorted."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows of knob values; a column that has one value for all rows holds no codes."""

    n: int
    """Rows."""
    levels: Mapping[str, Levels]
    """Column -> its values."""
    codes: Mapping[str, Codes]
    """Column -> for every row the place of its value among the levels."""

    def value(self, name: str, row: int) -> KnobValue | None:
        levels = self.levels.get(name)
        if levels is None:
            return None
        codes = self.codes.get(name)
        return levels[0 if codes is None else int(codes[row])]

    def row(self, row: int) -> dict[str, KnobValue]:
        """The values of a row, without those that are None."""
        codes = self.codes
        found = {
            name: levels[codes[name][row] if name in codes else 0]
            for name, levels in self.levels.items()
        }
        return {name: value for name, value in found.items() if value is not None}

    def take(self, rows: Indices | slice) -> "Table":
        codes = {name: codes[rows] for name, codes in self.codes.items()}
        n = len(range(self.n)[rows]) if isinstance(rows, slice) else len(rows)
        return Table(n=n, levels=self.levels, codes=codes)

    def with_column(self, name: str, levels: Levels, codes: Codes | None) -> "Table":
        """The same rows with one more column; codes of None: the first level everywhere."""
        given = {key: column for key, column in self.codes.items() if key != name}
        if codes is not None and len(levels) > 1:
            given[name] = codes
        return Table(n=self.n, levels={**self.levels, name: levels}, codes=given)

    def used(self, name: str) -> frozenset[KnobValue | None]:
        if name not in self._used:
            levels, codes = self.levels.get(name, (None,)), self.codes.get(name)
            places = [0] if codes is None else np.flatnonzero(np.bincount(codes))
            self._used[name] = frozenset(levels[place] for place in places)
        return self._used[name]

    @cached_property
    def _used(self) -> dict[str, frozenset[KnobValue | None]]:
        return {}

    def keys(self, names: Collection[str], rows: Indices | None = None) -> tuple[Indices, int]:
        """A number per row, equal for rows that agree in some columns; and its upper bound."""
        n = self.n if rows is None else len(rows)
        key, size = np.zeros(n, np.intp), 1
        for name in names:
            if (codes := self.codes.get(name)) is None:
                continue
            codes = codes if rows is None else codes[rows]
            if n and codes[0] == codes[-1] and codes.min() == codes.max():
                continue
            if size * len(self.levels[name]) > _MOST_KEYS:
                distinct, key = np.unique(key, return_inverse=True)
                size = len(distinct)
            key = key * len(self.levels[name])
            key += codes
            size *= len(self.levels[name])
        if size > _MOST_KEYS:
            distinct, key = np.unique(key, return_inverse=True)
            size = len(distinct)
        return key, size


def table_of(rows: Sequence[Mapping[str, KnobValue]]) -> Table:
    """Some mappings as the rows of a table."""
    levels: dict[str, Levels] = {}
    codes: dict[str, Codes] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        places: dict[KnobValue | None, int] = {}
        which = [places.setdefault(row.get(name), len(places)) for row in rows]
        levels[name] = tuple(places)
        if len(places) > 1:
            codes[name] = np.array(which, np.int16)
    return Table(n=len(rows), levels=levels, codes=codes)


@dataclass(frozen=True, kw_only=True, eq=False)
class WatchedAnswers(Generic[A]):
    """The answer of a function for every row of a table."""

    distinct: tuple[A, ...]
    which: Indices
    """By row: the place of its answer."""

    def of(self, value: Callable[[A], float]) -> NDArray[np.float64]:
        """A number for every row."""
        return np.array([value(answer) for answer in self.distinct], np.float64)[self.which]


@dataclass(kw_only=True, eq=False)
class _Asked(Generic[A]):
    """What a function answered so far."""

    ask: Ask[A]
    table: Table
    places: dict[A, int] = field(default_factory=dict)
    answered: dict[int, tuple[int, frozenset[str]]] = field(default_factory=dict)

    def __call__(self, row: int) -> tuple[int, frozenset[str]]:
        if row not in self.answered:
            answer, names = self.ask(row)
            place = self.places.setdefault(answer, len(self.places))
            self.answered[row] = place, frozenset(self.table.codes.keys() & set(names))
        return self.answered[row]


def answers(table: Table, ask: Ask[A]) -> WatchedAnswers[A]:
    """Ask a function once per distinct combination of what it reads.

    It has to be a function of what it says that it read: two rows that agree in all that was read
    for one of them have the same answer.
    """
    asked = _Asked(ask=ask, table=table)
    which = np.zeros(table.n, np.intp)
    read = asked(0)[1] if table.n else frozenset()
    # Rows that are still open, and the columns in which they are told apart.
    waiting = [(np.arange(table.n), read)] if read else []
    while waiting:
        rows, names = waiting.pop()
        key, size = table.keys(sorted(names), rows)
        firsts = np.full(size, -1, np.intp)
        firsts[key[::-1]] = np.arange(len(key) - 1, -1, -1)
        found = np.zeros(size, np.intp)
        deeper: dict[frozenset[str], list[int]] = {}
        for at in np.flatnonzero(firsts >= 0).tolist():
            found[at], read = asked(int(rows[firsts[at]]))
            if not read <= names:
                deeper.setdefault(names | read, []).append(at)
        which[rows] = found[key]
        for more, places in deeper.items():
            is_in = np.zeros(size, np.bool_)
            is_in[places] = True
            waiting.append((rows[is_in[key]], more))
    return WatchedAnswers(distinct=tuple(asked.places), which=which)


class Watched(Mapping[str, KnobValue]):
    """The values of one row, which notes the names that are read."""

    def __init__(
        self, table: Table, row: int, under: Mapping[str, KnobValue] | None = None
    ) -> None:
        """Watch a row; `under` has the values of knobs for which the row has none."""
        self._table, self._row, self._under = table, row, under or {}
        self.read: set[str] = set()

    def get(self, name: str, default: KnobValue | None = None) -> KnobValue | None:  # type: ignore[override]
        self.read.add(name)
        value = self._table.value(name, self._row)
        return self._under.get(name, default) if value is None else value

    def __getitem__(self, name: str) -> KnobValue:
        value = self.get(name)
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return self.get(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        self.read.update(self._table.levels)
        return iter({**self._under, **self._table.row(self._row)})

    def __len__(self) -> int:
        return sum(1 for _ in self)
