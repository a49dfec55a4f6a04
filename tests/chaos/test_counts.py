"""The pages about faults and security: what they count and name is there."""

import re

from tests.chaos.counts import PAGE, REPOSITORY, placed, records
from tests.chaos.run import ROOMS, all_faults

SECURITY = REPOSITORY / "SECURITY.md"
SUBJECTS = {fault.subject for fault in all_faults()}


def test_the_page_counts_what_is_recorded():
    """`python -m tests.chaos.counts` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert placed(page) == page, "run python -m tests.chaos.counts"


def test_every_room_holds_what_is_recorded_of_it():
    assert records().keys() <= ROOMS.keys()
    assert sum(record["injected"] for record in records().values()) > 250
    for room, record in records().items():
        faults = all_faults(room)
        for row in record["rows"]:
            here = sum(fault.rounds for fault in faults if fault.subject == row["fault"])
            assert here >= row["injected"], f"{room}: {row['fault']}"


def named(pattern):
    found = re.findall(pattern, SECURITY.read_text(encoding="utf-8"))
    assert found
    return found


def test_every_test_that_security_names_is_there():
    for path in named(r"`(tests/[\w/]+\.py)`"):
        assert (REPOSITORY / path).is_file(), path


def test_every_fault_that_security_names_is_injected():
    cells = [cell for line in named(r"faults? ((?:`[^`]+`(?:, )?)+)") for cell in line.split("`")]
    names = {cell for cell in cells[1:] if cell.strip(", ")}
    assert names
    assert names <= SUBJECTS
