"""Chunked loss and MLPs are the model's own, and so are gradients, for every family listed."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.job.model_families import FAMILIES, has_plain_loss
from autotune.trial.scripts.train import IGNORED, apply_recompute, chunk_loss, chunk_mlps
from tests.cases import data_beside

DATA = data_beside(__file__)

SIZES = DATA["SIZES"]
EXPERTS = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
LATENT = {
    **{"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4},
    **{"v_head_dim": 8, "num_key_value_heads": 4},
}
MORE = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "resid_pdrop": 0, "embd_pdrop": 0}
    | {"attn_pdrop": 0},
    "mixtral": {"num_local_experts": 4},
    "qwen3": {"head_dim": 8},
    "qwen2_moe": {"num_experts": 4, **EXPERTS, "shared_expert_intermediate_size": 16},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, **EXPERTS},
    "deepseek_v2": {"n_routed_experts": 4, **EXPERTS, **LATENT},
    "deepseek_v3": {"n_routed_experts": 4, **EXPERTS, **LATENT, "first_k_dense_replace": 1}
    | {"n_group": 2, "topk_group": 1},
    "glm4_moe": {"n_routed_experts": 4, **EXPERTS},
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, **EXPERTS, "n_shared_experts": 1, "sliding_window": None},
    "glm4_moe_lite": {"n_routed_experts": 4, **EXPERTS, **LATENT},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "ministral3": {"head_dim": 8},
    "seed_oss": {"head_dim": 8, "attention_dropout": 0, "residual_dropout": 0},
    "gemma3_text": {"head_dim": 8},
    "olmo3": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8},
    "gemma": {"head_dim": 8},
    "hunyuan_v1_dense": {"head_dim": 8},
    "starcoder2": {"residual_dropout": 0, "embedding_dropout": 0, "attention_dropout": 0},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 16},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "phimoe": {"num_local_experts": 4},
    "solar_open": {"n_routed_experts": 4, **EXPERTS},
    "exaone_moe": {"num_experts": 4, **EXPERTS},
    "afmoe": {"num_experts": 4, **EXPERTS, "num_dense_layers": 1, "head_dim": 8},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "gptj": {"n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4, "resid_pdrop": 0}
    | {"embd_pdrop": 0, "attn_pdrop": 0},
    "phi": {"resid_pdrop": 0, "embd_pdrop": 0},
    "minimax_m2": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2},
}


def make(family):
    config = AutoConfig.for_model(family, **SIZES | MORE.get(family, {}))
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).train()


def loss_and_gradients(model, tokens, labels):
    model.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), {n: gradient.clone() for n, gradient in found.items()}


@pytest.mark.parametrize("family", [name for name, it in FAMILIES.items() if it.plain_loss])
@pytest.mark.parametrize("chunk", [1, 7, 24, 1000])
def test_the_loss_and_its_gradients_are_the_models_own(family, chunk):
    model = make(family)
    tokens = torch.randint(0, 96, (2, 12))
    labels = tokens.clone()
    labels[0, :3] = IGNORED
    whole, gradients = loss_and_gradients(model, tokens, labels)
    chunk_loss(model, chunk)
    chunked, others = loss_and_gradients(model, tokens, labels)
    assert chunked == pytest.approx(whole, abs=1e-6)
    assert others.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, atol=1e-6, rtol=1e-4)


def test_the_logits_of_all_tokens_never_exist_at_once():
    model = make("llama")
    seen = []
    model.get_output_embeddings().register_forward_hook(
        lambda _module, _inputs, logits: seen.append(logits.shape)
    )
    chunk_loss(model, 10)
    tokens = torch.randint(0, 96, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()
    # Three chunks, each made twice: the last holds what is left of 24 tokens.
    assert sorted(seen) == [(4, 96)] * 2 + [(10, 96)] * 4


@pytest.mark.cases("config")
def test_a_model_that_adds_to_its_loss_is_not_on_the_list(config):
    assert not has_plain_loss(config)


@pytest.mark.parametrize("family", [name for name, it in FAMILIES.items() if it.plain_mlps])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_mlps_in_chunks_compute_what_they_do_at_once(family, recompute):
    model = make(family)
    tokens = torch.randint(0, 96, (2, 12))
    whole, gradients = loss_and_gradients(model, tokens, tokens)
    apply_recompute(model, recompute)
    # More chunks than tokens: a shorter micro-batch has as many as the longest.
    chunk_mlps(model, 5, most_tokens=150)
    assert sum(hasattr(m, "chunk_tokens") for m in model.modules()) == 2
    chunked, others = loss_and_gradients(model, tokens, tokens)
    assert chunked == pytest.approx(whole, abs=1e-6)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, atol=1e-6, rtol=1e-4)


def test_no_mlp_sees_more_tokens_than_a_chunk_has():
    model = make("llama")
    seen = []
    model.model.layers[0].mlp.up_proj.register_forward_hook(
        lambda _module, _inputs, result: seen.append(result.shape)
    )
    chunk_mlps(model, 10, most_tokens=24)
    tokens = torch.randint(0, 96, (2, 12))
    model(input_ids=tokens, labels=tokens).loss.backward()
    assert seen == [(8, 64)] * 6  # three, each made twice
