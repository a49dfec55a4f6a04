"""The pages about faults and security: what they count and name is there."""

import re

import pytest

from tests.chaos.counts import PAGE, REPOSITORY, placed, records
from tests.chaos.readers import make_readers
from tests.chaos.run import ROOMS, all_faults

SECURITY = REPOSITORY / "SECURITY.md"
SUBJECTS = {fault.subject for fault in all_faults()}


def test_the_page_counts_what_is_recorded():
    """`python -m tests.chaos.counts` writes it."""
    page = PAGE.read_text(encoding="utf-8")
    assert placed(page) == page, "run python -m tests.chaos.counts"


def test_every_room_holds_what_is_recorded_of_it():
    assert records().keys() <= ROOMS.keys()
    assert sum(record["injected"] for record in records().values()) > 300
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
    assert len(names) > 8
    assert names <= SUBJECTS


@pytest.fixture
def readers(tmp_path, monkeypatch):
    from autotune.job import model

    monkeypatch.setattr(model, "_probe", model._probe)
    return {reader.name for reader in make_readers(tmp_path)}


def test_every_reader_that_security_names_is_fuzzed(readers):
    assert set(named(r"fuzzed as `([^`]+)`")) <= readers


def test_every_kind_of_fault_stands_on_the_page():
    page = PAGE.read_text(encoding="utf-8")
    assert not [subject for room in records().values() for subject in missing(room, page)]


def missing(record, page):
    return [row["fault"] for row in record["rows"] if f"| {row['fault']} |" not in page]
