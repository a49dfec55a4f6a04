"""A row of a table of training runs, as people publish them, for the tests to change."""

from tests.cost import rows

_PUBLISHED = {"params_b": "8.3", "vocab": "50k", "interconnect": "8x200Gb HDR IB per node"}
_NOT_PUBLISHED = ("gated_mlp", "tied_embeddings")
ROW = {n: cell for n, cell in rows.ROW.items() if n not in _NOT_PUBLISHED} | _PUBLISHED


def row(**changes: str) -> dict[str, str]:
    """The row with some cells changed."""
    return {**ROW, **changes}


def csv_text(*made: dict[str, str]) -> str:
    """A table with a header."""
    return rows.csv_text(*made, columns=tuple(ROW))
