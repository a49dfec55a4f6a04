"""Megatron's own log, read: lines as its sources print them."""

import math

from autotune.trial.megatron_log import read_log

OLD = (
    " [2025-11-02 10:00:01] iteration        2/      10 | consumed samples:           16 | "
    "elapsed time per iteration (ms): 1234.5 | throughput per GPU (TFLOP/s/GPU): 412.3 | "
    "learning rate: 1.000000E-04 | global batch size:     8 | lm loss: 5.543210E+00 | "
    "loss scale: 1.0 | grad norm: 1.250 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)
"""Of Megatron Core 0.14, with `--log-throughput`."""
NEW = (
    " [2026-08-22 15:22:22.123456] iteration        4/      10 | consumed samples:           32 | "
    "elapsed time per iteration (ms): 200.0 | learning rate: 1.000000E-04 | "
    "global batch size:     8 | lm loss: 5.000000E+00 | load_balancing_loss: 1.000000E+00 | "
    "loss scale: 65536.0 | grad norm: 0.500 | num zeros: 0 | "
    "number of skipped iterations:   1 | number of nan iterations:   0 |"
)
"""Of the main branch, with experts, in fp16."""
MEMORY = (
    "[Rank 3] (after 2 iterations) memory (MB) | allocated: 100.5 | max allocated: 300.25 | "
    "reserved: 400.0 | max reserved: 512.0"
)
NEW_MEMORY = (
    "[Rank 0] (after 2 iterations) memory (MB) | allocated: 100.50 | max allocated: 300.25 | "
    "reserved: 400.00 | max reserved: 640.00 | total device memory used: 1000.00"
)


def test_iterations_of_old_and_new_releases():
    first, second = read_log(["building GPT model ...", OLD, NEW]).iterations
    assert (first.iteration, first.time_s, first.global_batch) == (2, 1.2345, 8)
    assert (first.loss, first.flops_per_s, first.grad_norm) == (5.54321, 412.3e12, 1.25)
    assert (second.iteration, second.loss, second.flops_per_s) == (4, 5.0, None)
    assert (second.n_skipped, second.n_nan) == (1, 0)


def test_an_iteration_that_was_skipped_has_no_loss_and_a_bad_one_is_no_number():
    skipped = OLD.replace(" lm loss: 5.543210E+00 |", "")
    bad = OLD.replace("5.543210E+00", "NAN")
    first, second = read_log([skipped, bad]).iterations
    assert first.loss is None
    assert math.isnan(second.loss)


def test_memory_of_ranks():
    log = read_log([MEMORY, NEW_MEMORY])
    assert [entry.rank for entry in log.memory] == [3, 0]
    assert log.memory[0].peak_allocated_bytes == 300.25 * 2**20
    assert log.peak_reserved_bytes == 640 * 2**20
    assert read_log([]).peak_reserved_bytes is None


def test_a_line_behind_a_ranks_prefix_is_read_and_one_cut_short_is_not():
    assert len(read_log(["[default1]:" + OLD]).iterations) == 1
    assert read_log([OLD[:60], MEMORY[:70]]).iterations == []
    assert read_log([OLD[:60], MEMORY[:70]]).memory == []
