"""Ulysses: the ranks of a group share each sample, a piece of its sequence each.

DeepSpeed's port for Hugging Face (`UlyssesSPAttentionHF`) puts itself where the model calls its
attention: there the pieces of the sequence are exchanged for parts of the heads. Everything else
is the script's: what a rank is fed, and the loss.
"""

from typing import Any

import torch
import torch.distributed

from autotune.trial.samples import IGNORED, Inputs, shifted


def split_attention(model: Any, *, sp: int, micro_batch: int) -> Any:
    """Make a Hugging Face model's attention work on split sequences.

    Args:
        model: Built, with the attention implementation that it will train with.
        sp: Ranks that share a sample; neighbours.
        micro_batch: Samples per forward pass.

    Returns:
        The groups, for `deepspeed.initialize(mpu=...)`: without them gradients are reduced over
        the data-parallel ranks alone. None where nothing is split.

    Raises:
        ValueError: The heads, or the attention implementation, cannot be split.
    """
    if sp == 1:
        return None
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF  # heavy

    config = model.config
    if getattr(config, "head_dim", 0) is None:
        # Ulysses takes an open one (Mixtral's) for a width; the model reads it no more.
        config.head_dim = config.hidden_size // config.num_attention_heads
    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation=config._attn_implementation,
        sequence_parallel_size=sp,
        micro_batch_size=micro_batch,
        seq_length_is_variable=True,
    )


def own_piece(inputs: Inputs, *, sp: int, rank: int) -> Inputs:
    """A rank's piece of samples that all ranks of its group hold whole.

    Labels are shifted before they are cut: the last token of a piece is followed by the first of
    the next. A mask is left out: padding stands at the right, where nothing before it attends.

    Args:
        inputs: `input_ids` and `labels`, (samples, tokens).
        sp: Ranks that share a sample.
        rank: Of this one in its group.

    Returns:
        What a Hugging Face model takes: the piece, the positions and successors of its tokens, and
        how many of the whole sequence count, so that the losses of all pieces add up to the mean.

    Raises:
        ValueError: The tokens do not divide.
    """
    n_tokens = inputs["input_ids"].shape[1]
    if n_tokens % sp:
        raise ValueError(f"{n_tokens} tokens cannot be split over {sp} ranks")
    targets = shifted(inputs["labels"])
    whole = {
        "input_ids": inputs["input_ids"],
        "labels": inputs["labels"],
        "shift_labels": targets,
        "position_ids": torch.arange(n_tokens, device=targets.device).expand_as(targets),
    }
    size = n_tokens // sp
    own = slice(rank * size, (rank + 1) * size)
    pieces = {name: tensor[:, own].contiguous() for name, tensor in whole.items()}
    return pieces | {"num_items_in_batch": (targets != IGNORED).sum()}


def gradient_scale(ds_config: dict[str, Any], sp: int) -> int:
    """By what each rank's share of the loss is multiplied before backward.

    DeepSpeed divides the gradients, summed over all ranks, by the data-parallel ones alone, which
    is right for shares that add up to the loss; but at stage 3 it scatters them and divides by all
    ranks, which is right for shares that average to it (0.19.8, stage3.py: __avg_scatter_grads
    against stage_1_and_2.py: average_tensor).

    Raises:
        ValueError: Stage 3 is not to scatter: then it divides the gradients of parameters that fit
            into a bucket in one way, those of larger ones in the other.
    """
    zero = ds_config.get("zero_optimization", {})
    if sp == 1 or zero.get("stage") != 3:
        return 1
    if not zero.get("reduce_scatter", True):
        raise ValueError("reduce_scatter=false at stage 3: no scale is right for all gradients")
    return sp


def whole_loss(share: torch.Tensor, *, group: Any, scale: int) -> torch.Tensor:
    """The loss of whole samples, of which each rank of a group has a share.

    Args:
        share: This rank's; all of them add up to the loss.
        group: The ranks that share samples.
        scale: See `gradient_scale`.

    Returns:
        The loss, the same on every rank; its gradient is that of `scale` times this rank's share.
    """
    total = share.detach().clone()
    torch.distributed.all_reduce(total, group=group)
    scaled = share * scale
    return scaled + (total - scaled.detach())
