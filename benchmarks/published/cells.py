"""The cells of a published row: numbers with units and commas, and many words for a blank."""

import re

from autotune.cost.cells import Cells

_BLANK = {"", "-", "n/a", "na", "nan", "none", "null", "?", "unknown"}
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")
"""A number with its thousands apart: 128,256."""
_UNITS = {"params_b": ("b",), "gpu_mem_gb": ("gib", "gb", "g")}
"""Column -> units that its name says already, in lower case."""
_BINARY = {"seq_len"}
"""Columns whose thousands are 1024: a sequence of 8k."""


class PublishedCells(Cells):
    """One row of a published table."""

    def is_blank(self, key: str) -> bool:
        """Whether a cell says nothing, in one of the words for it."""
        return self.text(key).lower() in _BLANK

    def words(self, key: str) -> str:
        """A cell's text in lower case; empty where it says nothing."""
        return "" if self.is_blank(key) else self.text(key).lower()

    def _read(self, key: str) -> float:
        text = self.text(key).lower()
        for unit in _UNITS.get(key, ()):
            text = text.removesuffix(unit).strip()
        if _GROUPED.fullmatch(text):
            text = text.replace(",", "")
        thousand = 1024 if key in _BINARY else 1000
        return float(text[:-1]) * thousand if text.endswith("k") else float(text)
