"""What a full run found, kept in `results/recorded/chaos/`."""

import datetime
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.base.files import write_whole
from tests.machine import machine_in_words

_PACKAGES = ("deepspeed", "torch", "transformers", "jinja2", "pyyaml", "pydantic")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a record."""
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return rows


def write_record(
    path: Path,
    module: str,
    arguments: Sequence[str],
    found: dict[str, Any],
    *,
    adds_by: str | None = None,
) -> None:
    """Write what a run found, with the command, the versions and the machine in words.

    With `adds_by`, the key by which its rows are told apart, the run was of some rows alone: they
    take their places in the record that is there, each with the day of its run, and the totals are
    those of all rows. The rest of the record, such as its command, is of the last run.
    """
    today = datetime.date.today().isoformat()
    if adds_by is not None and path.exists():
        before = json.loads(path.read_text(encoding="utf-8"))
        rows = {row[adds_by]: {"date": before["date"], **row} for row in before["rows"]}
        rows |= {row[adds_by]: {**row, "date": today} for row in found["rows"]}
        totals = {
            name: sum(row[name] for row in rows.values())
            for name in found
            if name not in ("rows", "wall_s")
        }
        wall_s = round(sum(row["seconds"] for row in rows.values()))
        found = {**totals, "wall_s": wall_s, "rows": list(rows.values())}
    record = {
        "command": " ".join(["python", "-m", module, *arguments]),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        "date": today,
        "machine": machine_in_words(),
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1) + "\n"
    # A run may be killed at any time, and the record is to be whole.
    write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))
