"""The cells of one row of a table: one spelling for each value, defaults written down."""

import math
from collections.abc import Iterable, Mapping

from autotune.base.names import did_you_mean, near_names


class RowError(Exception):
    """A row cannot be predicted; the text says why, with the values, and what to write."""


class Cells:
    """One row; remembers what was assumed for what it leaves open."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row
        self.assumed: list[str] = []

    def __contains__(self, key: str) -> bool:
        return key in self._row

    def text(self, key: str) -> str:
        """A cell's text without blanks around it; empty where there is none."""
        return self._row.get(key, "").strip()

    def is_blank(self, key: str) -> bool:
        """Whether a cell says nothing."""
        return not self.text(key)

    def assume(self, key: str, value: object, why: str = "") -> None:
        """Write down what is taken for a cell that says nothing."""
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        self.assumed.append(f"{key}={shown}" + (f" ({why})" if why else ""))

    def choice(self, key: str, allowed: Iterable[str], default: str, why: str = "") -> str:
        """One of some words.

        Raises:
            RowError: The cell has another one.
        """
        if self.is_blank(key):
            self.assume(key, default, why)
            return default
        text, words = self.text(key), list(allowed)
        if text not in words:
            raise self.wrong(key, f"is not {_listed(words)}", did_you_mean(text, words))
        return text

    def number(self, key: str, default: float | None = None, why: str = "") -> float:
        """A number above zero.

        Raises:
            RowError: The cell is blank and there is no default, or it is no such number.
        """
        if self.is_blank(key):
            if default is None:
                raise self.unsaid(key)
            self.assume(key, default, why)
            return default
        try:
            value = self._read(key)
        except ValueError:
            raise self.wrong(key, "is not a number", "write digits alone: 8192") from None
        if not math.isfinite(value) or value <= 0:
            raise RowError(f"{key}={self.text(key)}: not above zero")
        return value

    def count(
        self, key: str, default: float | None = None, why: str = "", *, most: float = 1e9
    ) -> float:
        """A whole number from 1 to `most`.

        Raises:
            RowError: It is not.
        """
        value = self.number(key, default, why)
        if value != int(value):
            raise RowError(f"{key}={self.text(key)}: not a whole number")
        if value > most:
            raise RowError(f"{key}={self.text(key)}: more than {most:g}")
        return float(value)

    def within(self, key: str, least: float, most: float) -> float | None:
        """A number between two bounds; None where the cell is blank.

        Raises:
            RowError: It is not.
        """
        if self.is_blank(key):
            return None
        try:
            value = self._read(key)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise self.wrong(key, f"is not a number from {least:g} to {most:g}")
        return value

    def unsaid(self, key: str) -> RowError:
        """The error about a cell that has to say something, or a column that has to be there."""
        if key in self:
            return RowError(f"{key} is blank")
        near = near_names(key, self._row, most=1, alike=0.4)
        return RowError(f"there is no column {key}" + (f", but {near[0]}" if near else ""))

    def wrong(self, key: str, what: str, fix: str = "") -> RowError:
        """The error about a cell: its value, what is wrong with it, and the fix."""
        return RowError(f"{key}={self.text(key)!r} {what}" + (f"; {fix.strip()}" if fix else ""))

    def _read(self, key: str) -> float:
        """The number of a cell, which is not blank.

        Raises:
            ValueError: It is none.
        """
        text = self.text(key)
        if "_" in text:
            raise ValueError(text)
        return float(text)


def _listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
