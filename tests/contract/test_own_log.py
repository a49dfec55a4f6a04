"""An engine's own log beside what was measured."""

import pytest

from autotune.contract import OwnLog


def own_log(**told) -> OwnLog:
    return OwnLog(n_steps=5, measured_step_time_s=1.0, measured_loss=7.0, **told)


@pytest.mark.parametrize("told", [{"step_time_s": 1.04}, {"step_time_s": 0.96, "loss": 7.0003}])
def test_witnesses_that_agree_say_nothing(told):
    assert own_log(**told).disagreement == ""


@pytest.mark.cases("told", "said")
def test_what_differs_is_said_with_both_figures(told, said):
    assert own_log(**told).disagreement == said
