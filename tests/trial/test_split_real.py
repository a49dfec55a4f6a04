"""What is split, spread or computed in chunks trains what the whole model trains, on real ranks.

Compared with plain SGD: AdamW and clipping hide gradients that are too large by a factor. Losses
and norms of the whole gradient, step for step, from the same weights and samples.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import to_dict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.mixtures import SPLIT_BESIDE_AUTOEP
from autotune.job.job import Job
from autotune.search.trial_spec import Role, Run, make_spec
from tests.driven_ranks import train_cases
from tests.jobs import CPU, TINY, canonical_candidate, tiny_job
from tests.trials import changed

pytestmark = pytest.mark.real

CLIPPED = 0.1
"""Below every norm that is seen here. Norms are those before it, and losses follow after it."""
SAMPLES = ((0, CLIPPED), (1, CLIPPED), (2, CLIPPED), (3, CLIPPED), (3, 0.0))
"""Stage and clipping at which ranks share samples."""
EXPERTS = ((0, 0.0), (1, CLIPPED), (2, CLIPPED), (3, CLIPPED))
"""And at which they spread experts: at stage 0 each rank would clip by another norm
(`experts.clipping_at_stage_0`)."""
SGD = {"type": "SGD", "params": {"lr": 0.3}}
SMALL = {"reduce_bucket_size": 10_000, "stage3__prefetch_bucket_size": 10_000}
"""Buckets of the default size reserve gigabytes."""
MODELS: dict[str, dict[str, Any]] = {
    "llama": TINY | {"num_key_value_heads": 2},
    "one key-value head": TINY | {"num_key_value_heads": 1},
    "mistral": TINY | {"model_type": "mistral", "sliding_window": None},
    "qwen2": TINY | {"model_type": "qwen2"},
    "qwen3": TINY | {"model_type": "qwen3", "head_dim": 32},
    "olmo2": TINY | {"model_type": "olmo2"},
    "tied": TINY | {"tie_word_embeddings": True},
}
_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED = {**_EXPERTS, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1}
_LATENT = _ROUTED | {
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_group": 4,
    "topk_group": 2,
}
_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_SHARED = {"shared_expert_intermediate_size": 32}
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": _EXPERTS | {"num_key_value_heads": 2, "head_dim": 32, "mlp_only_layers": [0]},
    "qwen2_moe": _EXPERTS | _SHARED,
    "deepseek_v2": _LATENT | {"topk_method": "group_limited_greedy", "head_dim": 8},
    "deepseek_v3": _LATENT | {"routed_scaling_factor": 2.5},
    "glm4_moe": _ROUTED
    | {"head_dim": 16, "n_group": 1, "topk_group": 1}
    | {"pad_token_id": 1},  # a row of padding, which stage 3 has not where it is drawn
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 2},
    "qwen3_5_moe_text": _EXPERTS | _SHARED | _LINEAR | {"head_dim": 16},
    "minimax_m3_vl_text": {
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "dense_intermediate_size": 64,
        "shared_intermediate_size": 32,
        "head_dim": 16,
    },
}
"""What each differs in from the tiny Llama, by the model_type of transformers."""
SPREAD = {
    "qwen3_moe": (2, 1, 3),
    "deepseek_v3": (3, 1, 2),
    "qwen2_moe": (1, 3),
    "deepseek_v2": (3, 1),
    "glm4_moe": (3, 1),
    # Those whose shapes only building them can tell.
    "olmoe": (1, 3),
    "qwen3_5_moe_text": (1, 3),
    "minimax_m3_vl_text": (1, 3),
}
"""Mixture -> stages at which two ranks spread it; the first stands for all in every run."""
TENSORS: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("llama", False, {"tp__overlap_comm": True, "mlp_chunk_tokens": 5}),
    ("llama", True, {"tp__head": "split", "loss_chunk_tokens": 3}),
    ("tied", True, {"loss_chunk_tokens": 3}),
    ("tied", False, {"tp__head": "gathered"}),
)
"""Model, whether its head is split, and knobs of two ranks that split its layers."""


Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {
    **{
        f"llama {stage} {clipping} {sp}": (
            "llama",
            {"stage": stage, "clipping": clipping, "sp": sp},
        )
        for stage, clipping in SAMPLES
        for sp in (1, 2)
    },
    **{
        f"{name} {sp}": (name, {"stage": 1, "sp": sp})
        for name in list(MODELS)[1:]
        for sp in (1, 2)
    },
    **{
        f"experts {stage} {clipping} {ep}": (
            "mixtral",
            {"stage": stage, "clipping": clipping, "ep": ep},
        )
        for stage, clipping in EXPERTS
        for ep in (1, 2)
    },
    **{f"{name} whole": (name, {"stage": 1, "clipping": CLIPPED}) for name in SPREAD},
    **{
        f"{name} spread {stage}": (name, {"stage": stage, "clipping": CLIPPED, "ep": 2})
        for name, stages in SPREAD.items()
        for stage in stages
    },
    "fused products": (
        "qwen3_moe",
        {"stage": 1, "clipping": CLIPPED, "ep": 2, "ep__gate_up": "fused"},
    ),
    **{
        f"not scattered by {scale}": (
            "llama",
            {"stage": 3, "zero": {"reduce_scatter": False}, "sp": 2, "scale": scale},
        )
        for scale in (1, 2)
    },
    "mixtral 2": ("mixtral", {"stage": 1, "clipping": CLIPPED, "sp": 2}),
    "all of it 2": (
        "llama",
        {"stage": 3, "sp": 2, "recompute": "full", "loss_chunk_tokens": 3, "attention": "sdpa"},
    ),
    **{
        f"chunks {stage}": (
            "llama",
            {
                "stage": stage,
                "clipping": clipping,
                "mlp_chunk_tokens": 5,
                "recompute": "full",
                "offload__activations": "cpu",
            },
        )
        for stage, clipping in ((1, CLIPPED), (3, 0.0))
    },
    "chunks shared": ("llama", {"stage": 3, "sp": 2, "mlp_chunk_tokens": 3}),
    # AutoTP leaves groups behind: last.
    **{
        f"tensors {number}": (name, {"stage": 3, "tp": 2, **knobs})
        for number, (name, _, knobs) in enumerate(TENSORS)
    },
    **{
        f"{name} split": (name, {"stage": 3, "clipping": CLIPPED, "tp": 2, "ep": 2})
        for name in sorted(SPLIT_BESIDE_AUTOEP)
    },
}
"""Model and settings of every case, in the order in which they are trained."""


@dataclass(frozen=True)
class Pair:
    """Two cases that have to train alike, and what the live engine of each says of itself."""

    whole: str
    split: str
    whole_says: dict[str, Any] = field(default_factory=dict)
    split_says: dict[str, Any] = field(default_factory=dict)
    is_further: bool = False
    """Whether every run tries like ones, and this one is `thorough`."""


def _spread(whole: str, split: str, *, is_further: bool) -> Pair:
    return Pair(whole, split, {"ep": 1}, {"ep": 2}, is_further=is_further)


PAIRS: dict[str, Pair] = {
    **{
        f"samples at stage {stage}, clipped at {clipping}": Pair(
            *(f"llama {stage} {clipping} {sp}" for sp in (1, 2)),
            {"dp": 2, "sp": 1},
            {"dp": 1, "sp": 2},
            is_further=clipping > 0 and stage in (1, 3),
        )
        for stage, clipping in SAMPLES
    },
    **{
        f"samples of {name}": Pair(
            f"{name} 1", f"{name} 2", is_further=name in ("mistral", "qwen2", "olmo2")
        )
        for name in list(MODELS)[1:]
    },
    "samples of a mixture": Pair(f"experts 1 {CLIPPED} 1", "mixtral 2"),
    "samples with all of it": Pair("llama 3 0.0 1", "all of it 2"),
    **{
        f"experts at stage {stage}": _spread(
            *(f"experts {stage} {clipping} {ep}" for ep in (1, 2)), is_further=stage in (0, 2)
        )
        for stage, clipping in EXPERTS
    },
    **{
        f"experts of {name} at stage {stage}": _spread(
            f"{name} whole",
            f"{name} spread {stage}",
            is_further=stage != stages[0] or name in list(SPREAD)[5:],
        )
        for name, stages in SPREAD.items()
        for stage in stages
    },
    "gate and up at once": Pair("qwen3_moe whole", "fused products"),
    **{
        f"what is beside spread experts of {name}": Pair(
            f"experts 1 {CLIPPED} 1" if name == "mixtral" else f"{name} whole",
            f"{name} split",
            split_says={"tp": 2, "ep": 2},
        )
        for name in sorted(SPLIT_BESIDE_AUTOEP)
    },
    **{
        f"MLPs in chunks at stage {stage}": Pair(
            f"llama {stage} {clipping} 1",
            f"chunks {stage}",
            split_says={"mlp_chunk_tokens": 5, "offload_activations": "cpu"},
            is_further=stage == 1,
        )
        for stage, clipping in ((1, CLIPPED), (3, 0.0))
    },
    "a rank's piece in chunks": Pair("llama 3 0.0 1", "chunks shared"),
    **{
        f"layers, a head and a loss: {name} {knobs}": Pair(
            "llama 3 0.0 1" if name == "llama" else "tied 1",
            f"tensors {number}",
            split_says={"head_is_split": is_split},
        )
        for number, (name, is_split, knobs) in enumerate(TENSORS)
    },
}
"""What two ranks split, spread, share or compute in chunks."""


def make_case(
    job: Job,
    stage: int,
    *,
    clipping: float = 0.0,
    zero: dict[str, Any] | None = None,
    scale: int | None = None,
    **knobs: Any,
) -> dict[str, Any]:
    """A case for the driver; the whole model where no knob splits it."""
    engine = DeepSpeedEngine(job, CPU)
    small = {name: SMALL[name] for name in (list(SMALL) if stage == 3 else list(SMALL)[:1])}
    split = knobs.get("sp", 1)
    candidate = canonical_candidate(
        job, zero__stage=stage, micro_batch=split, **(small if stage else {}), **knobs
    )
    run = Run(candidate=candidate, role=Role.SEARCH)
    spec = make_spec(run, study="split", number=0, job=job, engine=engine, environment=CPU)
    ds_config = {
        **engine.setup(candidate).ds_config,
        "gradient_clipping": clipping,
        "zero_allow_untested_optimizer": True,
    }
    ds_config["zero_optimization"] = {**ds_config["zero_optimization"], **(zero or {})}
    expected = {**spec.engine.expected, "gradient_clipping": clipping, **(zero or {})}
    spec = changed(spec, expected=expected)
    return {"spec": to_dict(spec), "ds_config": ds_config, "norms": True, "scale": scale}


def job_of(folder: Path, name: str) -> Job:
    model = folder / name.replace(" ", "-") / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(MODELS.get(name) or TINY | {"model_type": name} | MIXTURES[name]))
    return tiny_job(folder, model=str(model), precision="fp32", global_batch=4, optimizer=SGD)


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What each case of the tests that were selected did, in one set of two ranks."""
    wanted = {"llama 3 0.0 1", "not scattered by 1", "not scattered by 2"}
    for item in request.session.items:
        if item.module is request.module and "name" in item.callspec.params:
            pair = PAIRS[item.callspec.params["name"]]
            wanted |= {pair.whole, pair.split}
    folder = tmp_path_factory.mktemp("split")
    asked = {name: case for name, case in CASES.items() if name in wanted}
    models = dict.fromkeys(model for model, _ in asked.values())
    jobs = {model: job_of(folder, model) for model in models}
    cases = [make_case(jobs[model], **settings) for model, settings in asked.values()]
    driver = Path(__file__).with_name("split_driver.py")
    found = train_cases(driver, cases, folder, forks=True, timeout_s=400)
    return dict(zip(asked, found, strict=True))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * pair.is_further)
        for name, pair in PAIRS.items()
    ],
)
def test_two_ranks_train_as_the_whole_model_does(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    """A mixture of experts too, at every stage, whose ranks send their tokens elsewhere."""
    pair = PAIRS[name]
    whole, split = results[pair.whole], results[pair.split]
    for found, says in ((whole, pair.whole_says), (split, pair.split_says)):
        assert "error" not in found, found["traceback"]
        assert found["differences"] == []
        assert {key: found["read_back"][key] for key in says} == says
    if pair.split.startswith("experts "):
        assert whole["read_back"]["n_params"] > split["read_back"]["n_params"]
    assert min(whole["norms"]) > CLIPPED, "clipping has nothing to clip"
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert split["norms"] == pytest.approx(whole["norms"], rel=1e-4)


@pytest.mark.parametrize("scale", [1, 2])
def test_no_scale_is_right_where_stage_3_does_not_scatter(
    results: dict[str, dict[str, Any]], scale: int
) -> None:
    """Why sequence.not_scattered refuses it: small and large parameters are averaged otherwise."""
    whole, split = results["llama 3 0.0 1"], results[f"not scattered by {scale}"]
    assert split["differences"] == []
    assert split["losses"][0] == pytest.approx(whole["losses"][0], rel=1e-5)
    assert split["norms"] != pytest.approx(whole["norms"], rel=0.1)
