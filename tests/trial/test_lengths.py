"""Every candidate of a job trains on the same samples, in whatever pieces."""

import itertools
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from autotune.trial.scripts import train
from autotune.trial.scripts.lengths import batch_lengths, rounded_up, step_lengths
from autotune.trial.scripts.train import (
    IGNORED,
    collate,
    drawn,
    full,
    gradient_scale,
    sequence_piece,
)
from tests.trials import settings, spec

HISTOGRAM = {"kind": "histogram", "histogram": [[128, 0.5], [512, 0.3], [2048, 0.2]]}

histograms = st.dictionaries(
    st.integers(2, 5000), st.floats(0.001, 1000), min_size=1, max_size=8
).map(lambda found: {"kind": "histogram", "histogram": [list(pair) for pair in found.items()]})


def test_a_batch_has_the_shares_of_the_histogram():
    assert Counter(batch_lengths(HISTOGRAM, 10)) == {128: 5, 512: 3, 2048: 2}
    # 4, 2.4 and 1.6 of eight: the one that is left goes to the largest remainder.
    assert Counter(batch_lengths(HISTOGRAM, 8)) == {128: 4, 512: 2, 2048: 2}
    assert batch_lengths(HISTOGRAM, 1) == [128]


def test_of_equal_remainders_the_longest_comes_first():
    assert batch_lengths({"histogram": [[64, 1], [256, 1]]}, 3) == [64, 256, 256]


@given(histograms, st.integers(1, 200))
def test_a_batch_is_complete_and_no_length_is_more_than_one_off(lengths, global_batch):
    found = Counter(batch_lengths(lengths, global_batch))
    total = sum(weight for _, weight in lengths["histogram"])
    assert sum(found.values()) == global_batch
    for length, weight in lengths["histogram"]:
        assert abs(found[length] - global_batch * weight / total) < 1 + 1e-6


def test_steps_have_the_same_samples_in_another_order():
    steps = [step_lengths(HISTOGRAM, 20, seed=3, step=step) for step in range(4)]
    assert all(sorted(step) == batch_lengths(HISTOGRAM, 20) for step in steps)
    assert len({tuple(step) for step in steps}) == 4
    assert step_lengths(HISTOGRAM, 20, seed=3, step=1) == steps[1]
    assert step_lengths(HISTOGRAM, 20, seed=4, step=1) != steps[1]


def test_padding_is_rounded_up():
    assert [rounded_up(n, 8) for n in (1, 8, 9)] == [8, 8, 16]


LENGTHS = {"kind": "histogram", "histogram": [[3, 0.5], [7, 0.25], [12, 0.25]]}


def trial(micro_batch, dp, **changes):
    lengths = {**LENGTHS, "pad_to_multiple": changes.pop("pad_to_multiple", 1)}
    accum = 8 // (micro_batch * dp)
    fields = {"micro_batch": micro_batch, "dp": dp, "grad_accum": accum, "global_batch": 8}
    trial_spec = spec(**fields, seq_len=16, lengths=lengths, seed=5, **changes)
    config = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accum}
    return settings(trial_spec, config)


def step_of(settings, *, step=0, warming=False):
    """The samples of one optimizer step by their number, with their micro-batch's width."""
    found = {}
    for rank in range(settings.dp):
        batches = drawn(settings, rank, lambda: step, warm_up_steps=step + warming)
        for micro_step, batch in enumerate(itertools.islice(batches, settings.grad_accum)):
            for slot in range(settings.micro_batch):
                number = (micro_step * settings.dp + rank) * settings.micro_batch + slot
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


def rows_of(settings, *, step=0, order=0):
    """The samples of one optimizer step that all have the same length, in their order."""
    found = {}
    for rank in range(settings.dp):
        batches = full(settings, rank, lambda: step, order=order)
        for micro_step, batch in enumerate(itertools.islice(batches, settings.grad_accum)):
            first = (micro_step * settings.dp + rank) * settings.micro_batch
            rows = enumerate(batch["input_ids"].tolist(), first)
            found |= {place: tuple(row) for place, row in rows}
    return [found[place] for place in sorted(found)]


