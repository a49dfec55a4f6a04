"""Which mistyped words are recognised, and which are words of their own."""

import pytest

from autotune.base.names import misspelt

KNOWN = (
    *("zero_optimization", "optimizer", "overlap_comm", "pin_memory", "data_parallel_size"),
    *("gradient_clipping", "train_micro_batch_size_per_gpu", "stage", "bf16", "fp16"),
    *("comms_logger", "cpu", "stage3_prefetch_bucket_size", "reduce_bucket_size"),
)


@pytest.mark.cases("given", "meant")
def test_a_mistyped_word_is_recognised(given, meant):
    assert misspelt(given, KNOWN) == meant


@pytest.mark.parametrize(
    "given",
    [
        *("model_parallel_size", "comms_config", "gpu", "fp32", "bf8", "seed", "", "x" * 500),
        *("stage2_prefetch_bucket_size", "bucket_size"),
    ],
)
def test_another_word_is_not_taken_for_one(given):
    assert misspelt(given, KNOWN) is None


def test_a_word_between_two_is_neither():
    assert misspelt("hp16", ("bf16", "fp16")) == "fp16"
    assert misspelt("xp_size", ("tp_size", "dp_size")) is None
