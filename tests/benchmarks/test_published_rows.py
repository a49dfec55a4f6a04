"""Rows of published tables: what is read, what is assumed, and why a row cannot be predicted."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.cost import predict
from autotune.cost.table import TableRows
from autotune.cost.table import rows_to_plans as strict_to_plans
from autotune.devices.accelerators import shipped_accelerators
from benchmarks.published import RESULT_COLUMNS, rows_to_plans
from tests.benchmarks.rows import ROW, csv_text, row
from tests.captured import captured
from tests.cost.rows import row as strict_row

TABLE = shipped_accelerators()
REPOSITORY = Path(__file__).resolve().parents[2]


def read(**changes: str) -> TableRows:
    return rows_to_plans([row(**changes)], TABLE)


def column(name: str, **changes: str) -> float:
    rows = read(**changes)
    assert rows.plans is not None, rows.reasons
    return float(getattr(rows.plans, name)[0])


def test_a_full_row_says_everything() -> None:
    rows = read(loss="eager")
    assert rows.positions == (0,)
    assert rows.reasons == ("",)
    # The table has no columns for these two.
    assert [text.split("=")[0] for text in rows.assumed[0]] == ["gated_mlp", "tied_embeddings"]


def test_what_runs_on_torch_is_told_by_its_stage() -> None:
    stages = {"3": "deepspeed", "fsdp": "fsdp", "": "ddp"}
    for stage, framework in stages.items():
        assert read(framework="transformers", zero_stage=stage).frameworks == (framework,)


def test_no_result_is_read() -> None:
    plain = predict(read().plans)  # type: ignore[arg-type]
    lies = {name: "1e6" for name in RESULT_COLUMNS}
    changed = predict(read(**lies).plans)  # type: ignore[arg-type]
    assert changed.step_time_s == plain.step_time_s
    assert changed.peak_memory_bytes == plain.peak_memory_bytes


@pytest.mark.cases("blank", "assumed")
def test_what_is_blank_is_assumed_and_listed(blank: str, assumed: str) -> None:
    rows = read(**{blank: ""})
    assert rows.reasons == ("",)
    assert any(text.startswith(assumed) for text in rows.assumed[0]), rows.assumed


@pytest.mark.cases("changes", "reason")
def test_a_row_that_cannot_be_predicted_says_why(changes: dict[str, str], reason: str) -> None:
    rows = read(**changes)
    assert rows.plans is None
    assert reason in rows.reasons[0]


@pytest.mark.cases("changes", "assumed", "name", "value")
def test_what_is_odd_is_filled_and_listed(changes, assumed, name, value) -> None:
    rows = read(**{"n_kv_heads": "", **changes})
    assert rows.reasons == ("",)
    assert any(text.startswith(assumed) for text in rows.assumed[0]), rows.assumed
    assert column(name, **{"n_kv_heads": "", **changes}) == value


def test_a_row_in_the_strict_spelling_is_read_as_it_is() -> None:
    strict = strict_row(
        recompute="every_2",
        offload="nvme(optimizer+param)",
        attention="flash 3",
        loss="chunked 99",
    )
    ours, theirs = (reader([strict], TABLE).plans for reader in (rows_to_plans, strict_to_plans))
    assert ours is not None
    for name, values in theirs.columns().items():
        assert values == getattr(ours, name), name


def test_a_table_of_any_spelling_goes_through_the_command(tmp_path: Path) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.csv"
    rows = [row(), row(id="bad", hidden="wide"), row(id="last", framework="jax")]
    source.write_text(csv_text(*rows), encoding="utf-8")
    command = [sys.executable, "benchmarks/predict_published.py", str(source), str(out)]
    done = captured(command, cwd=REPOSITORY, check=True)
    assert "predicted 2 of 3 rows" in done.stdout
    with out.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    assert [one["id"] for one in found] == ["a-1", "bad", "last"]
    assert [bool(one["reason"]) for one in found] == [False, True, False]
    assert all(found[0][name] == text for name, text in ROW.items())


@pytest.mark.cases("text", "stage", "group")
def test_zero_stages_as_people_write_them(text: str, stage: int, group: int) -> None:
    assert column("zero_stage", zero_stage=text) == stage
    assert column("shard_group", zero_stage=text) == group


@pytest.mark.cases("text", "bytes_per_s")
def test_networks_as_people_write_them(text: str, bytes_per_s: float) -> None:
    assert column("network_bytes_per_s", interconnect=text) == bytes_per_s


@pytest.mark.cases("cell", "text", "expected")
def test_a_cell_is_read_in_any_spelling(cell: str, text: str, expected: dict[str, float]) -> None:
    assert {name: column(name, **{cell: text}) for name in expected} == expected


@pytest.mark.cases("changes", "expected")
def test_columns_follow_from_cells(changes: dict[str, str], expected: dict[str, float]) -> None:
    assert {name: column(name, **changes) for name in expected} == expected


@pytest.mark.parametrize("cell", ["loss", "attention", "kernels", "optimizer"])
def test_a_choice_that_is_not_known_is_said_and_changes_nothing(cell: str) -> None:
    rows, plain = read(**{cell: "quantum"}), read()
    assert rows.plans is not None
    assert plain.plans is not None
    assert f"{cell}=as the framework (quantum is not known)" in rows.assumed[0]
    assert np.array_equal(
        predict(rows.plans).peak_memory_bytes, predict(plain.plans).peak_memory_bytes
    )


@pytest.mark.cases("framework", "name")
def test_frameworks_as_people_name_them(framework: str, name: str) -> None:
    assert read(framework=framework).frameworks == (name,)


@pytest.mark.cases("unit", "framework", "meter")
def test_a_peak_has_a_meter(unit: str, framework: str, meter: str) -> None:
    assert read(peak_mem_unit=unit, framework=framework).meters == (meter,)


def test_adapters_are_as_large_as_their_rank() -> None:
    # 40 layers of four matrices of 4096 x 4096 and two of 4096 x 16384; 8.3 billion parameters.
    adapted = 40 * (8 * 4096 + 2 * (4096 + 16384))
    shares = [
        column("trained_share", task=task) for task in ("LoRA all-linear", "all-linear lora r=64")
    ]
    total = 40 * (4 * 4096**2 + 2 * 4096 * 16384) + 50_000 * 4096
    assert shares == pytest.approx([16 * adapted / total, 64 * adapted / total])
    # Four bits with their scales, but for the embedding.
    frozen = column("weight_bytes", task="QLoRA")
    assert frozen == pytest.approx(0.52 + 1.48 * 50_000 * 4096 / total)
    assert column("weight_bytes", task="LoRA", precision="fp8", gpu_type="H100") == 1.0


def test_adapters_follow_from_their_rank_and_modules() -> None:
    lora = {"task": "lora", "notes": "LoRA r 64 on q_proj k_proj v_proj o_proj"}
    half = column("trained_share", **{**lora, "notes": "LoRA rank 32"})
    assert column("trained_share", **lora) == pytest.approx(2 * half)
    assert column("adapts_mlp", **lora) == 0
    wide = {**lora, "notes": "LoRA r 64 on all-linear"}
    assert column("adapts_mlp", **wide) == 1
    assert column("trained_share", **wide) > 1.5 * column("trained_share", **lora)
    assert column("dequantized_bytes", **lora) == 0
