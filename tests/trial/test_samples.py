"""Micro-batches are padded like a collator's, and the same samples for every candidate."""

import itertools

import torch

from autotune.trial.lengths import step_lengths
from autotune.trial.samples import collate, drawn
from tests.trials import spec

LENGTHS = {"kind": "histogram", "histogram": [[3, 0.5], [7, 0.25], [12, 0.25]]}


def trial(micro_batch, dp, **changes):
    lengths = {**LENGTHS, "pad_to_multiple": changes.pop("pad_to_multiple", 1)}
    accum = 8 // (micro_batch * dp)
    fields = {"micro_batch": micro_batch, "dp": dp, "grad_accum": accum, "global_batch": 8}
    return spec(**fields, seq_len=16, lengths=lengths, seed=5, **changes)


def step_of(trial_spec, *, step=0, warming=False):
    """The samples of one optimizer step by their number, with their micro-batch's width."""
    found = {}
    for rank in range(trial_spec.layout.dp):
        batches = drawn(trial_spec, rank=rank, is_warming_up=lambda: warming, takes_mask=True)
        skipped = itertools.islice(batches, step * trial_spec.layout.grad_accum, None)
        for micro_step, batch in enumerate(
            itertools.islice(skipped, trial_spec.layout.grad_accum)
        ):
            for slot in range(trial_spec.layout.micro_batch):
                number = (
                    micro_step * trial_spec.layout.dp + rank
                ) * trial_spec.layout.micro_batch + slot
                mask = batch["attention_mask"][slot].bool()
                found[number] = (batch["input_ids"][slot][mask].tolist(), len(mask))
    return found


def test_a_sample_is_the_same_whatever_the_micro_batch_is():
    cuts = [step_of(trial(*cut), step=2) for cut in ((1, 2), (2, 2), (4, 2), (8, 1))]
    tokens = [[cut[number][0] for number in range(8)] for cut in cuts]
    assert tokens[0] == tokens[1] == tokens[2] == tokens[3]
    wanted = step_lengths(LENGTHS, 8, seed=5, step=2)
    assert [len(sample) for sample in tokens[0]] == wanted


def test_a_micro_batch_is_as_wide_as_its_longest_sample():
    alone = step_of(trial(1, 2))
    assert all(width == len(sample) for sample, width in alone.values())
    together = step_of(trial(8, 1, pad_to_multiple=8))
    assert {width for _, width in together.values()} == {16}


def test_all_samples_are_the_longest_while_it_warms_up():
    assert {len(sample) for sample, _ in step_of(trial(2, 2), warming=True).values()} == {12}


def test_padding_has_no_label_and_no_attention():
    batch = collate([torch.tensor([5, 6, 7]), torch.tensor([8])], 2)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_a_model_without_a_mask_gets_none():
    batches = drawn(trial(2, 2), rank=0, is_warming_up=lambda: False, takes_mask=False)
    assert set(next(batches)) == {"input_ids", "labels"}
