"""What a job may ask reduced trials to run, and what they run then."""

import pytest

from autotune.base.errors import JobError
from autotune.contract import ContractError, Fidelity, TrialSpec, to_dict
from autotune.job.job import make_job
from autotune.job.model import Model, load_model, model_from_config, with_layers
from autotune.space.candidate import Candidate
from tests.search.scripted import make
from tests.trials import spec as spec_of


@pytest.mark.parametrize(
    ("written", "asked"),
    [
        ("layers=2", [Fidelity(layers=2)]),
        ("layers=3, world=1", [Fidelity(layers=3, world=1)]),
        ({"world": 1}, [Fidelity(world=1)]),
        ({"layers": 1}, [Fidelity(layers=1)]),
        ("layers=1,world=smallest", [Fidelity(layers=1, world=n) for n in (1, 2, 4)]),
    ],
)
def test_a_job_says_what_is_less(written: object, asked: list[Fidelity]) -> None:
    found = make(fidelity=written, world=8 if "smallest" in str(written) else 2).fidelity
    assert found is not None
    assert list(found.fidelities) == asked
    assert make().fidelity is None


@pytest.mark.cases("written", "words")
def test_what_is_not_less_is_refused(written: object, words: str) -> None:
    with pytest.raises(JobError, match=words):
        make(fidelity=written)


@pytest.mark.parametrize(
    "changes", [{"sampler": "tpe"}, {"objective": "pareto"}, {"objective": "peak_memory"}]
)
def test_what_does_not_go_by_the_forecast_is_not_taught(changes: dict[str, str]) -> None:
    with pytest.raises(JobError, match="reduced trials only correct predictions"):
        make(fidelity="layers=2", **changes)


def test_a_factory_decides_on_its_layers_itself() -> None:
    model = load_model("tiny-gpt2")
    factory = Model(
        name="theirs",
        shape=model.shape,
        source={"factory": "package.module:theirs", "vocab": 64},
        supports_tp=False,
        supports_recompute=False,
    )
    with pytest.raises(JobError, match="decides itself how many layers"):
        with_layers(factory, 2)


@pytest.mark.parametrize("fidelity", [{"layers": 1.5}, {"depth": 1}])
def test_a_damaged_fidelity_is_said_to_be_one(fidelity: dict[str, object]) -> None:
    data = to_dict(spec_of())
    with pytest.raises(ContractError, match="TrialSpec"):
        TrialSpec.from_dict({**data, "identity": {**data["identity"], "fidelity": fidelity}})


def test_the_study_is_the_same_with_reduced_trials_and_without() -> None:
    named = {"model": "tiny-gpt2", "seq_len": 64, "global_batch": 16, "world": 2}
    plain = make_job(named, where="test")
    assert make_job({**named, "fidelity": "layers=2"}, where="test").study == plain.study


@pytest.mark.parametrize(
    "name", ["tiny-gpt2", "tiny-llama", "tiny-mixtral", "tiny-qwen3-moe", "tiny-gpt-oss"]
)
def test_fewer_layers_change_nothing_else(name: str) -> None:
    whole = load_model(name)
    cut = with_layers(whole, 1)
    assert cut.shape.n_layers == 1
    assert cut.name == whole.name
    per_layer = (whole.shape.n_params - cut.shape.n_params) / (whole.shape.n_layers - 1)
    assert per_layer == int(per_layer) > 0
    same = ("hidden", "ffn_hidden", "n_heads", "vocab", "tied_embeddings", "n_experts")
    assert [getattr(cut.shape, key) for key in same] == [getattr(whole.shape, key) for key in same]
    assert len(cut.source["config"]) == len(whole.source["config"]), "no key is added"


def test_a_word_for_every_layer_is_cut_with_them() -> None:
    config = {
        **load_model("tiny-llama").source["config"],
        "layer_types": ["full_attention", "sliding_attention"] * 2,
        "architectures": ["LlamaForCausalLM"],
    }
    cut = with_layers(model_from_config("mixed", config, where="test"), 3).source["config"]
    assert cut["layer_types"] == ["full_attention", "sliding_attention", "full_attention"]
    assert cut["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.cases("name", "layers", "dense", "windowed")
def test_fewer_layers_of_a_mixture_keep_some_of_each_kind(name, layers, dense, windowed) -> None:
    whole = load_model(name).shape
    cut = with_layers(load_model(name), layers).shape
    assert (cut.n_layers, cut.n_dense_layers, cut.n_windowed_layers) == (layers, dense, windowed)
    assert cut.n_expert_layers > 0
    assert cut.n_mtp_layers == whole.n_mtp_layers
    assert cut.latent_kv_rank == whole.latent_kv_rank


def test_layers_that_are_listed_by_index_are_cut_with_them() -> None:
    config = {**load_model("tiny-qwen3-moe").source["config"], "mlp_only_layers": [0, 3]}
    whole = model_from_config("mixed", config, where="test")
    assert (whole.shape.n_dense_layers, whole.shape.dense_layers) == (2, (0, 3))
    cut = with_layers(whole, 2)
    assert cut.source["config"]["mlp_only_layers"] == [0]
    assert (cut.shape.n_dense_layers, cut.shape.dense_layers) == (1, ())
    with pytest.raises(JobError, match="with 1 layer it has no experts"):
        with_layers(whole, 1)


@pytest.mark.parametrize("kinds", [None, ["dense", "dense", "sparse", "sparse"]])
@pytest.mark.parametrize(("n_layers", "n_dense"), [(1, 0), (2, 1)])
def test_dense_layers_that_are_listed_by_kind_make_room(kinds, n_layers, n_dense) -> None:
    config = {**load_model("tiny-deepseek-v3").source["config"], "model_type": "glm4_moe_lite"}
    config |= {"num_hidden_layers": 4, "mlp_layer_types": kinds}
    cut = with_layers(model_from_config("flash", config, where="test"), n_layers).shape
    assert (cut.n_dense_layers, cut.n_expert_layers) == (n_dense, n_layers - n_dense)


WHOLE = Candidate.of({"zero.stage": 1, "micro_batch": 2, "tp": 2}, world=8, global_batch=64)


def test_fewer_devices_keep_what_a_device_does() -> None:
    form = WHOLE.reduced(Fidelity(world=4))
    assert (form.world, form.dp, form.tp) == (4, 2, 2)
    assert (form.micro_batch, form.grad_accum) == (WHOLE.micro_batch, WHOLE.grad_accum)
    assert form.global_batch == 32


def test_a_reduced_form_is_never_taken_for_the_candidate() -> None:
    forms = [WHOLE.reduced(f) for f in (Fidelity(layers=4), Fidelity(layers=2), Fidelity(world=4))]
    assert len({WHOLE.hash, *(form.hash for form in forms)}) == 4
    assert forms[0].values == WHOLE.values
    assert forms[0].global_batch == WHOLE.global_batch
