"""What a rank is fed where samples are shared, and how its loss is scaled."""

import pytest
import torch

from autotune.trial.scripts.train import IGNORED, collate, gradient_scale, sequence_piece


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
