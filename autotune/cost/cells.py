"""The cells of one row of a table: numbers read with suspicion, defaults written down."""

import math
import re
from collections.abc import Mapping

_BLANK = {"", "-", "n/a", "na", "nan", "none", "null", "?"}


_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
"""A number with its thousands apart: 128,256."""
_UNITS = {"params_b": ("b",), "gpu_mem_gb": ("gib", "gb", "g")}
"""Column -> units that its name says already, in lower case."""
_BINARY = {"seq_len"}
"""Columns whose thousands are 1024: a sequence of 8k."""


class RowError(Exception):
    """A row cannot be predicted; the text says why, with the values."""


class Cells:
    """One row; remembers what was assumed for what it leaves open."""

    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row
        self.assumed: list[str] = []

    def text(self, key: str) -> str:
        """A cell's text without blanks around it; empty where there is none."""
        return self._row.get(key, "").strip()

    def is_blank(self, key: str) -> bool:
        """Whether a cell says nothing."""
        return self.text(key).lower() in _BLANK

    def assume(self, key: str, value: object, why: str = "") -> None:
        """Write down what is taken for a cell that says nothing."""
        shown = f"{value:g}" if isinstance(value, float) else str(value)
        self.assumed.append(f"{key}={shown}" + (f" ({why})" if why else ""))

    def number(self, key: str, default: float | None = None, why: str = "") -> float:
        """A positive number.

        Raises:
            RowError: The cell is blank and there is no default, or it is no positive number.
        """
        if self.is_blank(key):
            if default is None:
                raise RowError(f"{key} is blank")
            self.assume(key, default, why)
            return default
        text = self.text(key)
        try:
            value = _read(text, key)
        except ValueError:
            raise RowError(f"{key}={text!r} is not a number") from None
        if not math.isfinite(value) or value <= 0:
            raise RowError(f"{key}={text}: not above zero")
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


def _read(text: str, key: str) -> float:
    """A number as people write it.

    Raises:
        ValueError: It is none.
    """
    text = text.lower()
    for unit in _UNITS.get(key, ()):
        text = text.removesuffix(unit).strip()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    thousand = 1024 if key in _BINARY else 1000
    return float(text[:-1]) * thousand if text.endswith("k") else float(text)
