"""What is split, spread or computed in chunks trains what the whole model trains, on real ranks.

Compared with plain SGD: AdamW and clipping hide gradients that are too large by a factor. Losses
and norms of the whole gradient, step for step, from the same weights and samples.
"""

import json
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

STAGES = (0, 1, 2, 3)
CLIPPED = 0.1
"""Below every norm that is seen here. Norms are those before it, and losses follow after it."""
SAMPLES = (*((stage, CLIPPED) for stage in STAGES), (3, 0.0))
"""Stage and clipping at which ranks share samples."""
EXPERTS = ((0, 0.0), *((stage, CLIPPED) for stage in STAGES[1:]))
"""And at which they spread experts: at stage 0 each rank would clip by another norm
(`experts.clipping_at_stage_0`)."""
WHOLE = {"mixtral": f"experts 1 {CLIPPED} 1", "all of it": "llama 3 0.0 1"}
"""Cases of two ranks with whole samples that another test trains already."""
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
    "qwen3_moe": (1, 2, 3),
    "deepseek_v3": (1, 2, 3),
    "qwen2_moe": (1, 3),
    "deepseek_v2": (1, 3),
    "glm4_moe": (1, 3),
}
"""Mixture -> stages at which two ranks spread it."""
SPREAD_TOO = {"olmoe": (1, 3), "qwen3_5_moe_text": (1, 3), "minimax_m3_vl_text": (1, 3)}
"""Those whose shapes only building them can tell."""


CHUNKED = (1, 3)
"""Stages at which MLPs are computed in chunks."""
TENSORS: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("llama", False, {"tp__overlap_comm": True, "mlp_chunk_tokens": 5}),
    ("llama", True, {"tp__head": "split", "loss_chunk_tokens": 3}),
    ("tied", True, {"loss_chunk_tokens": 3}),
    ("tied", False, {"tp__head": "gathered"}),
)
"""Model, whether its head is split, and knobs of two ranks that split its layers."""


def stages_of(spread: dict[str, tuple[int, ...]]) -> list[tuple[str, int]]:
    return [(name, stage) for name, stages in spread.items() for stage in stages]


def make_case(
    job: Job,
    stage: int,
    *,
    clipping: float = 0.0,
    zero: dict[str, Any] | None = None,
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
    return {"spec": to_dict(spec), "ds_config": ds_config, "norms": True}


def job_of(folder: Path, name: str) -> Job:
    model = folder / name.replace(" ", "-") / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(MODELS.get(name) or TINY | {"model_type": name} | MIXTURES[name]))
    return tiny_job(folder, model=str(model), precision="fp32", global_batch=4, optimizer=SGD)


