"""Counts of `docs/faults-tested.md`, from the records: `python -m tests.chaos.counts`."""

import json
from pathlib import Path
from typing import Any

from tests.chaos.run import ROOMS, all_faults

REPOSITORY = Path(__file__).parents[2]
RECORDS = REPOSITORY / "results" / "recorded" / "chaos"
PAGE = REPOSITORY / "docs" / "faults-tested.md"
_FIGURES = ("injected", "survived", "lost")
BEGIN, END = "<!-- made by python -m tests.chaos.counts -->\n", "<!-- end -->\n"


def records() -> dict[str, dict[str, Any]]:
    """What was recorded, by room."""
    files = {room: RECORDS / f"{room}.json" for room in ROOMS}
    return {
        room: json.loads(file.read_text(encoding="utf-8"))
        for room, file in files.items()
        if file.exists()
    }


def counted() -> str:
    """The part of the page that counts."""
    rooms = records()
    injected, survived, lost = (
        sum(record[name] for record in rooms.values()) for name in _FIGURES
    )
    fuzzed = json.loads((RECORDS / "fuzz.json").read_text(encoding="utf-8"))
    lines = [
        f"{survived} of {injected} injections were survived, and {lost or 'no'} results were lost "
        "(`results/recorded/chaos/`):",
        "",
        "| room | fault | injected | survived | lost |",
        "|---|---|---|---|---|",
        *(
            f"| `{room}` | {row['fault']} | "
            + " | ".join(str(row[name]) for name in _FIGURES)
            + " |"
            for room, record in rooms.items()
            for row in record["rows"]
        ),
        "",
        *_not_yet(rooms),
        f"{len(fuzzed['rows'])} readers got {fuzzed['inputs']} broken inputs; {fuzzed['failed']} "
        "failed.",
    ]
    return "\n".join(lines) + "\n"


def _not_yet(rooms: dict[str, dict[str, Any]]) -> list[str]:
    """What has no record yet, in words."""
    known = {row["fault"] for record in rooms.values() for row in record["rows"]}
    subjects = dict.fromkeys(fault.subject for fault in all_faults())
    lacking = [f"{subject}" for subject in subjects if subject not in known]
    n_faults = sum(fault.rounds for fault in all_faults())
    n_known = sum(record["injected"] for record in rooms.values())
    if not lacking and n_known >= n_faults:
        return []
    text = f"There are {n_faults} injections; the others are not recorded yet."
    return [f"{text} No record has: {', '.join(lacking)}." if lacking else text, ""]


def placed(page: str) -> str:
    """The page with that part as it is now."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + counted() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(placed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
