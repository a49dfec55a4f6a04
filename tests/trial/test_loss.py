"""Chunked loss and MLPs are the model's own, and so are gradients, for every family listed."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from autotune.job.model_families import FAMILIES, has_plain_loss
from autotune.trial.scripts.train import IGNORED, apply_recompute, chunk_loss, chunk_mlps
from tests.cases import data_beside

DATA = data_beside(__file__)

SIZES = DATA["SIZES"]
MORE = DATA["MORE"]
"""Sizes that a family names otherwise, or has besides."""


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