def make_cases(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    jobs = {name: job_of(folder, name) for name in MODELS}
    for stage, clipping in SAMPLES:
        for sp in (1, 2):
            case = make_case(jobs["llama"], stage, clipping=clipping, sp=sp)
            found[f"llama {stage} {clipping} {sp}"] = case
    for name, job in jobs.items():
        if name != "llama":
            found |= {f"{name} {sp}": make_case(job, 1, sp=sp) for sp in (1, 2)}
    mixtures = {name: job_of(folder, name) for name in ("mixtral", *SPREAD)}
    for stage, clipping in EXPERTS:
        for ep in (1, 2):
            case = make_case(mixtures["mixtral"], stage, clipping=clipping, ep=ep)
            found[f"experts {stage} {clipping} {ep}"] = case
    found |= cases_of_mixtures(mixtures, SPREAD)
    found["fused products"] = make_case(
        mixtures["qwen3_moe"], 1, clipping=CLIPPED, ep=2, ep__gate_up="fused"
    )
    whole = {"reduce_scatter": False}
    return found | {
        "not scattered by 1": make_case(jobs["llama"], 3, zero=whole, sp=2) | {"scale": 1},
        "not scattered by 2": make_case(jobs["llama"], 3, zero=whole, sp=2) | {"scale": 2},
        "mixtral 2": make_case(mixtures["mixtral"], 1, clipping=CLIPPED, sp=2),
        "all of it 2": make_case(
            jobs["llama"], 3, sp=2, recompute="full", loss_chunk_tokens=3, attention="sdpa"
        ),
        **{
            f"chunks {stage}": make_case(
                jobs["llama"],
                stage,
                clipping=CLIPPED,
                mlp_chunk_tokens=5,
                recompute="full",
                offload__activations="cpu",
            )
            for stage in CHUNKED
        },
        "chunks shared": make_case(jobs["llama"], 3, sp=2, mlp_chunk_tokens=3),
        # AutoTP leaves groups behind: last.
        **{
            f"tensors {number}": make_case(jobs[name], 3, tp=2, **knobs)
            for number, (name, _, knobs) in enumerate(TENSORS)
        },
        **{
            f"{name} split": make_case(mixtures[name], 3, clipping=CLIPPED, tp=2, ep=2)
            for name in sorted(SPLIT_BESIDE_AUTOEP)
        },
    }


def cases_of_mixtures(
    jobs: dict[str, Job], spread: dict[str, tuple[int, ...]]
) -> dict[str, dict[str, Any]]:
    found = {}
    for name in spread:
        found[f"{name} whole"] = make_case(jobs[name], 1, clipping=CLIPPED)
    for name, stage in stages_of(spread):
        found[f"{name} {stage}"] = make_case(jobs[name], stage, clipping=CLIPPED, ep=2)
    return found


def run_cases(cases: dict[str, dict[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """What each case did, in one set of two ranks."""
    driver = Path(__file__).with_name("split_driver.py")
    found = train_cases(driver, list(cases.values()), folder, forks=True, timeout_s=300)
    return dict(zip(cases, found, strict=True))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("split")
    return run_cases(make_cases(folder), folder)


def assert_same(whole: dict[str, Any], split: dict[str, Any]) -> None:
    for found in (whole, split):
        assert "error" not in found, found["traceback"]
        assert found["differences"] == []
    assert min(whole["norms"]) > CLIPPED, "clipping has nothing to clip"
    assert split["losses"] == pytest.approx(whole["losses"], rel=1e-5)
    assert split["norms"] == pytest.approx(whole["norms"], rel=1e-4)


@pytest.mark.parametrize(("stage", "clipping"), SAMPLES)
def test_two_ranks_share_samples_at_every_stage(
    results: dict[str, dict[str, Any]], stage: int, clipping: float
) -> None:
    whole, split = (results[f"llama {stage} {clipping} {sp}"] for sp in (1, 2))
    assert (whole["read_back"]["dp"], whole["read_back"]["sp"]) == (2, 1)
    assert (split["read_back"]["dp"], split["read_back"]["sp"]) == (1, 2)
    assert_same(whole, split)


@pytest.mark.parametrize(("stage", "clipping"), EXPERTS)
def test_two_ranks_spread_experts_at_every_stage(
    results: dict[str, dict[str, Any]], stage: int, clipping: float
) -> None:
    """And a mixture of experts trains at every stage, whose ranks send their tokens elsewhere."""
    whole, spread = (results[f"experts {stage} {clipping} {ep}"] for ep in (1, 2))
    assert (whole["read_back"]["ep"], spread["read_back"]["ep"]) == (1, 2)
    assert whole["read_back"]["n_params"] > spread["read_back"]["n_params"]
    assert_same(whole, spread)


@pytest.mark.parametrize(("name", "stage"), stages_of(SPREAD))
def test_two_ranks_spread_the_experts_of(
    results: dict[str, dict[str, Any]], name: str, stage: int
) -> None:
    assert_spread(results, name, stage)


@pytest.mark.thorough
def test_two_ranks_spread_the_experts_of_rarer_models(tmp_path: Path) -> None:
    jobs = {name: job_of(tmp_path, name) for name in SPREAD_TOO}
    results = run_cases(cases_of_mixtures(jobs, SPREAD_TOO), tmp_path)
    for name, stage in stages_of(SPREAD_TOO):
        assert_spread(results, name, stage)


def assert_spread(results: dict[str, dict[str, Any]], name: str, stage: int) -> None:
    whole, spread = results[f"{name} whole"], results[f"{name} {stage}"]
    assert (whole["read_back"]["ep"], spread["read_back"]["ep"]) == (1, 2)
    assert_same(whole, spread)


def test_two_ranks_compute_gate_and_up_at_once(results: dict[str, dict[str, Any]]) -> None:
    assert_same(results["qwen3_moe whole"], results["fused products"])


@pytest.mark.parametrize("name", sorted(SPLIT_BESIDE_AUTOEP))
def test_two_ranks_split_what_is_beside_spread_experts(
    results: dict[str, dict[str, Any]], name: str
) -> None:
    split = results[f"{name} split"]
    whole = results[WHOLE.get(name, f"{name} whole")]
    assert (split["read_back"]["tp"], split["read_back"]["ep"]) == (2, 2)
    assert_same(whole, split)


@pytest.mark.parametrize("name", [*list(MODELS)[1:], *WHOLE])
def test_two_ranks_share_samples_of(results: dict[str, dict[str, Any]], name: str) -> None:
    assert_same(results[WHOLE.get(name, f"{name} 1")], results[f"{name} 2"])


@pytest.mark.parametrize("scale", [1, 2])
def test_no_scale_is_right_where_stage_3_does_not_scatter(
    results: dict[str, dict[str, Any]], scale: int
) -> None:
    """Why sequence.not_scattered refuses it: small and large parameters are averaged otherwise."""
    whole, split = results["llama 3 0.0 1"], results[f"not scattered by {scale}"]
    assert split["differences"] == []
    assert split["losses"][0] == pytest.approx(whole["losses"][0], rel=1e-5)
    assert split["norms"] != pytest.approx(whole["norms"], rel=0.1)


@pytest.mark.parametrize("stage", CHUNKED)
def test_mlps_are_computed_in_chunks(results: dict[str, dict[str, Any]], stage: int) -> None:
    chunked = results[f"chunks {stage}"]
    assert chunked["read_back"]["mlp_chunk_tokens"] == 5
    assert chunked["read_back"]["offload_activations"] == "cpu"
    assert_same(results[f"llama {stage} {CLIPPED} 1"], chunked)


def test_a_rank_computes_its_piece_in_chunks(results: dict[str, dict[str, Any]]) -> None:
    assert_same(results["llama 3 0.0 1"], results["chunks shared"])


@pytest.mark.parametrize("number", range(len(TENSORS)))
def test_two_ranks_split_layers_with_a_head_and_a_loss_of(
    results: dict[str, dict[str, Any]], number: int
) -> None:
    name, is_split, _ = TENSORS[number]
    split = results[f"tensors {number}"]
    assert split["read_back"]["head_is_split"] == is_split
    assert_same(results["llama 3 0.0 1" if name == "llama" else "tied 1"], split)
