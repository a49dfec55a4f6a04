"""Rows of one problem: what is given, what is chosen, and what does not count."""

from pathlib import Path
from typing import Any

from autotune.contract import Outcome
from autotune.replay.groups import Group, group_rows
from autotune.replay.rows import read_rows
from tests.replay.tables import row, write


def groups_of(tmp_path: Path, *rows: dict[str, Any], fixed: tuple[str, ...] = ()) -> list[Group]:
    table = write(tmp_path / "runs.csv", list(rows))
    return list(group_rows(read_rows(table), fixed=fixed))


def test_rows_of_one_problem_are_one_group_wherever_they_stand_in_its_file(tmp_path: Path) -> None:
    (group,) = groups_of(
        tmp_path, row(tp=1), row(tp="2.0", source="somebody/bench@1234567 results.csv:9")
    )
    assert group.name == "made-up, 8 x A100, batch 32, seq 1024"
    assert [c.knobs["tp"] for c in group.configurations] == [1, 2]


def test_another_batch_precision_or_document_is_another_problem(tmp_path: Path) -> None:
    others = (
        row(global_batch=64),
        row(precision="bf16"),
        row(source="somebody/bench@1234567 other.csv:2"),
        row(gpu_type="H100"),
    )
    assert len(groups_of(tmp_path, row(), *others)) == 5


def test_a_configuration_that_was_run_often_has_the_median_of_its_times(tmp_path: Path) -> None:
    (group,) = groups_of(
        tmp_path, row(step_time_s=3), row(step_time_s=1), row(step_time_s=1.5, tp="1.0")
    )
    (configuration,) = group.configurations
    assert configuration.step_time_s == 1.5
    assert len(configuration.rows) == 3


def test_it_ran_out_of_memory_only_if_it_never_ran(tmp_path: Path) -> None:
    lost = {"status": "OOM", "step_time_s": ""}
    (group,) = groups_of(tmp_path, row(), row(**lost), row(tp=2, **lost))
    assert [c.outcome for c in group.configurations] == [Outcome.OK, Outcome.OOM]
    assert group.configurations[1].step_time_s is None


def test_what_measured_nothing_or_is_not_known_is_left_out(tmp_path: Path) -> None:
    (group,) = groups_of(
        tmp_path,
        row(),
        row(tp=2, status="ok_analytic"),
        row(tp=4, step_time_s=""),
        row(tp=8, fully_specified=0),
        row(pp=2, config_basis="inferred"),
    )
    assert [c.knobs["tp"] for c in group.configurations] == [1]


def test_a_problem_on_which_nothing_ran_is_no_group(tmp_path: Path) -> None:
    assert groups_of(tmp_path, row(status="OOM", step_time_s="")) == []


def test_a_fixed_column_is_part_of_the_problem(tmp_path: Path) -> None:
    groups = groups_of(tmp_path, row(tp=1), row(tp=2), row(tp=2, pp=2), fixed=("tp",))
    assert [len(group.configurations) for group in groups] == [1, 2]
    assert [c.knobs["pp"] for c in groups[1].configurations] == [1, 2]


def test_the_stage_that_a_framework_names_otherwise_is_read_from_its_equivalent(
    tmp_path: Path,
) -> None:
    (group,) = groups_of(tmp_path, row(zero_stage="1.0"), row(zero_stage="", tp=2))
    assert [c.knobs.get("zero") for c in group.configurations] == ["1", None]
