"""What acts after thousands of steps is brought forward, and its beginning is seen."""

import dataclasses
from types import SimpleNamespace

import pytest

from autotune.contract import Checkpoint
from autotune.search.trial_spec import MEASURE
from autotune.trial.faults import ReadBackError
from autotune.trial.phases import Delay, bring_forward, first_step_of

AFTER = MEASURE.warmup_steps + MEASURE.min_steps + 1


def rounding(**shared):
    return {"compression_training": {"weight_quantization": {"shared_parameters": shared}}}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("OneBitAdam", "freeze_step"),
        ("onebitlamb", "freeze_step"),
        ("ZeroOneAdam", "var_freeze_step"),
    ],
)
def test_a_compressing_optimizer_begins_within_the_trial_and_moves_no_weight(kind, name):
    params = {"lr": 1e-3, name: 23_000}
    config = {"optimizer": {"type": kind, "params": params}, "scheduler": {"type": "WarmupLR"}}
    changed = bring_forward(config, MEASURE)
    assert changed == {
        f"optimizer.params.{name}": [23_000, AFTER],
        "optimizer.params.lr": [1e-3, 1e-12],
        "scheduler": [{"type": "WarmupLR"}, None],
    }
    assert config == {"optimizer": {"type": kind, "params": {"lr": 1e-12, name: AFTER}}}
    assert first_step_of(changed) == AFTER


def test_an_optimizer_without_parameters_waits_for_deepspeeds_own_default():
    config = {"optimizer": {"type": "OneBitAdam"}}
    assert bring_forward(config, MEASURE)["optimizer.params.freeze_step"] == [None, AFTER]
    assert config["optimizer"]["params"]["freeze_step"] == AFTER


def test_rounded_weights_begin_within_the_trial():
    config = rounding(enabled=True, schedule_offset=1000)
    (key,) = changed = bring_forward(config, MEASURE)
    assert key.endswith("shared_parameters.schedule_offset")
    assert changed[key] == [1000, AFTER]
    assert config == rounding(enabled=True, schedule_offset=AFTER)


@pytest.mark.parametrize(
    "config",
    [{}, {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}, rounding(enabled=False)],
)
def test_what_waits_for_nothing_is_left_alone(config):
    before = repr(config)
    assert bring_forward(config, MEASURE) == {}
    assert repr(config) == before


def test_a_soak_trains_what_it_is_asked_to():
    soak = dataclasses.replace(MEASURE, checkpoint=Checkpoint(folder="somewhere"))
    config = {"optimizer": {"type": "OneBitAdam", "params": {"freeze_step": 23_000}}}
    assert bring_forward(config, soak) == {}


def engine(**optimizer):
    return SimpleNamespace(basic_optimizer=SimpleNamespace(**optimizer))


def test_the_phase_is_the_live_optimizers():
    live = engine(adam_freeze_key=False)
    delay = Delay(live, 3)
    delay.look()
    assert not delay.has_begun
    live.basic_optimizer.adam_freeze_key = True
    delay.look()
    assert delay.has_begun


def test_it_has_begun_when_everything_has():
    live = engine(freeze_key=True)
    live.compression_scheduler = SimpleNamespace(
        different_compression_methods={"weight_quantization": {"enabled": True}},
        weight_quantization_enabled=False,
    )
    delay = Delay(live, 3)
    delay.look()
    assert not delay.has_begun
    live.compression_scheduler.weight_quantization_enabled = True
    delay.look()
    assert delay.has_begun


@pytest.mark.parametrize("live", [engine(adam_freeze_key=False), engine()])
def test_what_never_begins_did_not_take_effect(live):
    delay = Delay(live, 3)
    for _ in range(63):
        delay.look()
    with pytest.raises(ReadBackError, match="asked to begin after 3 steps"):
        delay.look()
