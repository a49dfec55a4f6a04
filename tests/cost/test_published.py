"""Rows of published tables: what is read, what is assumed, and why a row cannot be predicted."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.base.errors import JobError
from autotune.cost import Recompute, Tier, predict
from autotune.cost.published import RESULT_COLUMNS, PublishedRows, read_table, rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from tests.cost.rows import ROW, csv_text, row

TABLE = shipped_accelerators()


def read(**changes: str) -> PublishedRows:
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


@pytest.mark.parametrize(
    ("cell", "text", "of", "expected"),
    [
        ("zero_stage", "ZeRO-3", "zero_stage", 3.0),
        ("zero_stage", "stage 2", "zero_stage", 2.0),
        ("zero_stage", "SHARD_GRAD_OP", "zero_stage", 2.0),
        ("zero_stage", "FULL_SHARD", "zero_stage", 3.0),
        ("recompute", "yes", "recompute", Recompute.FULL),
        ("recompute", "off", "recompute", Recompute.NONE),
        ("vocab", "128,256", "vocab", 128_256.0),
        ("seq_len", "8k", "seq_len", 8192.0),
        ("model_name", "Mixtral-8x7B", "n_experts", 8.0),
        ("task", "LoRA SFT", "trained_share", 0.01),
    ],
)
def test_other_spellings_are_read(cell: str, text: str, of: str, expected: float) -> None:
    assert column(of, **{cell: text}) == expected


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


NUMBERS = ("", "0", "-1", "1e400", "nan", "1", "2", "7", "8.0", "3.5", "64", "1e6", "9" * 400)
WORDS = ("full", "every_0", "act_cpu alpha=1.2.3", "fsdp", "1 (shard group 0)", "ulysses=0", "yes")
NAMES = ("fp8", "bf16", "H100", "V100", "CPU", "9x9Gb", "deepspeed", "torchtitan")
CELLS = st.one_of(st.sampled_from(NUMBERS + WORDS + NAMES), st.text(max_size=12))


@given(st.dictionaries(st.sampled_from(sorted(ROW)), CELLS, max_size=6))
@settings(deadline=None, max_examples=300)
def test_any_row_is_predicted_in_numbers_or_has_a_reason(changes: dict[str, str]) -> None:
    rows = read(**changes)
    if rows.plans is None:
        assert rows.reasons[0]
        return
    predicted = predict(rows.plans)
    assert np.all(np.isfinite(predicted.step_time_s) & (predicted.step_time_s > 0))
    assert np.all(np.isfinite(predicted.peak_memory_bytes))
    assert np.all((predicted.fit_probability >= 0) & (predicted.fit_probability <= 1))


@pytest.mark.parametrize(
    ("blank", "assumed"),
    [
        ("n_kv_heads", "n_kv_heads=32"),
        ("ffn_hidden", "ffn_hidden=16384"),
        ("vocab", "vocab=50304"),
        ("gpu_mem_gb", "gpu_mem_gb=79.2 (A100-80GB)"),
        ("gpus_per_node", "gpus_per_node=8"),
        ("interconnect", "network=25 GB/s per device"),
        ("vp", "vp=1"),
        ("dp", "dp=8"),
        ("zero_stage", "zero_stage=1 (as megatron)"),
        ("sp", "sp=no"),
        ("recompute", "recompute=none"),
        ("offload", "offload=none"),
        ("precision", "precision=fp16"),
        ("framework", "framework=deepspeed"),
    ],
)
def test_what_is_blank_is_assumed_and_listed(blank: str, assumed: str) -> None:
    rows = read(**{blank: ""})
    assert rows.reasons == ("",)
    assert any(text.startswith(assumed) for text in rows.assumed[0]), rows.assumed


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"n_layers": ""}, "n_layers is blank"),
        ({"n_layers": "0"}, "n_layers=0: not above zero"),
        ({"n_layers": "12.5"}, "not a whole number"),
        ({"hidden": "wide"}, "hidden='wide' is not a number"),
        ({"hidden": "inf"}, "not above zero"),
        ({"seq_len": "-1"}, "not above zero"),
        ({"hidden": "4100"}, "hidden=4100 is no multiple of n_heads=32"),
        ({"n_kv_heads": "5"}, "n_heads=32 is no multiple of n_kv_heads=5"),
        ({"n_heads": "", "model_name": ""}, "n_heads is blank, and hidden"),
        ({"tp": "3", "dp": ""}, "tp 3 x pp 2 x cp 1 x ulysses 1 = 6 does not divide n_gpus=64"),
        ({"dp": "4"}, "= 32, not n_gpus=64"),
        ({"tp": "64", "pp": "1", "dp": "1"}, "n_heads=32 is no multiple of tp=64"),
        ({"tp": "1", "pp": "64", "dp": "1"}, "pp 64 x vp 1 is more than n_layers=40"),
        ({"n_gpus": "1000000", "n_layers": "1"}, "n_gpus=1000000: more than 262144"),
        ({"global_batch": "100"}, "global_batch=100 is no multiple of micro_batch 2 x dp 8"),
        ({"gpu_type": "TPUv9"}, "no figures for the accelerator 'TPUv9'"),
        ({"gpu_type": ""}, "gpu_type is blank"),
        ({"precision": "int3"}, "precision='int3'"),
        ({"precision": "fp8"}, "precision=fp8: A100-80GB has fp32, fp16, bf16"),
        ({"gpu_type": "V100"}, "precision=bf16: V100-32GB has fp32, fp16"),
        ({"framework": "jax"}, "framework='jax' is not known"),
        ({"zero_stage": "maybe"}, "zero_stage='maybe'"),
        ({"zero_stage": "1 (shard group 3)"}, "groups of 3 do not tile dp=8"),
        ({"recompute": "sometimes"}, "recompute='sometimes'"),
        ({"offload": "tape"}, "names neither cpu nor nvme"),
        ({"sp": "perhaps"}, "sp='perhaps'"),
        ({"ep": "8"}, "ep=8, and n_experts is not given"),
        ({"seq_len": "2047", "cp": "2", "dp": "4"}, "seq_len=2047 is no multiple of cp"),
        ({"n_layers": "10000", "hidden": "1000000"}, "10^15 parameters"),
    ],
)
def test_a_row_that_cannot_be_predicted_says_why(changes: dict[str, str], reason: str) -> None:
    rows = read(**changes)
    assert rows.plans is None
    assert reason in rows.reasons[0]


def test_a_bad_row_does_not_shift_the_others() -> None:
    rows = rows_to_plans([row(), row(n_layers=""), row(n_layers="20")], TABLE)
    assert rows.positions == (0, 2)
    assert rows.plans is not None
    assert list(rows.plans.n_layers) == [40.0, 20.0]
    assert [bool(reason) for reason in rows.reasons] == [False, True, False]


@pytest.mark.parametrize(
    ("text", "stage", "group"),
    [
        ("0", 0, 0),
        ("3.0", 3, 0),
        ("1 (shard group 4)", 1, 4),
        ("fsdp:FULL_SHARD", 3, 0),
        ("fsdp2:FULL_SHARD group 8", 3, 8),
        ("1 (distributed optimizer)", 1, 0),
        ("ddp/dist-opt", 1, 0),
        ("ddp", 0, 0),
    ],
)
def test_zero_stages_as_people_write_them(text: str, stage: int, group: int) -> None:
    assert column("zero_stage", zero_stage=text) == stage
    assert column("shard_group", zero_stage=text) == group


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("RoCE 1600Gbps/node", 25e9),
        ("4x100Gb RoCE per node", 6.25e9),
        ("Selene: DGX A100, 8x HDR200 IB/node", 25e9),
        ("8x A100-80GB NVLink/NVSwitch, 4x100Gb Omni-Path/node", 6.25e9),
        ("400Gb/s RDMA per GPU", 50e9),
        ("NVLink", 25e9),
    ],
)
def test_networks_as_people_write_them(text: str, bytes_per_s: float) -> None:
    assert column("network_bytes_per_s", interconnect=text) == bytes_per_s


def test_offload_as_people_write_it() -> None:
    assert column("optimizer_tier", offload="cpu(optimizer)") == Tier.CPU
    assert column("param_tier", offload="cpu(optimizer)") == Tier.DEVICE
    assert column("param_tier", offload="nvme(optimizer+param)") == Tier.NVME
    assert column("offloaded_activations", offload="act_cpu alpha=0.25") == 0.25
    assert column("offloaded_activations", offload="act_cpu layers=10") == 0.25


def test_the_gate_is_told_by_the_parameters() -> None:
    # Llama 7B: 3 h f, not 2 h f, and 6.7e9 parameters with both embeddings.
    llama = {"model_name": "Someone-7B", "n_layers": "32", "ffn_hidden": "11008"}
    assert column("gated_mlp", **llama, params_b="6.74", vocab="32000", pp="2") == 1
    assert column("gated_mlp", params_b="8.3") == 0


def test_ulysses_is_a_degree() -> None:
    assert column("ulysses", sp="ulysses=2", dp="4") == 2


def test_smaller_memory_is_another_a100() -> None:
    assert column("memory_bytes", gpu_mem_gb="40") < column("memory_bytes") * 0.6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no header"),
        ("id,id\n1,2\n", "column id is there twice"),
        ("id,tp\n1,2,3\n", "row 2 has 3 cells, the header 2"),
        ('id,tp\n1,"2\n', "cannot be read"),
    ],
)
def test_a_broken_table_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(JobError, match=message):
        read_table(path)


def test_a_table_is_read_as_text(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xef\xbb\xbf" + csv_text(row(), row(id="a-2")).encode())
    header, rows = read_table(path)
    assert header == tuple(ROW)
    assert [one["id"] for one in rows] == ["a-1", "a-2"]


def test_binary_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobError, match="is no text: byte 1 is not UTF-8"):
        read_table(path)


@pytest.mark.parametrize("params_b", ["1e300", "1e308"])
def test_parameters_that_nobody_has_are_refused(params_b: str) -> None:
    read = rows_to_plans([row(params_b=params_b)], shipped_accelerators())
    assert read.reasons == (f"params_b={params_b}: above 10^15 parameters",)


@pytest.mark.parametrize(
    ("cell", "text", "expected"),
    [
        ("loss", "fused cross entropy", {"logit_bytes": 4.0}),
        ("loss", "chunked 2048", {"loss_chunk_tokens": 2048.0}),
        ("loss", "unfused", {"logit_bytes": 12.0}),
        ("attention", "eager", {"flash_attention": 0.0}),
        ("attention", "flash_attention_2", {"flash_attention": 1.0, "attention_speed": 1.0}),
        ("attention", "FA1 triton", {"flash_attention": 1.0, "attention_speed": 0.55}),
        ("kernels", "torch.compile", {"fused_kernels": 0.7, "launch_free": 0.5}),
        ("kernels", "eager", {"fused_kernels": 0.0}),
        ("kernels", "TiledMLP", {"mlp_chunk_tokens": float(ROW["hidden"])}),
        ("settings", "tiled MLP", {"mlp_chunk_tokens": float(ROW["hidden"])}),
        ("notes", "without TiledMLP", {"mlp_chunk_tokens": 0.0}),
        ("offload", "act_cpu", {"offloaded_activations": 1.0, "optimizer_tier": Tier.DEVICE}),
        (
            "offload",
            "cpu(optimizer)+act_cpu",
            {"offloaded_activations": 1.0, "optimizer_tier": Tier.CPU, "param_tier": Tier.DEVICE},
        ),
        ("offload", "cpu(activations)", {"offloaded_activations": 1.0, "optimizer_tier": 0.0}),
        ("optimizer", "AdamW", {"optimizer_bytes": 12.0}),
        ("optimizer", "adamw 8-bit", {"optimizer_bytes": 6.0}),
        ("optimizer", "SGD", {"optimizer_bytes": 4.0}),
        ("optimizer", "Lion", {"optimizer_bytes": 8.0}),
    ],
)
def test_a_row_says_what_changes_memory(cell: str, text: str, expected: dict[str, float]) -> None:
    assert {name: column(name, **{cell: text}) for name in expected} == expected


@pytest.mark.parametrize("cell", ["loss", "attention", "kernels", "optimizer"])
def test_a_choice_that_is_not_known_is_said_and_changes_nothing(cell: str) -> None:
    rows, plain = read(**{cell: "quantum"}), read()
    assert rows.plans is not None
    assert plain.plans is not None
    assert f"{cell}=as megatron (quantum is not known)" in rows.assumed[0]
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


def test_arctic_long_sequence_training_is_all_of_its_parts() -> None:
    """And each as the row says where it does."""
    blank = {"loss": "", "recompute": "", "offload": "", "settings": "ALST"}
    parts = ("mlp_chunk_tokens", "loss_chunk_tokens", "recompute", "offloaded_activations")
    assert [column(name, **blank) for name in parts] == [
        float(ROW["hidden"]),
        1024.0,
        Recompute.FULL,
        1.0,
    ]
    assert column("offloaded_activations", **{**blank, "offload": "none"}) == 0.0


LONG_SAMPLES = {
    "model": "llama-3.1-8b",
    "gpu_type": "H100",
    "gpu_mem_gb": "80",
    "n_gpus": "8",
    "framework": "deepspeed",
    "precision": "bf16",
    "zero_stage": "3",
    "micro_batch": "1",
    "global_batch": "1",
    "recompute": "full",
    "offload": "cpu(optimizer)",
    "loss": "tiled",
    "sp": "ulysses=8",
}


@pytest.mark.parametrize(
    "changes",
    [
        # Bekman et al. (arXiv:2506.13996), abstract: 500K tokens on one H100, 3.7M on eight.
        {"seq_len": "500000", "sp": "", "n_gpus": "1"},
        {"seq_len": "3700000"},
    ],
)
def test_the_longest_samples_of_alst_are_about_as_large_as_the_device(
    changes: dict[str, str],
) -> None:
    """And without its parts they would be by far too large."""
    alst = {"settings": "TiledMLP", "offload": "cpu(optimizer)+act_cpu"}
    rows = rows_to_plans(
        [{**LONG_SAMPLES, **changes, **alst}, {**LONG_SAMPLES, **changes}], shipped_accelerators()
    )
    assert rows.plans is not None, rows.reasons
    fits, plain = predict(rows.plans).peak_memory_bytes / (80 * 2**30)
    assert 0.75 < fits < 1.25
    assert plain > 2.0
