"""The model of a row: what follows from a preset that it names, and what its own columns say."""

import pytest

from autotune.cost.table import TableRows
from autotune.devices.accelerators import shipped_accelerators
from benchmarks.published import rows_to_plans
from tests.benchmarks.rows import row

TABLE = shipped_accelerators()
BLANK = dict.fromkeys(
    ("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads", "vocab", "params_b"), ""
)
V3 = {
    **BLANK,
    "model_name": "DeepSeek V3",
    "framework": "nemo(megatron-bridge)",
    "gpu_type": "H100",
    **{"n_gpus": "64", "tp": "1", "pp": "8", "dp": "8", "ep": "8", "vp": "4"},
    **{"micro_batch": "1", "global_batch": "64"},
}


def read(changes: dict[str, str]) -> TableRows:
    return rows_to_plans([row(**changes)], TABLE)


def columns(changes: dict[str, str], *names: str) -> tuple[float, ...]:
    plans = read(changes).plans
    assert plans is not None, read(changes).reasons
    return tuple(float(getattr(plans, name)[0]) for name in names)


def assumed(changes: dict[str, str]) -> str:
    return "; ".join(read(changes).assumed[0])


@pytest.mark.parametrize(
    "spelled",
    ["DeepSeekV3", "DeepSeek-V3-671B", "deepseek-ai/DeepSeek-V3-Base", "deepseek v3 (671B, MLA)"],
)
def test_a_name_however_spelled_gives_the_whole_shape(spelled: str) -> None:
    sizes = ("n_layers", "hidden", "n_heads", "n_experts", "experts_per_token", "ffn_hidden")
    assert columns({**V3, "model_name": spelled}, *sizes) == (61, 7168, 128, 256, 8, 2048)
    latent = ("latent_q_rank", "latent_kv_rank", "latent_nope_dim", "latent_value_dim")
    assert columns({**V3, "model_name": spelled}, *latent) == (1536, 512, 128, 128)
    rest = ("n_dense_layers", "dense_ffn_hidden", "shared_expert_hidden", "tied_embeddings")
    assert columns({**V3, "model_name": spelled}, *rest) == (3, 18432, 2048, 0)


def test_the_column_model_goes_before_model_name() -> None:
    changes = {**V3, "model": "openai/gpt-oss-120b", "model_name": "their own", "pp": "1"}
    changes |= {"dp": "64", "vp": "1", "n_layers": "36"}
    names = ("n_experts", "window", "n_windowed_layers", "latent_kv_rank", "n_mtp_layers")
    assert columns(changes, *names) == (128, 128, 18, 0, 0)


def test_windows_of_dense_models_are_read() -> None:
    names = ("window", "n_windowed_layers", "n_experts", "n_dense_layers")
    changes = dict.fromkeys(("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads"), "")
    changes |= {"model": "mistral-7b", "seq_len": "32768", "tp": "1", "pp": "1", "dp": "64"}
    assert columns(changes, *names) == (4096, 32, 0, 0)
    assert "window=4096 (of 32 layers, as mistral-7b)" in assumed(changes)


def test_a_rows_own_columns_win_and_are_named() -> None:
    changes = {**V3, "n_layers": "8", "n_experts": "64", "pp": "1", "dp": "64", "vp": "1"}
    assert columns(changes, "n_layers", "n_experts", "n_dense_layers") == (8, 64, 3)
    assert "n_layers=8 (61 in deepseek-v3)" in assumed(changes)
    assert "n_experts=64 (256 in deepseek-v3)" in assumed(changes)
    assert "shared_expert_hidden=2048 (as deepseek-v3)" in assumed(changes)


def test_layers_of_another_size_are_of_another_model() -> None:
    changes = {**V3, "hidden": "4096", "n_heads": "32", "n_layers": "32", "n_experts": "8"}
    assert columns(changes, "latent_kv_rank", "shared_expert_hidden", "n_heads") == (0, 0, 32)
    assert "not deepseek-v3, whose hidden is 7168" in assumed(changes)


def test_a_mixture_between_dense_layers_is_counted() -> None:
    changes = {**V3, "model_name": "Llama4-Maverick-400B", "vp": "1", "pp": "1", "dp": "64"}
    names = ("n_dense_layers", "dense_ffn_hidden", "shared_expert_hidden")
    assert columns(changes, *names) == (24, 16384, 8192)


@pytest.mark.cases("framework", "notes", "layers")
def test_layers_for_further_tokens_are_those_of_the_notes_or_the_recipe(
    framework: str, notes: str, layers: int
) -> None:
    changes = {**V3, "framework": framework, "notes": notes}
    assert columns(changes, "n_mtp_layers") == (layers,)
    assert ("n_mtp_layers" in assumed(changes)) == (not notes)
    assert columns({**changes, "n_mtp_layers": "0"}, "n_mtp_layers") == (0,)


def test_recipes_split_no_expert_over_tensor_ranks() -> None:
    split = {**V3, "tp": "2", "dp": "4", "ep": "4"}
    assert columns(split, "expert_tp") == (1,)
    assert "etp=1 (as recipes have it)" in assumed(split)
    assert columns({**split, "etp": "2"}, "expert_tp") == (2,)
    assert columns({**split, "framework": "megatron"}, "expert_tp") == (0,)


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        ({"pp": "8", "vp": "4"}, (8, 7, 6)),
        ({"pp": "16", "vp": "1", "dp": "4", "ep": "4"}, (4, 3, 2)),
        ({"pp": "2", "vp": "8", "dp": "32"}, (31, 31, 30)),
        ({"pp": "1", "vp": "1", "dp": "64"}, (0, 0, 0)),
    ],
)
def test_61_layers_run_with_a_layout(
    layout: dict[str, str], stages: tuple[float, float, float]
) -> None:
    changes = {**V3, **layout}
    names = ("most_stage_layers", "first_stage_layers", "last_stage_layers")
    assert columns(changes, *names) == stages
    assert ("stages=" in assumed(changes)) == (stages[0] > 0)


@pytest.mark.cases("changes", "expected")
def test_sizes_that_do_not_fit_together_say_which(changes: dict[str, str], expected: str) -> None:
    (reason,) = read({**V3, **changes}).reasons
    assert reason.startswith(expected)


def test_experts_are_whole_where_the_world_has_no_ranks_for_parts() -> None:
    row = {**V3, "framework": "megatron", "tp": "4", "dp": "", "global_batch": "256"}
    assert columns({**row, "ep": "2"}, "expert_tp") == (0,)
    assert columns({**row, "ep": "8"}, "expert_tp") == (1,)
    assert "etp=1 (ep 8 x tp 4 x pp 8 do not fit n_gpus)" in assumed({**row, "ep": "8"})


@pytest.mark.cases("name", "what")
def test_a_family_whose_layers_have_no_columns_is_refused_by_name(name: str, what: str) -> None:
    (reason,) = read({**V3, "model_name": name}).reasons
    assert reason == f"model_name={name}: its {what} cannot be said by sizes"


def test_a_dense_model_of_the_same_house_is_read() -> None:
    changes = {**V3, "model_name": "Nemotron-340B", "n_layers": "96", "hidden": "18432"}
    assert columns({**changes, "n_heads": "96", "ep": "", "vp": "1"}, "n_experts") == (0,)
