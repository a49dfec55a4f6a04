"""Micro-batches of samples of different lengths, padded as Hugging Face's collators pad."""

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn import functional

from autotune.contract import TrialSpec
from autotune.trial.lengths import first_sample, longest, rounded_up, step_lengths

IGNORED = -100
"""Label of a token that the loss does not count (transformers' own)."""
_PADDING = 0
"""Token id of padding: nothing attends to it and no label is one."""

Inputs = dict[str, torch.Tensor]


def drawn(
    spec: TrialSpec, *, rank: int, is_warming_up: Callable[[], bool], takes_mask: bool
) -> Iterator[Inputs]:
    """Random tokens in samples of the job's lengths, for ever.

    While it warms up every sample is as long as the longest one, so that the highest memory is
    seen before anything is measured, and with the optimizer's states in place.

    Args:
        spec: The trial; its lengths are a histogram.
        rank: Data-parallel rank.
        is_warming_up: Asked before each optimizer step.
        takes_mask: Whether the model has an `attention_mask`; the labels are masked either way.
    """
    step = 0
    while True:
        lengths = step_lengths(
            spec.workload.lengths, spec.layout.global_batch, seed=spec.workload.seed, step=step
        )
        if is_warming_up():
            lengths = [longest(spec.workload.lengths)] * spec.layout.global_batch
        for micro_step in range(spec.layout.grad_accum):
            first = first_sample(
                micro_step=micro_step,
                rank=rank,
                dp=spec.layout.dp,
                micro_batch=spec.layout.micro_batch,
            )
            numbers = range(first, first + spec.layout.micro_batch)
            samples = [_tokens(spec, step, number, lengths[number]) for number in numbers]
            inputs = collate(
                samples, math.lcm(int(spec.workload.lengths["pad_to_multiple"]), spec.layout.sp)
            )
            yield inputs if takes_mask else {k: inputs[k] for k in ("input_ids", "labels")}
        step += 1


def collate(samples: Sequence[torch.Tensor], pad_to_multiple: int) -> Inputs:
    """Pad on the right to the longest sample, rounded up; padding has no label and no attention.

    Returns:
        `input_ids`, `labels` and `attention_mask`, each (samples, padded length).
    """
    width = rounded_up(max(len(sample) for sample in samples), pad_to_multiple)
    shape = (len(samples), width)
    tokens = torch.full(shape, _PADDING, dtype=torch.long)
    labels = torch.full(shape, IGNORED, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.long)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample)] = labels[row, : len(sample)] = sample
        mask[row, : len(sample)] = 1
    return {"input_ids": tokens, "labels": labels, "attention_mask": mask}


def shifted(labels: torch.Tensor) -> torch.Tensor:
    """The label of each token's successor; the last token of a sample has none."""
    return functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]


def _tokens(spec: TrialSpec, step: int, number: int, length: int) -> torch.Tensor:
    """One sample; it depends on the job, the step and its number, and on no candidate."""
    seed = (spec.workload.seed * 100_003 + step) * spec.layout.global_batch + number
    generator = torch.Generator().manual_seed(seed % 2**63)
    return torch.randint(0, int(spec.workload.model["vocab"]), (length,), generator=generator)
