"""A group of a table as a job: candidates, sizes, and which group is meant."""

from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.contract import Outcome
from autotune.job.model import model_from_config
from autotune.replay.problem import ReplayProblem, read_problem
from tests.replay.tables import row, sweep, write


def problem(tmp_path: Path, *rows: dict[str, Any], wanted: str = "") -> ReplayProblem:
    return read_problem(write(tmp_path / "runs.csv", list(rows)), wanted)


def test_rows_are_candidates_of_the_knobs_there_are(tmp_path: Path) -> None:
    read = problem(tmp_path, *sweep())
    assert (read.world, read.global_batch, read.seq_len) == (8, 32, 1024)
    assert (read.precision, read.device_name, read.devices_per_node) == ("fp16", "A100", 8)
    assert len(read.configurations) == len(sweep())
    candidate = next(c for c in read.configurations if (c.tp, c.pp, c.micro_batch) == (2, 2, 4))
    assert candidate["zero.stage"] == 0
    assert candidate["recompute"] == "full"
    assert candidate.dp == 2
    assert candidate.grad_accum == 4
    lost = [c for c, found in read.configurations.items() if found.outcome is Outcome.OOM]
    assert [(c.tp, c.pp, c.micro_batch) for c in lost] == [(1, 1, 4)]


@pytest.mark.parametrize(
    ("changes", "model_type"), [({}, "gpt2"), ({"gated_mlp": "yes", "ffn_hidden": 2816}, "llama")]
)
def test_the_model_has_the_tables_sizes(tmp_path, changes, model_type) -> None:
    found = problem(tmp_path, row(**changes), row(tp=2, **changes))
    config = found.model_config
    shape = model_from_config("its", config, where="test").shape
    assert config["model_type"] == model_type
    assert (shape.n_layers, shape.hidden, shape.n_heads) == (12, 1024, 16)
    assert shape.ffn_hidden == changes.get("ffn_hidden", 4096)
    assert shape.vocab == 50257


def test_several_groups_are_listed_and_chosen_by_number_or_name(tmp_path: Path) -> None:
    rows = [row(tp=tp, model_name=name) for name in ("small", "large") for tp in (1, 2)]
    with pytest.raises(JobError) as error:
        problem(tmp_path, *rows)
    assert "2 groups:\n  1: small, 8 x A100, batch 32, seq 1024 (2 configurations)" in str(
        error.value
    )
    assert error.value.hint.endswith("runs.csv#1")
    assert problem(tmp_path, *rows, wanted="2").group.problem["model_name"] == "large"
    assert problem(tmp_path, *rows, wanted="LARGE").group.problem["model_name"] == "large"
    with pytest.raises(JobError, match="no group is named 'medium'"):
        problem(tmp_path, *rows, wanted="medium")
    with pytest.raises(JobError, match="2 groups are named 'A100'"):
        problem(tmp_path, *rows, wanted="A100")


def test_what_no_knob_says_is_part_of_the_problem(tmp_path: Path) -> None:
    rows = [row(tp=tp, offload=how) for how in ("none", "cpu") for tp in (1, 2)]
    assert len(problem(tmp_path, *rows, wanted="1").configurations) == 2
    partly = [row(tp=tp, recompute=how) for how in ("full", "selective") for tp in (1, 2)]
    assert len(problem(tmp_path, *partly, wanted="2").configurations) == 2
    known = [row(tp=tp, recompute=how) for how in ("full", "none") for tp in (1, 2)]
    assert len(problem(tmp_path, *known).configurations) == 4


def test_a_blank_degree_is_one_and_its_row_a_repeat(tmp_path: Path) -> None:
    blank = [row(tp="", pp="", step_time_s=seconds) for seconds in (5, 3)]
    found = problem(tmp_path, *blank, row(tp=1, pp=1, step_time_s=4), row(tp=2))
    assert [c.tp for c in found.configurations] == [1, 2]
    repeated = next(iter(found.configurations.values()))
    assert repeated.step_time_s == 4
    assert [r.where for r in repeated.rows] == ["runs.csv:2", "runs.csv:3", "runs.csv:4"]
    assert list(found.group.configurations) == list(found.configurations.values())
    with pytest.raises(JobError, match="no group of 2 configurations or more"):
        problem(tmp_path, blank[0], row(tp=1, pp=1))


def test_a_table_without_anything_to_search_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no group of 2 configurations or more"):
        problem(tmp_path, row())
    with pytest.raises(JobError, match="no group of 2 configurations or more"):
        problem(tmp_path, row(micro_batch=""), row(micro_batch="", tp=2))


def test_a_device_that_nobody_knows_is_named(tmp_path: Path) -> None:
    rows = [row(tp=tp, gpu_type="Abacus 9000") for tp in (1, 2)]
    with pytest.raises(JobError, match="Abacus 9000"):
        problem(tmp_path, *rows)


@pytest.mark.cases("cells", "is_refused")
def test_nothing_ran_in_more_memory_than_its_device_has(tmp_path, cells, is_refused) -> None:
    rows = (row(), row(tp=2), row(tp=4, **cells))
    if is_refused:
        with pytest.raises(JobError, match=r"runs\.csv:4: peak_mem_gb: .* of one A100"):
            problem(tmp_path, *rows)
    else:
        assert len(problem(tmp_path, *rows).configurations) == 3
