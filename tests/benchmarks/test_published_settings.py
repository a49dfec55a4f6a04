"""What a row says of its mixture of experts: by its cells, and by settings that its notes name."""

import pytest

from autotune.cost import Plans
from autotune.devices.accelerators import shipped_accelerators
from benchmarks.published import rows_to_plans
from tests.benchmarks.rows import row

MIXTURE = {
    "n_experts": "16",
    "experts_per_token": "2",
    "ep": "8",
    "framework": "megatron-bridge",
    "recompute": "none",
}


DEVICES = shipped_accelerators()


def read(*rows: dict[str, str]) -> Plans:
    found = rows_to_plans(rows, DEVICES)
    assert found.plans is not None, found.reasons
    return found.plans


def columns(**changes: str) -> dict[str, float]:
    plans = read(row(**{**MIXTURE, **changes}))
    return {name: float(column[0]) for name, column in plans.columns().items()}


@pytest.mark.cases("notes", "expected")
def test_settings_that_notes_name_are_read(notes: str, expected: dict[str, float]) -> None:
    found = columns(notes=notes)
    assert {name: found[name] for name in expected} == expected


def test_experts_in_micro_scaled_fp8_are_one_kernel_from_a_release_on() -> None:
    mx = {"gpu_type": "GB200", "gpu_mem_gb": "", "precision": "mxfp8"}
    assert columns(**mx, notes="container 26.08 NeMo Container")["fused_experts"] == 1.0
    assert columns(**mx, notes="container 26.04 NeMo Container")["fused_experts"] == 0.0
    newest = "container 26.05 NeMo Container"
    assert columns(**mx, notes=newest)["graph_share"] == 1.0
    for graphs, share in (("cuda graphs off", 0.0), ("CUDA graphs attn, moe_router", 0.45)):
        found = columns(**mx, notes=f"{newest}; {graphs}")
        assert (found["launch_free"], found["graph_share"]) == (share, share)
        assert found["fused_experts"] == 1.0
    assert columns(**mx, notes=f"{newest}; cuda_graph=None []")["graph_share"] == 1.0
    late_bf16 = {**mx, "precision": "bf16", "notes": "container 26.08 NeMo Container"}
    assert columns(**late_bf16)["fused_experts"] == 0.0


def test_settings_of_the_row_above_count_where_notes_say_they_are_the_same() -> None:
    rows = [
        row(**MIXTURE, notes="EP overlap off; alltoall dispatcher, CUDA graphs attn"),
        row(**MIXTURE, notes="EP overlap on; the same"),
        row(**MIXTURE, notes="EP overlap on"),
    ]
    plans = read(*rows)
    assert list(plans.overlap_experts) == [0.0, 1.0, 1.0]
    assert list(plans.flex_dispatch) == [0.0, 0.0, 1.0]
    assert list(plans.launch_free) == [0.25, 0.25, 0.0]


def test_modules_that_are_recomputed() -> None:
    found = columns(recompute="selective:['mla_up_proj', 'mlp', 'moe_act']")
    names = ("latent", "mlp", "expert_act", "scores", "norms", "experts", "shared")
    assert [found[f"recomputes_{name}"] for name in names] == [1, 1, 1, 0, 0, 0, 0]
    assert columns(recompute="selective")["recomputes_scores"] == 1.0
    assert columns(recompute="mla_up_proj, moe_act")["recomputes_latent"] == 1.0
    read = rows_to_plans([row(**{**MIXTURE, "recompute": "selective: [mlp, foo]"})], DEVICES)
    assert "recompute=mlp (foo is not known)" in read.assumed[0]


def test_experts_of_hugging_face_are_computed_one_by_one() -> None:
    for framework in ("deepspeed(hf)", "fsdp(hf)", "hf"):
        plain = {"framework": framework, "tp": "1", "pp": "1", "dp": "64", "ep": "1"}
        assert columns(**plain)["grouped_experts"] == 0.0
    assert columns(**plain, notes="ScatterMoE kernels")["grouped_experts"] == 1.0


@pytest.mark.cases("offload", "expected")
def test_offload_in_parts(offload: str, expected: dict[str, float]) -> None:
    found = columns(offload=offload)
    assert {name: found[name] for name in expected} == expected


def test_a_layout_that_chunks_do_not_divide_is_one_of_uneven_stages() -> None:
    found = columns(n_layers="61", pp="8", vp="4", dp="2", n_gpus="64", tp="4", ep="8")
    assert found["most_stage_layers"] == 8.0
    assert found["first_stage_layers"] + found["last_stage_layers"] + 6 * 8 == 61
