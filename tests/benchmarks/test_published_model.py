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


@pytest.mark.cases("changes", "expected", "said")
def test_a_model_follows_from_cells(changes, expected, said) -> None:
    assert columns({**V3, **changes}, *expected) == tuple(expected.values())
    assert said in assumed({**V3, **changes})


def test_windows_of_dense_models_are_read() -> None:
    names = ("window", "n_windowed_layers", "n_experts", "n_dense_layers")
    changes = dict.fromkeys(("n_layers", "hidden", "ffn_hidden", "n_heads", "n_kv_heads"), "")
    changes |= {"model": "mistral-7b", "seq_len": "32768", "tp": "1", "pp": "1", "dp": "64"}
    assert columns(changes, *names) == (4096, 32, 0, 0)
    assert "window=4096 (of 32 layers, as mistral-7b)" in assumed(changes)


@pytest.mark.cases("framework", "notes", "layers")
def test_layers_for_further_tokens_are_those_of_the_notes_or_the_recipe(framework, notes, layers):
    changes = {**V3, "framework": framework, "notes": notes}
    assert columns(changes, "n_mtp_layers") == (layers,)
    assert ("n_mtp_layers" in assumed(changes)) == (not notes)
    assert columns({**changes, "n_mtp_layers": "0"}, "n_mtp_layers") == (0,)


@pytest.mark.cases("changes", "expected")
def test_sizes_that_do_not_fit_together_say_which(changes: dict[str, str], expected: str) -> None:
    (reason,) = read({**V3, **changes}).reasons
    assert reason.startswith(expected)


@pytest.mark.cases("name", "what")
def test_a_family_whose_layers_have_no_columns_is_refused_by_name(name: str, what: str) -> None:
    (reason,) = read({**V3, "model_name": name}).reasons
    assert reason == f"model_name={name}: its {what} cannot be said by sizes"
