"""Shapes are exact, errors name file and key, and torch stays out of the way."""

import dataclasses
import functools
import json
import sys
import textwrap
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from autotune.base.errors import JobError
from autotune.job import model_probe
from autotune.job.model import (
    load_model,
    model_from_config,
    presets,
)
from autotune.job.model_families import (
    FAMILIES,
    as_transformers_names_it,
    is_split_by_ulysses,
    peft_widths,
    shape_by_formula,
)
from autotune.job.model_shape import ModelShape, train_flops_per_token
from autotune.job.published import PUBLISHED, preset_of_repository
from autotune.trial.transformer_shape import rope_settings
from benchmarks.published.names import preset_spelled
from tests.captured import captured
from tests.cases import data_beside

DATA = data_beside(__file__)

LLAMA = {
    "model_type": "llama",
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
FACTORIES = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 8)
            self.positions = nn.Embedding(16, 8)
            self.layers = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(3))
            self.head = nn.Linear(8, 50, bias=False)

        def forward(self, input_ids, labels):
            raise AssertionError("building it is enough")

    class Tied(Net):
        def __init__(self):
            super().__init__()
            self.head.weight = self.words.weight

    class Reads(Net):
        def __init__(self):
            super().__init__()
            self.scales = torch.linspace(0, 1, 3).tolist()

    class Other(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)

    class Blind(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)

        def forward(self, input_ids, labels):
            pass

    def raises():
        raise KeyError("weights.bin")

    def number():
        return 3
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"factories_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(FACTORIES))
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize("positions", [4096.0, -1, 2**40, "4096"])
def test_positions_that_serve_a_remark_alone_refuse_no_model(positions: Any) -> None:
    shape = shape_by_formula({**LLAMA, "max_position_embeddings": positions}, "config.json")
    assert shape is not None
    assert shape.configured_positions == (positions if positions == 2**40 else 0)


def built(config: dict[str, Any]) -> dict[str, Any]:
    return model_probe.shape_of(model_probe.build({"config": config}))


@functools.cache
def built_preset(name: str) -> tuple[ModelShape, bool]:
    """The shape of a preset as built, and whether AutoTP takes it; building takes long."""
    module = model_probe.build({"config": config_of_preset(name)})
    return ModelShape(**model_probe.shape_of(module)), model_probe._supports_tp(module)


def assert_counts_as_built(shape: ModelShape, config: dict[str, Any]) -> None:
    assert_alike(shape, ModelShape(**built(config)), config["model_type"])


def assert_alike(shape: ModelShape, built_shape: ModelShape, family: str) -> None:
    """All fields but those that nothing built shows, and GPT-2's width, which has its own name."""
    counted = dataclasses.asdict(built_shape)
    unseen = {"n_mtp_layers", "ffn_hidden"} if family == "gpt2" else {"n_mtp_layers"}
    if not shape.configured_positions:  # transformers builds its default where a config has none
        unseen.add("configured_positions")
    formula = dataclasses.asdict(shape)
    for field in formula.keys() - unseen - {"head_dim"}:
        assert formula[field] == counted[field], field
    assert shape.attention_width == built_shape.attention_width


@pytest.mark.parametrize("name", presets())
def test_formulas_count_what_transformers_builds(name: str) -> None:
    """And what its authors publish, where they do."""
    family = config_of_preset(name)["model_type"]
    built_shape, _ = built_preset(name)
    assert_alike(load_model(name).shape, built_shape, family)
    if name in PUBLISHED:
        assert built_shape.n_params == PUBLISHED[name].n_params


@pytest.mark.cases("name", "total", "active")
def test_mixtures_are_as_large_as_their_cards_say(name: str, total: float, active: float) -> None:
    """Some cards round, leave embeddings out of what is active, or count a layer of MTP."""
    shape = load_model(name).shape
    assert shape.n_params == pytest.approx(total, rel=0.02)
    counted = [shape.n_params_active - n * shape.n_params_lookup for n in range(3)]
    assert min(abs(it / active - 1) for it in counted) < 0.05


@pytest.mark.parametrize(
    ("name", "layers"),
    [("qwen3-next", "linear"), ("qwen3.5-35b-a3b", "linear"), ("nemotron-h-8b", "Mamba")],
)
def test_a_family_without_a_shape_is_refused_by_its_layers(name: str, layers: str) -> None:
    with pytest.raises(JobError, match=f"{layers}.* cannot be predicted"):
        load_model(name)


def config_of_preset(name: str) -> dict[str, Any]:
    file = resources.files("autotune.job") / "presets" / f"{name}.json"
    config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return config


