"""Injects faults and says what survived: `python -m tests.chaos.run`, or `make chaos`.

The table goes to stdout, progress to stderr. Exits 1 unless every injection was survived.

A record (`--record FILE`) is written after each injection, so that a run that is cut short keeps
what it found.
"""

import argparse
import fnmatch
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.engines.deepspeed.extensions import build
from tests.chaos import (
    around_trials,
    in_coordinators,
    in_nodes,
    in_ray,
    in_slurm,
    in_trials,
    out_of_sight,
)
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, LostError, NotSurvivedError
from tests.chaos.records import write_record

ROOMS: dict[str, ModuleType] = {
    "trials": in_trials,
    "around": around_trials,
    "coordinators": in_coordinators,
    "sight": out_of_sight,
    "nodes": in_nodes,
    "slurm": in_slurm,
    "ray": in_ray,
}
NOT_SHORT = ("slurm", "ray")
"""Rooms that the short form leaves out: `tests/fleet/transports` starts such nodes already."""


@dataclass
class Row:
    """What came of the faults of one subject."""

    fault: str
    injected: int = 0
    survived: int = 0
    lost: int = 0
    """Injections after which a finished trial was gone, changed or told twice."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """Faults that this machine cannot have, with the reason."""


def all_faults(room: str | None = None) -> list[Fault]:
    """Every fault there is, or those of one room."""
    rooms = ROOMS.values() if room is None else [ROOMS[room]]
    return [fault for each in rooms for fault in each.faults()]


def inject(fault: Fault, ground: Ground, row: Row) -> None:
    """Inject a fault once and count what came of it."""
    if reason := fault.needs():
        row.skipped.append(f"{fault.name}: {reason}")
        return
    began = time.monotonic()
    row.injected += 1
    try:
        fault.inject(ground)
        row.survived += 1
    except Exception as error:
        row.lost += isinstance(error, LostError)
        row.problems.append(f"{fault.name}: {type(error).__name__}: {error}")
        if not isinstance(error, NotSurvivedError):
            traceback.print_exc()
        ground.close()  # whatever it left must not spoil the next one
    row.seconds += time.monotonic() - began


def main(arguments: Sequence[str]) -> int:
    """Inject what is asked for; 1 unless all was survived."""
    options = _parse(arguments)
    # A shell's background jobs ignore Ctrl-C, and so would every search that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = [
        fault
        for fault in all_faults(options.room)
        if fnmatch.fnmatch(fault.name, options.fault) and (fault.in_short or not options.short)
    ]
    rows: dict[str, Row] = {}
    build("cpu", _say)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autotune-chaos-") as folder:
        # What these searches learn is of no use to anybody's own.
        os.environ["AUTOTUNE_KNOWLEDGE"] = str(Path(folder) / "knowledge.json")
        ground = Ground(Path(folder))
        try:
            for fault in chosen:
                row = rows.setdefault(fault.subject, Row(fault=fault.subject))
                n_rounds = 1 if options.short else options.rounds or fault.rounds
                for _ in range(n_rounds):
                    n_problems, n_skipped = len(row.problems), len(row.skipped)
                    inject(fault, ground, row)
                    _say("\n".join([fault.name, *row.problems[n_problems:]]))
                    if len(row.skipped) > n_skipped:
                        break
                    if options.record is not None:
                        found = summary(list(rows.values()), time.monotonic() - began)
                        write_record(options.record, "tests.chaos.run", arguments, found)
        finally:
            ground.close()
    found = summary(list(rows.values()), time.monotonic() - began)
    print(json.dumps(found) if options.json else table(found))
    return 0 if found["injected"] and found["survived"] == found["injected"] else 1


def summary(rows: list[Row], wall_s: float) -> dict[str, Any]:
    """The rows with their totals."""
    return {
        "injected": sum(row.injected for row in rows),
        "survived": sum(row.survived for row in rows),
        "lost": sum(row.lost for row in rows),
        "wall_s": round(wall_s),
        "rows": [{**asdict(row), "seconds": round(row.seconds)} for row in rows],
    }


def table(found: dict[str, Any]) -> str:
    """A summary for people: a line for each subject, and what went wrong."""
    rows = found["rows"]
    width = max((len(row["fault"]) for row in rows), default=0)
    lines = [f"{'fault':{width}}  injected  survived  lost  seconds"]
    for row in [*rows, {**found, "fault": "all", "seconds": found["wall_s"]}]:
        figures = f"{row['injected']:8}  {row['survived']:8}  {row['lost']:4}  {row['seconds']:7}"
        lines.append(f"{row['fault']:{width}}  {figures}")
    lines += [f"not injected: {reason}" for row in rows for reason in row["skipped"]]
    lines += [f"not survived: {problem}" for row in rows for problem in row["problems"]]
    return "\n".join(lines)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Inject faults and see what survives")
    parser.add_argument("--fault", default="*", metavar="NAME", help="only these: a shell pattern")
    parser.add_argument("--room", choices=list(ROOMS), help="only these: a file of faults")
    parser.add_argument("--rounds", type=int, help="injections of each; its own number by default")
    parser.add_argument("--short", action="store_true", help="what CI injects, once each")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--record", type=Path, metavar="FILE", help="keep what came of it here")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
