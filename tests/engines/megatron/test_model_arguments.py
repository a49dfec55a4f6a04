"""Arguments of mixtures: what stands for a config's keys, and what Megatron would train otherwise.

That the others are Hugging Face's models is trained: see test_parity.py.
"""

from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.engines.megatron.model_arguments import (
    balance_advice,
    check_release,
    model_arguments,
    pattern_of,
    pattern_text,
)
from autotune.job.model import Model, load_model, model_from_config
from tests.engines.megatron.trained import MIXTURES

Q, D, G = MIXTURES.values()
THETA = {"rope_theta": 10_000.0}
YARN = {**THETA, "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}


def model(config: dict[str, Any], **changes: Any) -> Model:
    return model_from_config("m", {**config, **changes}, where="test")


@pytest.mark.cases("name", "changes", "why")
def test_what_megatron_would_train_otherwise_is_refused(name, changes, why):
    with pytest.raises(JobError, match=why):
        model_arguments(model(MIXTURES[name], **changes), 32)


@pytest.mark.cases("name", "why")
def test_a_family_that_is_not_known_is_refused_by_name(name: str, why: str) -> None:
    with pytest.raises(JobError, match=why):
        model_arguments(load_model(name), 32)


def test_a_window_has_one_token_less_than_hugging_faces() -> None:
    found = model_arguments(model(G, sliding_window=16), 32)
    assert (found["window_size"], found["window_attn_skip_freq"]) == ("15,0", 2)
    kinds = ["full_attention", *["sliding_attention"] * 3]
    found = model_arguments(model(G, layer_types=kinds), 32)
    assert found["window_attn_skip_freq"] == "([0]*1+[1]*3)"


def test_gpt_oss_needs_a_release_that_can_be_it() -> None:
    scaled = model(G, rope_parameters={**YARN, "truncate": False})
    with pytest.raises(JobError, match="sinks"):
        check_release(scaled, "0.14.1", by_script=False)
    with pytest.raises(JobError, match="YaRN"):
        check_release(scaled, "0.16", by_script=True)
    check_release(scaled, "0.16", by_script=False)
    check_release(scaled, "0.19", by_script=True)
    check_release(model(G), "0.16", by_script=True)


def test_yarn_that_no_flag_says_is_for_the_own_script() -> None:
    usual = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
    plain, steep = (model(D, rope_parameters={**usual, "beta_fast": b}) for b in (32.0, 1.0))
    assert "beta_fast" not in model_arguments(plain, 32)
    assert model_arguments(steep, 32)["beta_fast"] == 1.0
    check_release(plain, "0.16", by_script=True)
    with pytest.raises(JobError, match="beta_fast"):
        check_release(steep, "0.16", by_script=True)


def test_the_balance_of_experts_is_what_a_training_sets() -> None:
    assert balance_advice(model(Q, router_aux_loss_coef=0.01)).endswith(
        "aux_loss --moe-aux-loss-coeff 0.01"
    )
    assert "seq_aux_loss" in balance_advice(model(D))
    assert balance_advice(load_model("tiny-gpt2")) == ""
    assert model_arguments(model(D), 32)["moe_aux_loss_coeff"] == 0.0


@pytest.mark.cases("pattern", "text")
def test_patterns_of_layers_are_read_as_they_are_written(pattern: list[int], text: str) -> None:
    assert pattern_text(pattern) == text
    assert pattern_of(text) == pattern
