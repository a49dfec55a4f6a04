"""Cross entropy over chunks of tokens: the logits of all tokens never exist at once.

At a vocabulary of 128k a token's logits, their upcast to fp32 and its gradient take a megabyte;
over a whole micro-batch that is often the peak of a step. Here each chunk's logits are made, used
and dropped, and made again in backward (activation checkpointing), at the price of a second
product with the output head.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutput

from autotune.trial.samples import IGNORED, shifted


def chunk_loss(model: Any, chunk_tokens: int) -> None:
    """Make a Hugging Face causal model compute its loss in chunks; 0 leaves it as it is.

    The loss is the model's own: the mean cross entropy of each token's successor, in fp32. That
    holds for models whose logits are their output head's and nothing else; which those are, the
    searching side knows.
    """
    if not chunk_tokens:
        return

    def forward(
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        shift_labels: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | None = None,
        **rest: Any,
    ) -> CausalLMOutput:
        hidden = model.base_model(input_ids=input_ids, **rest).last_hidden_state
        # Asked anew each time: AutoTP replaces the head after the model is built.
        head = model.get_output_embeddings()
        targets = shifted(labels) if shift_labels is None else shift_labels
        loss = chunked_cross_entropy(head, hidden, targets, chunk_tokens, num_items_in_batch)
        return CausalLMOutput(loss=loss)

    forward.chunk_tokens = chunk_tokens  # type: ignore[attr-defined]  # for the read-back
    model.forward = forward


def chunked_cross_entropy(
    head: Callable[[torch.Tensor], torch.Tensor],
    hidden: torch.Tensor,
    targets: torch.Tensor,
    chunk_tokens: int,
    n_counted: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mean cross entropy of each token's successor.

    Args:
        head: From (tokens, hidden) to logits (tokens, vocabulary).
        hidden: (batch, sequence, hidden).
        targets: (batch, sequence): each token's successor; `IGNORED` does not count.
        chunk_tokens: Tokens whose logits exist at the same time.
        n_counted: Tokens that the sum is divided by; None: those that count here.
    """
    targets, states = targets.flatten(), hidden.flatten(0, 1)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for part, wanted in zip(states.split(chunk_tokens), targets.split(chunk_tokens), strict=True):
        total = total + checkpoint(_summed, head, part, wanted, use_reentrant=False)
    return total / ((targets != IGNORED).sum() if n_counted is None else n_counted)


def _summed(
    head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    logits = head(hidden).float()
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
