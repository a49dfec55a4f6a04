"""Reads tables of training runs into `Plans`.

Results in such a table are never looked at: only the model, the hardware and the layout are read.
Whatever a row leaves open gets a documented default, which is listed; a row that cannot be
predicted gets the reason.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.base.user_text import unread
from autotune.contract import read_bounded
from autotune.cost.cells import Cells, RowError
from autotune.cost.plans import Plans
from autotune.cost.row import OPEN, ReadRow, read_row
from autotune.cost.traits import Meter
from autotune.devices.accelerators import Accelerator

MAX_ROWS = 200_000


@dataclass(frozen=True, kw_only=True)
class TableRows:
    """A table's rows as candidates; `assumed` and `reasons` have an element for every row."""

    plans: Plans | None
    """Columns of the rows that can be predicted, in order; None if there is none."""
    fewest_logit_bytes: tuple[float, ...]
    """Their `logit_bytes` at least, where a row leaves open how its loss is computed."""
    open: Mapping[str, NDArray[np.bool_]]
    """What rows leave open -> which of those rows do."""
    positions: tuple[int, ...]
    """Positions of those rows in the table."""
    frameworks: tuple[str, ...]
    """Names of their frameworks, as `autotune.cost.traits` has them."""
    meters: tuple[Meter, ...]
    """Which memory their peaks are compared with."""
    accelerators: tuple[Accelerator, ...]
    """Their accelerators."""
    assumed: tuple[tuple[str, ...], ...]
    """Values that were assumed where the row leaves them open: `vp=1`."""
    reasons: tuple[str, ...]
    """Why a row cannot be predicted; empty for those that can."""


TABLE_HINT = "a CSV file with a header, such as id,n_layers,hidden,n_heads,seq_len,gpu_type,n_gpus"


def read_table(path: Path) -> tuple[tuple[str, ...], list[dict[str, str]]]:
    """The header and the rows of a CSV file, as text.

    Raises:
        JobError: It cannot be read, has no header, a column twice, or too many rows.
    """
    hint = TABLE_HINT
    try:
        text = read_bounded(path).decode("utf-8-sig")
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise JobError(f"{path}: {unread(error)}", hint) from error
    if not lines or not any(cell.strip() for cell in lines[0]):
        raise JobError(f"{path}: has no header", hint)
    header = tuple(cell.strip() for cell in lines[0])
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise JobError(f"{path}: column {', '.join(twice)} is there twice", "name it once")
    if len(lines) - 1 > MAX_ROWS:
        raise JobError(f"{path}: {len(lines) - 1} rows, at most {MAX_ROWS}", "split it")
    rows = []
    for number, cells in enumerate(lines[1:], start=2):
        if len(cells) > len(header):
            known = {"path": path, "number": number, "cells": len(cells), "header": len(header)}
            raise JobError.of("cost.too_many_cells", **known)
        padded = [*cells, *[""] * (len(header) - len(cells))]
        rows.append(dict(zip(header, padded, strict=True)))
    return header, rows


def rows_to_plans(rows: Sequence[Mapping[str, str]], table: Sequence[Accelerator]) -> TableRows:
    """Read each row, column -> text; columns that are not known are left alone."""
    found: list[ReadRow] = []
    positions: list[int] = []
    assumed: list[tuple[str, ...]] = []
    reasons: list[str] = []
    for position, row in enumerate(rows):
        cells = Cells(row)
        reason = ""
        try:
            found.append(read_row(cells, table))
            positions.append(position)
        except RowError as error:
            reason = str(error)
        assumed.append(tuple(cells.assumed))
        reasons.append(reason)
    return TableRows(
        plans=Plans.of_rows([row.columns for row in found]) if found else None,
        fewest_logit_bytes=tuple(row.fewest_logit_bytes for row in found),
        open={name: np.array([name in row.open for row in found], bool) for name in OPEN},
        positions=tuple(positions),
        frameworks=tuple(row.framework for row in found),
        meters=tuple(row.meter for row in found),
        accelerators=tuple(row.accelerator for row in found),
        assumed=tuple(assumed),
        reasons=tuple(reasons),
    )
