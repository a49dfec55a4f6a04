"""The pipeline's transformer in one process: it is the Hugging Face model, weight for weight."""

from itertools import pairwise

import pytest

from autotune.engines.deepspeed.knobs.situation import stages
from autotune.job.model import load_model
from autotune.job.published import find_presets
from autotune.trial.transformer_shape import FAMILIES, refusal, shape_of
from tests.cases import data_beside

DATA = data_beside(__file__)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from deepspeed.pipe import PipelineModule  # noqa: E402  they need torch
from deepspeed.runtime.utils import partition_balanced  # noqa: E402

from autotune.trial.scripts.transformer import (  # noqa: E402
    Build,
    Pipeline,
    Shape,
    layer_sizes,
    layer_specs,
    next_token_loss,
)
from tests.pipelines import Whole  # noqa: E402

TOKENS = 12
ROTARY, CONFIGS = DATA["ROTARY"], DATA["CONFIGS"]

LAYER = DATA["LAYER"]
"""Hugging Face's names within a layer -> ours."""


def their_model(config):
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config)
    )
    with torch.no_grad():  # zeros and ones hide what they multiply
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def copied(model, reference):
    """Give our model the weights of theirs."""
    embedding, *positions = [layer for layer in model.layers.values() if hasattr(layer, "weight")]
    inner = reference.base_model
    blocks = [layer for layer in model.layers.values() if hasattr(layer, "attention")]
    norm = next(layer.norm for layer in model.layers.values() if hasattr(layer, "norm"))
    pairs = [(embedding.weight, reference.get_input_embeddings().weight)]
    pairs += [(table.weight, inner.wpe.weight) for table in positions]
    their_norm = inner.ln_f if positions else inner.norm
    pairs += zip(norm.parameters(), their_norm.parameters(), strict=True)
    for ours, block in zip(blocks, inner.h if positions else inner.layers, strict=True):
        for name, weight in block.named_parameters():
            layer, _, kind = name.rpartition(".")
            weight = weight.t() if positions and weight.ndim == 2 else weight
            if layer == "attn.c_attn":
                whole = dict(ours.attention.named_parameters())
                thirds = weight.chunk(3)
                pairs += [(whole[f"{n}.{kind}"], w) for n, w in zip("qkv", thirds, strict=True)]
            else:
                pairs.append((dict(ours.named_parameters())[f"{LAYER[layer]}.{kind}"], weight))
    head = [layer.out.weight for layer in model.layers.values() if hasattr(layer, "out")]
    pairs += [(weight, reference.lm_head.weight) for weight in head]
    with torch.no_grad():
        for mine, their in pairs:
            mine.copy_(their)
    assert len(pairs) == len(list(model.parameters()))


@pytest.mark.parametrize("name", CONFIGS)
def test_it_computes_what_the_hugging_face_model_computes(name):
    config = CONFIGS[name]
    reference = their_model(config).train()
    ours = Whole(Shape(**shape_of({"config": config}, TOKENS))).train()
    copied(ours, reference)
    tokens = torch.randint(0, 64, (3, TOKENS))
    labels = tokens.clone()
    labels[1, 7:] = -100
    their_loss = reference(input_ids=tokens, labels=labels).loss
    our_loss = next_token_loss(ours(tokens), labels)
    torch.testing.assert_close(our_loss, their_loss, rtol=1e-6, atol=1e-6)
    their_loss.backward()
    our_loss.backward()
    norms = [
        torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for model in (ours, reference)
    ]
    torch.testing.assert_close(*norms, rtol=1e-5, atol=1e-6)


def test_every_slice_of_a_pipeline_counts_whole_layers(monkeypatch):
    """Slices of uneven widths differ: ranks that count their own cut in different places."""
    monkeypatch.setattr(PipelineModule, "__init__", lambda self, specs, **_: None)
    shape = Shape(**shape_of({"config": ROTARY | {"model_type": "llama"}}, TOKENS))
    pipeline = Pipeline(Build(shape=shape, group="of ranks that there are none of"))
    block = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 32 * 48 + 2 * 32
    assert pipeline._count_layer_params() == [64 * 32, block, block, 64 * 32 + 32]


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_are_counted_as_they_are_built(name):
    shape = Shape(**shape_of({"config": CONFIGS[name]}, TOKENS))
    whole = Whole(shape)
    built = sum(weight.numel() for weight in whole.parameters())
    again = shape.vocab * shape.hidden if shape.tied_embeddings else 0
    assert sum(layer_sizes(Build(shape=shape))) == built + again


@pytest.mark.cases("changes", "reason")
def test_a_config_that_cannot_be_read_is_refused_with_its_key(changes, reason):
    config = ROTARY | {"model_type": "llama"} | changes
    assert reason in refusal({"config": config}, seq_len=TOKENS, lengths={})


def test_a_config_that_lacks_a_size_is_refused():
    reason = refusal({"config": {"model_type": "llama"}}, seq_len=TOKENS, lengths={})
    assert reason == "llama: its config lacks num_attention_heads"


@pytest.mark.parametrize(
    "name", [preset.name for preset in find_presets("") if preset.family in FAMILIES]
)
def test_it_has_as_many_parameters_as_the_model_and_the_same_stages(name):
    """Stages are known before DeepSpeed cuts them."""
    model = load_model(name)
    specs = layer_specs(Build(shape=Shape(**shape_of(model.source, 1)), device="meta"))
    sizes = [sum(p.numel() for p in spec.build().parameters()) for spec in specs]
    unique = {
        getattr(spec, "key", i): size
        for i, (spec, size) in enumerate(zip(specs, sizes, strict=True))
    }
    assert sum(unique.values()) == model.shape.n_params
    for pp in range(2, min(10, len(sizes) + 1)):
        cuts = pairwise(partition_balanced(sizes, pp))
        assert stages(model.shape, pp) == tuple((sum(sizes[a:b]), b - a) for a, b in cuts)