def test_every_cut_of_a_global_batch_trains_the_same_samples_in_a_step():
    cuts = [rows_of(trial(*cut), step=3) for cut in ((1, 2), (2, 2), (4, 2), (8, 1), (2, 4))]
    assert cuts[0] == cuts[1] == cuts[2] == cuts[3] == cuts[4]
    assert len(set(cuts[0])) == 8
    assert not set(cuts[0]) & set(rows_of(trial(1, 2), step=4))


def test_another_order_has_the_same_samples():
    settings = trial(2, 2)
    orders = [rows_of(settings, step=3, order=order) for order in range(3)]
    assert len({tuple(rows) for rows in orders}) == 3
    assert len({frozenset(rows) for rows in orders}) == 1


def test_a_step_that_was_not_applied_is_done_again_with_its_samples():
    settings, applied = trial(4, 2), iter([5, 5, 6])
    batches = full(settings, 0, lambda: next(applied))
    first, again, after = (next(batches)["input_ids"] for _ in range(3))
    assert torch.equal(first, again)
    assert not torch.equal(first, after)


def test_some_tokens_come_up_far_more_often_than_others():
    """Else there is nothing to learn, and a training that goes wrong would show less."""
    settings = trial(4, 2)
    tokens = torch.tensor([rows_of(settings, step=step) for step in range(40)]).flatten()
    vocab = settings.source["vocab"]
    assert 0 <= tokens.min() < tokens.max() < vocab
    shares = torch.bincount(tokens, minlength=vocab).float() / len(tokens)
    assert 0.2 < shares[0] < 0.3, "64 ** (-1 / 3) is a quarter"
    assert shares[vocab // 2 :].sum() < 0.3


def test_padding_has_no_label_and_no_attention():
    batch = collate([torch.tensor([5, 6, 7]), torch.tensor([8])], 2)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_a_model_without_a_mask_gets_none(monkeypatch):
    class Bare(torch.nn.Module):
        def forward(self, input_ids, labels):
            return None

    class Engine:
        module, global_steps, skipped_steps = Bare(), 0, 0

    monkeypatch.setattr(train, "device_of_rank", lambda: "cpu")
    assert set(next(train.batches(trial(2, 2), Engine()))) == {"input_ids", "labels"}


def padded():
    """Two samples of six and three tokens, padded to six."""
    return collate([torch.arange(10, 16), torch.arange(20, 23)], 1)


def pieces(sp):
    return [sequence_piece(padded(), sp=sp, rank=rank) for rank in range(sp)]


@pytest.mark.parametrize("sp", [2, 3, 6])
def test_the_pieces_are_the_whole(sp):
    for name in ("input_ids", "labels"):
        joined = torch.cat([piece[name] for piece in pieces(sp)], dim=1)
        assert torch.equal(joined, padded()[name])
    positions = torch.cat([piece["position_ids"] for piece in pieces(sp)], dim=1)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_the_last_token_of_a_piece_is_followed_by_the_first_of_the_next():
    first, second = pieces(2)
    assert first["shift_labels"].tolist() == [[11, 12, 13], [21, 22, IGNORED]]
    assert second["shift_labels"].tolist() == [[14, 15, IGNORED], [IGNORED] * 3]


@pytest.mark.parametrize("sp", [1, 2, 3])
def test_all_pieces_count_the_tokens_of_whole_samples(sp):
    assert [int(piece["num_items_in_batch"]) for piece in pieces(sp)] == [5 + 2] * sp


def test_a_length_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="6 tokens cannot be split over 4 ranks"):
        sequence_piece(padded(), sp=4, rank=0)


@pytest.mark.cases("zero", "scale")
def test_the_scale_is_that_of_the_reduction(zero, scale):
    assert gradient_scale({"zero_optimization": zero}, 4) == scale
    assert gradient_scale({"zero_optimization": zero}, 1) == 1


def test_no_scale_is_right_where_stage_3_does_not_scatter():
    zero = {"stage": 3, "reduce_scatter": False}
    assert gradient_scale({"zero_optimization": zero}, 1) == 1
    with pytest.raises(ValueError, match="no scale is right"):
        gradient_scale({"zero_optimization": zero}, 4)
