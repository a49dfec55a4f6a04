"""Megatron's own log, read: lines as its sources print them."""

import math

from autotune.trial.megatron_log import LoggedIteration, read_log

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


def test_iterations_of_old_and_new_releases():
    assert read_log(["building GPT model ...", OLD, "[default1]:" + NEW]) == [
        LoggedIteration(iteration=2, time_s=1.2345, loss=5.54321),
        LoggedIteration(iteration=4, time_s=0.2, loss=5.0),
    ]
    assert read_log([OLD[:60], OLD.replace("5.543210E+00", "5.5432iteration")]) == []


def test_an_iteration_that_was_skipped_has_no_loss_and_a_bad_one_is_no_number():
    skipped = OLD.replace(" lm loss: 5.543210E+00 |", "")
    bad = OLD.replace("5.543210E+00", "NAN")
    first, second = read_log([skipped, bad])
    assert first.loss is None
    assert math.isnan(second.loss)
