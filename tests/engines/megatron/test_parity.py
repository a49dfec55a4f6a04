"""Mixtures under Megatron's arguments compute what Hugging Face's models compute.

Weights are copied; a loss and a gradient norm have to agree. What would train as another model is
refused before: see test_model_arguments.py.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import TrialSpec, settings_of
from tests.engines.megatron.trained import MIXTURES, REPOSITORY, case_of, job_for, layouts_of

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(find_spec("megatron") is None, reason="megatron-core is not installed"),
]
DRIVER = Path(__file__).with_name("parity_driver.py")
WITHIN = 1e-5

DEEPSEEK = {**MIXTURES["deepseek-v3"], "num_nextn_predict_layers": 0, "initializer_range": 0.1}
QWEN = {**MIXTURES["qwen3-moe"], "initializer_range": 0.1}
OSS = {**MIXTURES["gpt-oss"], "initializer_range": 0.1}
THETA = {"rope_theta": 10_000.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_moe": QWEN,
    "qwen3_moe, weights as they are": {**QWEN, "norm_topk_prob": False},
    "qwen3_moe, a layer without experts": {**QWEN, "mlp_only_layers": [1]},
    "qwen2_moe, a gated shared expert": {
        **{key: value for key, value in QWEN.items() if key != "head_dim"},
        "model_type": "qwen2_moe",
        "norm_topk_prob": False,
        "shared_expert_intermediate_size": 48,
    },
    "deepseek_v3": DEEPSEEK,
    "deepseek_v3, groups of four": {
        **DEEPSEEK,
        **{"n_routed_experts": 16, "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2},
        "n_shared_experts": 2,
    },
    "deepseek_v3, no low rank of queries": {**DEEPSEEK, "q_lora_rank": None, "n_group": 1},
    "deepseek_v3, yarn": {
        **DEEPSEEK,
        "rope_parameters": {
            **YARN,
            "original_max_position_embeddings": 4096,
            **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    },
    "deepseek_v2": {
        **{k: v for k, v in DEEPSEEK.items() if k not in ("norm_topk_prob",)},
        **{"model_type": "deepseek_v2", "topk_method": "greedy", "q_lora_rank": None},
    },
    "deepseek_v2, yarn": {
        **{k: v for k, v in DEEPSEEK.items() if k not in ("norm_topk_prob",)},
        **{"model_type": "deepseek_v2", "topk_method": "greedy", "q_lora_rank": None},
        "rope_parameters": {
            **YARN,
            **{"factor": 40.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
    },
    "deepseek_v3, Kimi-K2's yarn": {
        **DEEPSEEK,
        "rope_parameters": {
            **YARN,
            **{"factor": 32.0, "original_max_position_embeddings": 4096},
            **{"beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
    },
    "glm4_moe": {
        **{k: v for k, v in DEEPSEEK.items() if "lora" not in k and not k.startswith("qk_")},
        **{"model_type": "glm4_moe", "num_key_value_heads": 2, "head_dim": 16},
        **{"attention_bias": True, "use_qk_norm": True, "n_group": 1, "topk_group": 1},
        "rope_parameters": {**THETA, "rope_type": "default", "partial_rotary_factor": 0.5},
    },
    "gpt_oss": OSS,
    "gpt_oss, yarn": {
        **OSS,
        "rope_parameters": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
    },
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("parity")
    cases = [_case(config, folder / str(n)) for n, config in enumerate(MODELS.values())]
    asked, answered = folder / "cases.json", folder / "answers.json"
    asked.write_text(json.dumps(cases))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(asked), str(answered)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(MODELS, json.loads(answered.read_text()), strict=True))


def _case(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    engine, candidate = layouts_of(job_for(folder, config, world=1), micro_batch=1)[0]
    case = case_of(engine, candidate)
    spec = TrialSpec.from_dict(case["spec"])
    settings = settings_of(spec.workload, spec.layout)
    return {"config": config, "arguments": case["arguments"], "settings": settings}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_hugging_faces_model(answers: dict[str, dict[str, Any]], name: str) -> None:
    found = answers[name]
    assert not found["unset"]
    assert found["ours"] == pytest.approx(found["theirs"], rel=WITHIN)
