"""The loss and the MLPs over chunks of tokens: for which models they are the model's own."""

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import Finding, rule


@rule("autotune/trial/scripts/train.py: it takes the model's body and head apart")
def _chunks_of_another_loss(setup: Setup) -> Finding | None:
    if setup.loss_chunk_tokens == 0 or setup.supports_loss_chunks:
        return None
    return Finding(
        message=f"loss_chunk_tokens={setup.loss_chunk_tokens}: this model's loss is not known "
        f"to be the plain cross entropy of its output head's logits",
        advice="set loss_chunk_tokens to 0",
    )


@rule(
    "autotune/trial/scripts/train.py: it computes each layer's `mlp` piece by piece",
    consequence="ignored",
)
def _chunks_of_another_mlp(setup: Setup) -> Finding | None:
    if setup.mlp_chunk_tokens == 0 or setup.supports_mlp_chunks:
        return None
    return Finding(
        message=f"mlp_chunk_tokens={setup.mlp_chunk_tokens}: this model is not known to have one "
        "MLP of its own in every layer",
        advice="set mlp_chunk_tokens to 0",
    )