def test_a_repository_is_read_from_the_local_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JobError, match="local cache does not hold") as caught:
        load_model("meta-llama/Llama-3.1-9B")
    assert "hf download meta-llama/Llama-3.1-9B config.json" in caught.value.hint
    with pytest.raises(JobError) as hybrid:
        load_model("Qwen/Qwen3-Next-80B-A3B-Instruct")
    assert "its layers of linear attention cannot be predicted" in hybrid.value.hint
    assert load_model("meta-llama/Llama-3.1-8B") == load_model("llama-3.1-8b")
    kept = tmp_path / "models--meta-llama--Llama-3.1-8B"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("a1")
    (kept / "snapshots" / "a1").mkdir(parents=True)
    (kept / "snapshots" / "a1" / "config.json").write_text(json.dumps(LLAMA))
    model = load_model("meta-llama/Llama-3.1-8B")
    assert (model.name, model.shape.hidden) == ("Llama-3.1-8B", LLAMA["hidden_size"])


def test_a_secret_in_a_config_is_not_kept(tmp_path: Path) -> None:
    token = "hf_" + "aB3" * 12
    secrets = {"hub": {"token": token, "notes": ["x", f"password={token}"]}, "use": token}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **secrets}))
    model = load_model(str(path))
    assert token not in json.dumps(model.source)
    assert model.shape.hidden == LLAMA["hidden_size"]


@pytest.mark.cases("repository", "preset")
def test_a_repository_of_the_same_shape_is_a_preset(repository: str, preset: str | None) -> None:
    assert preset_of_repository(repository) == preset


@pytest.mark.cases("name", "positions")
def test_positions_are_the_presets_under_its_own_names_alone(name: str, positions: int) -> None:
    assert load_model(name).shape.configured_positions == positions


def test_a_preset_is_found_by_both_of_its_names() -> None:
    for name, published in PUBLISHED.items():
        assert preset_spelled(name) == name
        assert preset_of_repository(published.repository) == name


@pytest.mark.parametrize("name", ["org/a--b", "org/a..b", "org/model.git", f"org/{'x' * 100}"])
def test_what_no_repository_is_called_is_named(name: str) -> None:
    with pytest.raises(JobError, match="no name of a repository"):
        load_model(name)


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(["llama", "mistral", "qwen2", "mixtral"]),
    groups=st.integers(1, 3),
    kv_heads=st.integers(1, 3),
    head_dim=st.sampled_from([None, 4, 10]),
    ffn=st.integers(1, 40),
    vocab=st.integers(1, 90),
    tied=st.booleans(),
    biases=st.tuples(st.booleans(), st.booleans()),
)
def test_formulas_hold_for_any_rotary_config(
    family: str,
    groups: int,
    kv_heads: int,
    head_dim: int | None,
    ffn: int,
    vocab: int,
    tied: bool,
    biases: tuple[bool, bool],
) -> None:
    heads = groups * kv_heads
    config = {
        "model_type": family,
        "vocab_size": vocab,
        "hidden_size": heads * 6,
        "intermediate_size": ffn,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "tie_word_embeddings": tied,
        "pad_token_id": None,
    }
    if head_dim is not None:
        config["head_dim"] = head_dim
    if family == "llama":
        config["attention_bias"], config["mlp_bias"] = biases
    if family == "mixtral":
        config |= {"num_local_experts": 3, "num_experts_per_tok": 3}
    assert_counts_as_built(shape_by_formula(config, "here"), config)


def test_an_architecture_that_is_unknown_has_near_names_and_not_a_list_of_all() -> None:
    config = {"model_type": "llamma", "hidden_size": 8}
    with pytest.raises(JobError, match="identifier: llamma\n") as caught:
        model_from_config("mine", config, where="here")
    assert caught.value.hint.startswith("did you mean llama or ")


MIXTURE = DATA["MIXTURE"]


@pytest.mark.cases("family", "change")
def test_formulas_hold_for_any_mixture(family: str, change: dict[str, Any]) -> None:
    config = {**MIXTURE, "model_type": family, **change}
    if family.startswith(("qwen", "deepseek", "glm")):
        config["moe_intermediate_size"] = 7
    shape = shape_by_formula(config, "here")
    assert_counts_as_built(shape, config)
    lora = {"rank": 2, "alpha": 4.0, "target_modules": "all-linear", "dropout": 0.0}
    module = model_probe.build({"config": config})
    counted = model_probe.adapted_shape(module, {"lora": lora})
    n_passed = counted["n_params_active"] - shape.n_params_active
    assert peft_widths(config, shape) == (counted["n_params"] / 2, n_passed / 2)


