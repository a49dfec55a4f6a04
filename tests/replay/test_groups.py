"""Rows of one problem: what is given, what is chosen, and what does not count."""

from pathlib import Path
from typing import Any

import pytest

from autotune.replay.groups import Group, group_rows
from autotune.replay.rows import read_rows
from tests.replay.tables import row, write


def groups_of(tmp_path: Path, *rows: dict[str, Any], fixed: tuple[str, ...] = ()) -> list[Group]:
    table = write(tmp_path / "runs.csv", list(rows))
    return list(group_rows(read_rows(table), fixed=fixed))


@pytest.mark.cases("rows", "fixed", "expected")
def test_rows_make_groups(tmp_path, rows, fixed, expected) -> None:
    """Each group as its configurations: some knobs, the outcome, the time of a step, the rows."""
    found = groups_of(tmp_path, *(row(**each) for each in rows), fixed=tuple(fixed))
    told = [
        [
            [c.knobs.get(n) for n in ("tp", "pp")] + [c.outcome.value, c.step_time_s, len(c.rows)]
            for c in group.configurations
        ]
        for group in found
    ]
    assert told == expected


def test_a_group_is_named_by_what_is_given(tmp_path: Path) -> None:
    (group,) = groups_of(tmp_path, row(tp=1))
    assert group.name == "made-up, 8 x A100, batch 32, seq 1024"


def test_the_stage_that_a_framework_names_otherwise_is_read_from_its_equivalent(tmp_path) -> None:
    (group,) = groups_of(tmp_path, row(zero_stage="1.0"), row(zero_stage="", tp=2))
    assert [c.knobs.get("zero") for c in group.configurations] == ["1", None]
