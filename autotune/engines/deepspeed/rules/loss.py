"""The loss over chunks of tokens: for which models it is the model's own."""

from autotune.engines.deepspeed.rules.base import Case, Setup, Witness
from autotune.space.rule import Finding, rule

_PLAIN = {"architecture": "plain"}


@rule(
    "loss.chunks_of_another_loss",
    "autotune/trial/scripts/train.py: it takes the model's body and head apart",
    Witness(
        broken=Case(model=_PLAIN, loss_chunk_tokens=4),
        repaired=Case(model=_PLAIN),
        consequence="raised",
        raises="AttributeError: 'PlainModel' object has no attribute 'base_model'",
    ),
)
def _unknown(setup: Setup) -> Finding | None:
    if setup.loss_chunk_tokens == 0 or setup.supports_loss_chunks:
        return None
    return Finding(
        message=f"loss_chunk_tokens={setup.loss_chunk_tokens}: this model's loss is not known "
        f"to be the plain cross entropy of its output head's logits",
        advice="set loss_chunk_tokens to 0",
    )
