"""A made-up table of runs: one model on eight devices, every split of them."""

import csv
from pathlib import Path
from typing import Any

from tests.cases import data_beside

DATA = data_beside(__file__)

ROW: dict[str, Any] = DATA["ROW"]
COLUMNS = tuple(ROW)


def row(**changes: Any) -> dict[str, Any]:
    """`ROW` with changes."""
    return {**ROW, **changes}


def seconds(*, tp: int, pp: int, micro_batch: int) -> float:
    """A step that bubbles and splits slow down, and large micro-batches speed up."""
    n_micro_batches = 32 * tp * pp // (8 * micro_batch)
    layer = (0.002 + 0.004 * micro_batch / tp) * (1.0 if tp == 1 else 1.1 + 0.05 * tp)
    return round((n_micro_batches + pp - 1) * layer * 12 / pp + 0.02, 5)


def sweep() -> list[dict[str, Any]]:
    """Every split of the eight devices; the largest micro-batch of the unsplit model is lost."""
    rows = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4):
            for size in (1, 2, 4):
                dp = 8 // (tp * pp)
                if not dp or 32 % (dp * size):
                    continue
                is_lost = tp * pp == 1 and size == 4
                rows.append(
                    row(
                        tp=f"{tp}.0",
                        pp=pp,
                        micro_batch=size,
                        status="OOM" if is_lost else "ok",
                        step_time_s="" if is_lost else seconds(tp=tp, pp=pp, micro_batch=size),
                        peak_mem_gb="" if is_lost else 10 + size,
                    )
                )
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path