@pytest.mark.cases("family", "change", "unsaid")
def test_a_family_whose_layers_cannot_be_said_is_named(
    family: str, change: dict[str, Any], unsaid: str
) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = {**MIXTURE, "model_type": family, **sizes, "num_experts_per_tok": 2, **change}
    found = built(config)["unsaid"]
    assert unsaid in found
    assert bool(unsaid) == bool(found)


def test_a_config_is_read_as_transformers_names_its_family() -> None:
    """Kimi-K2's code is DeepSeek-V3's; Llama 4 has a language model beside its eyes."""
    kimi = {
        **config_of_preset("kimi-k2"),
        "model_type": "kimi_k2",
        "auto_map": {"AutoConfig": "x"},
    }
    assert model_from_config("kimi-k2", kimi, where="here") == load_model("kimi-k2")
    text = config_of_preset("llama-4-scout")
    whole = {"model_type": "llama4", "text_config": text, "vision_config": {}}
    seeing = model_from_config("llama-4-scout", whole, where="here")
    assert dataclasses.replace(seeing, left_out=()) == load_model("llama-4-scout")


@pytest.mark.cases("outer", "inner", "family")
def test_of_a_model_that_sees_the_text_model_alone_is_read(outer, inner, family) -> None:
    """Where its family is known; null: its sizes stand beside the config of its eyes."""
    rope = {"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}
    sizes = {**{k: v for k, v in LLAMA.items() if k != "model_type"}, **rope}
    text = sizes if inner is None else {"text_config": {**sizes, **inner}}
    whole = {"model_type": outer, "vision_config": {"depth": 2}, **text}
    found = as_transformers_names_it(whole, "here")
    assert found["model_type"] == family
    assert ("vision_config" in found) is (family == outer)
    if family.startswith("qwen"):
        assert rope_settings(found)["rope_type"] == "default"
    if family != outer:
        assert model_from_config("seeing", whole, where="here").left_out == ("vision",)


@settings(max_examples=15, deadline=None)
@given(
    heads=st.integers(1, 4),
    inner=st.sampled_from([None, 7]),
    positions=st.integers(1, 200),
    tied=st.booleans(),
)
def test_formulas_hold_for_any_gpt2_config(
    heads: int, inner: int | None, positions: int, tied: bool
) -> None:
    config = {
        "model_type": "gpt2",
        "vocab_size": 60,
        "n_embd": heads * 6,
        "n_layer": 2,
        "n_head": heads,
        "n_positions": positions,
        "n_inner": inner,
        "tie_word_embeddings": tied,
    }
    assert_counts_as_built(shape_by_formula(config, "here"), config)


def test_a_known_model_needs_no_torch() -> None:
    code = (
        "import sys; from autotune.job.model import load_model; load_model('llama-3-70b');"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = captured([sys.executable, "-c", code])
    assert done.stdout.strip() == "[]", done.stderr


def test_a_folder_and_its_config_are_the_same_model(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = load_model(str(folder)), load_model(str(folder / "config.json"))
    assert by_folder == by_file
    assert by_folder.name == "my-llama"
    assert by_folder.source == {"config": LLAMA, "vocab": 96}
    assert by_folder.supports_tp


@pytest.mark.cases("change", "key", "says")
def test_a_bad_config_is_refused_by_file_and_key(
    tmp_path: Path, change: dict[str, Any], key: str, says: str
) -> None:
    config = {k: v for k, v in {**LLAMA, **change}.items() if v is not None}
    if change == {"model_type": "gpt2"}:
        config.pop("num_hidden_layers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(JobError) as caught:
        load_model(str(tmp_path))
    assert str(tmp_path / "config.json") in caught.value.message
    assert key in caught.value.message
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "not valid JSON"), ("[1]", "holds a list"), (None, "no such file")],
)
def test_an_unreadable_config_is_refused(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(JobError, match=says):
        load_model(str(tmp_path))


def test_an_unknown_preset_answers_with_the_nearest() -> None:
    with pytest.raises(JobError) as caught:
        load_model("lama-3-8b")
    assert "did you mean llama-3-8b" in caught.value.hint


def test_a_factory_is_built_and_counted_in_its_own_process(factories: str) -> None:
    model = load_model(f"{factories}:Net")
    assert model.name == "Net"
    assert model.source["path"] == [str(Path.cwd())]
    assert model.source["vocab"] == model.shape.vocab == 50
    assert (model.shape.n_layers, model.shape.hidden, model.shape.n_heads) == (3, 8, 0)
    assert model.shape.n_params == 50 * 8 + 16 * 8 + 3 * 64 + 8 * 50
    assert model.shape.n_params_lookup == 50 * 8 + 16 * 8
    assert model.shape.max_seq_len == 16
    assert not model.supports_tp
    assert not model.supports_recompute
    assert factories not in sys.modules


def test_a_factory_finds_its_own_modules_whatever_ours_are_called(
    factories: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started_probes: None
) -> None:
    (tmp_path / "planning.py").write_text("LAYERS = 3\n")
    factory = f"from planning import LAYERS\nfrom {factories} import Net\n"
    Path("plans.py").write_text(factory)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert load_model("plans:Net").shape.n_layers == 3


def test_a_factory_that_raises_is_an_error_with_its_place(factories: str) -> None:
    with pytest.raises(JobError) as caught:
        load_model(f"{factories}:raises")
    assert "KeyError: 'weights.bin'" in caught.value.message
    assert f"{factories}.py:" in caught.value.message


def source_of(factories: str, name: str) -> dict[str, Any]:
    return {"factory": f"{factories}:{name}", "path": [str(Path.cwd())]}


def test_tied_weights_count_once_and_do_arithmetic(factories: str) -> None:
    shape = model_probe.shape_of(model_probe.build(source_of(factories, "Tied")))
    assert shape["tied_embeddings"]
    assert shape["n_params"] == 50 * 8 + 16 * 8 + 3 * 64
    assert shape["n_params_lookup"] == 16 * 8


def test_code_beside_the_weights_wants_a_factory() -> None:
    config = {"model_type": "their-own", "auto_map": {"AutoConfig": "configuration.Theirs"}}
    with pytest.raises(model_probe.NotUsableError) as caught:
        model_probe.build({"config": config})
    assert "trust_remote_code=True" in caught.value.hint


def test_a_factory_may_read_values_while_it_builds(factories: str) -> None:
    assert model_probe.shape_of(model_probe.build(source_of(factories, "Reads")))["vocab"] == 50


@pytest.mark.cases("name", "says")
def test_a_factory_without_a_usable_module_is_refused(
    factories: str, name: str, says: str
) -> None:
    with pytest.raises(model_probe.NotUsableError, match=says) as caught:
        model_probe.shape_of(model_probe.build(source_of(factories, name)))
    assert caught.value.hint


def test_autotp_is_offered_where_deepspeed_takes_the_model() -> None:
    for name in presets():
        assert built_preset(name)[1] == load_model(name).supports_tp, name
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    # For want of a plan DeepSpeed goes by names, and raises in the forward pass of these two.
    for family, is_split in (("falcon", False), ("bloom", False), ("starcoder2", True)):
        module = model_probe.build({"config": {"model_type": family, **sizes}})
        assert model_probe._supports_tp(module) is is_split, family


@pytest.mark.parametrize("name", ["tiny-gpt2", "tiny-llama"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    model, n_tokens = load_model(name), 32
    config = AutoConfig.for_model(**model.source["config"])
    module = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    tokens = torch.zeros(1, n_tokens, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        module(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    counted = counter.get_total_flops() / n_tokens
    # Biases and norms are in ours and not in torch's count.
    assert train_flops_per_token(model.shape, n_tokens) == pytest.approx(counted, rel=0.01)


def test_flops_follow_korthikanti_for_gpt() -> None:
    shape = load_model("gpt2-xl").shape
    layers, hidden, vocab, seq_len = 48, 1600, 50257, 1024
    per_token = (
        72 * layers * hidden**2 * (1 + seq_len / (6 * hidden) + vocab / (12 * hidden * layers))
    )
    assert train_flops_per_token(shape, seq_len) == pytest.approx(per_token, rel=0.001)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_has_the_attention_that_its_class_has(family) -> None:
    built = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[family])
    assert list(FAMILIES[family].attention) == model_probe.attention_of(built)


def test_what_was_counted_of_a_config_is_not_built_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4}
    first = model_from_config("mine", config, where="here")
    assert first.attention == ["eager"]
    monkeypatch.setattr("autotune.job.model.ask", lambda **_: {}["asked"])
    assert model_from_config("mine", config, where="here") == first
    (kept,) = tmp_path.rglob("*.json")
    kept.write_text("cut off {")
    with pytest.raises(KeyError, match="asked"):
        model_from_config("mine", config, where="here")


@pytest.mark.cases("config", "seq_len", "expected")
def test_a_window_that_samples_do_not_fit_in_is_not_split(config, seq_len, expected):
    assert is_split_by_ulysses(config, seq_len) is expected
