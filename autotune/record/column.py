"""A column of the results table: its name, type, unit and meaning."""

from dataclasses import dataclass
from typing import Literal

DType = Literal["string", "Int64", "float64", "boolean", "datetime64[us, UTC]"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the table."""

    name: str
    dtype: DType
    """pandas dtype; any column may be empty in a row."""
    unit: str
    """Empty where there is none."""
    meaning: str


def column(name: str, dtype: DType, meaning: str, *, unit: str = "") -> Column:
    """A column in one line."""
    return Column(name=name, dtype=dtype, unit=unit, meaning=meaning)
