"""Rows of published tables: what is read, what is assumed, and why a row cannot be predicted."""

import csv
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.cost import Recompute, predict
from autotune.cost.plans import LoggedStage
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
    assert column("grad_accum") == 128 / (2 * 8)
    assert column("network_bytes_per_s") == 8 * 200e9 / 8 / 8
    assert column("vocab") == 50_000
    assert column("recompute") == Recompute.FULL


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
def test_what_is_odd_is_filled_and_listed(
    changes: dict[str, str], assumed: str, name: str, value: float
) -> None:
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


def test_the_gate_is_told_by_the_parameters() -> None:
    # Llama 7B: 3 h f, not 2 h f, and 6.7e9 parameters with both embeddings.
    llama = {"model_name": "Someone-7B", "n_layers": "32", "ffn_hidden": "11008"}
    assert column("gated_mlp", **llama, params_b="6.74", vocab="32000", pp="2") == 1
    assert column("gated_mlp", params_b="8.3") == 0


@pytest.mark.cases("cell", "text", "expected")
def test_a_cell_is_read_in_any_spelling(cell: str, text: str, expected: dict[str, float]) -> None:
    assert {name: column(name, **{cell: text}) for name in expected} == expected


@pytest.mark.parametrize("cell", ["loss", "attention", "kernels", "optimizer"])
def test_a_choice_that_is_not_known_is_said_and_changes_nothing(cell: str) -> None:
    rows, plain = read(**{cell: "quantum"}), read()
    assert rows.plans is not None
    assert plain.plans is not None
    assert f"{cell}=as the framework (quantum is not known)" in rows.assumed[0]
    assert np.array_equal(
        predict(rows.plans).peak_memory_bytes, predict(plain.plans).peak_memory_bytes
    )


@pytest.mark.parametrize(
    ("name", "hidden", "heads"),
    [("GPT-8B", "4096", 32), ("Llama-3-9B", "4096", 32), ("gpt2", "768", 12), ("opt", "2048", 16)],
)
def test_heads_follow_from_name_and_hidden(name: str, hidden: str, heads: int) -> None:
    changes = {"model_name": name, "hidden": hidden, "n_kv_heads": "", "params_b": "", "tp": "1"}
    assert column("n_heads", **changes, dp="32", n_heads="") == heads
    assert column("n_heads", **changes, dp="32", n_heads="", head_dim="64") == int(hidden) / 64


@pytest.mark.cases("framework", "name")
def test_frameworks_as_people_name_them(framework: str, name: str) -> None:
    assert read(framework=framework).frameworks == (name,)


@pytest.mark.cases("unit", "framework", "meter")
def test_a_peak_has_a_meter(unit: str, framework: str, meter: str) -> None:
    assert read(peak_mem_unit=unit, framework=framework).meters == (meter,)


@pytest.mark.parametrize(
    ("unit", "framework", "stage"),
    [
        ("GiB (max allocated of the LAST rank only)", "megatron", LoggedStage.LAST),
        ("GB", "nanotron", LoggedStage.FIRST),
        ("GiB (max allocated, max over all ranks)", "nanotron", LoggedStage.FULLEST),
        ("GiB", "megatron", LoggedStage.FULLEST),
    ],
)
def test_a_peak_may_be_of_one_rank(unit: str, framework: str, stage: LoggedStage) -> None:
    assert column("watched_stage", peak_mem_unit=unit, framework=framework) == stage


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


def test_nanotron_gives_layers_of_the_last_stage_to_the_others() -> None:
    # The head of 131,072 weighs four layers of 16 h^2: ten, and six with the head.
    model = {"model_name": "Llama-like", "params_b": "1.34", "n_layers": "16", "hidden": "2048"}
    model |= {"ffn_hidden": "8192", "vocab": "131072", "framework": "nanotron"}
    stages = ("first_stage_layers", "most_stage_layers", "last_stage_layers")
    # Eight stages have 3, 2, 3, 2, 3 and 2 layers, one with the head's product, and the loss.
    for pp, layers in ((2, [10, 10, 6]), (4, [5, 5, 1]), (8, [3, 3, 0])):
        split = {"pp": str(pp), "tp": "1", "dp": str(64 // pp)}
        assert [column(name, **model, **split) for name in stages] == layers
    assert column("first_stage_layers", pp="1", dp="16", **model) == 0


def test_a_framework_has_its_own_eager_fused_and_chunked_loss() -> None:
    single = {"tp": "1", "pp": "1", "dp": "64"}
    for framework, loss, size in (
        ("megatron", "eager", 6.0),
        ("fsdp(hf)", "eager", 12.0),
        ("fsdp(hf)", "fused", 8.0),
        ("fsdp", "fused", 4.0),
        ("torchtune", "chunked", 3.5),
    ):
        assert column("logit_bytes", framework=framework, loss=loss, **single) == size
    assert column("loss_chunk_tokens", framework="torchtune", loss="chunked", **single) == 0
    # Ranks that share the logits have no fused loss.
    assert column("logit_bytes", framework="fsdp", tp="4", pp="1", dp="16") == 12.0


def test_adapters_follow_from_their_rank_and_modules() -> None:
    lora = {"task": "lora", "notes": "LoRA r 64 on q_proj k_proj v_proj o_proj"}
    half = column("trained_share", **{**lora, "notes": "LoRA rank 32"})
    assert column("trained_share", **lora) == pytest.approx(2 * half)
    assert column("adapts_mlp", **lora) == 0
    wide = {**lora, "notes": "LoRA r 64 on all-linear"}
    assert column("adapts_mlp", **wide) == 1
    assert column("trained_share", **wide) > 1.5 * column("trained_share", **lora)
    assert column("dequantized_bytes", **lora) == 0


@pytest.mark.parametrize(
    ("notes", "moved"), [("", 2.5), ("GPTQ Int4 base", 20.0), ("GPTQ, triton v2 kernel", 2.5)]
)
def test_packed_weights_are_unpacked(notes: str, moved: float) -> None:
    assert column("dequantized_bytes", task="qlora", notes=notes) == moved
