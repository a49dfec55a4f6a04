"""What each subject lets pass, and what it says when it refuses: neighbours of the witnesses."""

from dataclasses import replace

import pytest

from autotune.engines.deepspeed.rules import judge
from autotune.engines.deepspeed.rules.plain import environment
from autotune.engines.deepspeed.rules.zero import ACTS_AT, inert_keys
from tests.engines.deepspeed.rules.cases import setup

CPU_ADAM = {"optimizer": {"params": {"torch_adam": None}}}
CPU = {"device": "cpu"}


def zero(stage, **keys):
    return {"zero_optimization": {"stage": stage, **keys}}


def names(config, **case):
    return [violation.rule for violation in judge(setup(config, **case))]


@pytest.mark.cases("config", "case")
def test_legal_neighbours(config, case):
    assert judge(setup(config, **case)) == []


@pytest.mark.cases("config", "case", "found")
def test_what_is_found_and_how_much_it_weighs(config, case, found):
    """A row tells rule and level, and may tell its consequence and the keys behind them."""
    judged = judge(setup(config, **case))
    told = [[one.rule, one.level, one.consequence, *one.at] for one in judged]
    assert len(told) == len(found)
    assert [one[: len(row)] for one, row in zip(told, found, strict=True)] == found


@pytest.mark.cases("config", "case", "words")
def test_a_row_says_values_and_what_follows_from_them(config, case, words):
    told = "\n".join(f"{one.message}\n{one.fix}" for one in judge(setup(config, **case)))
    assert [one for one in words if one not in told] == []


@pytest.mark.parametrize("recompute", ["every_1", "every_0", "every_", "half", "every_2x"])
def test_recomputation_that_means_nothing(recompute):
    assert names({}, recompute=recompute) == ["model.recompute_every"]


@pytest.mark.parametrize("key", ACTS_AT)
def test_keys_are_refused_exactly_where_they_do_not_act(key):
    value = {} if key == "leaf_module" else 2 if "size" in key or "thresh" in key else True
    value = 2 if key.endswith(("parameters", "distance")) and "ignore" not in key else value
    # Two ranks on two nodes: quantised gradients act between nodes alone.
    cuda = replace(environment(accelerator="cuda"), n_devices=1)
    for stage in range(4):
        section = {"stage": stage, key: value}
        section["reduce_scatter"] = True if key == "reduce_scatter" else None
        acts = stage in ACTS_AT[key]
        assert inert_keys(section) == ([] if acts else [key]), stage
        found = judge(replace(setup({"zero_optimization": section}), environment=cuda))
        assert [one.rule for one in found] == ([] if acts else ["zero.inert_key"]), stage


@pytest.mark.parametrize(
    "name", ["zero_quantized_weights", "overlap_comm", "round_robin_gradients"]
)
def test_a_key_that_asks_for_nothing_is_let_be(name):
    assert inert_keys({"stage": 0, name: False}) == []


def test_kernels_of_the_gpu_are_legal_there():
    on_gpu = environment(accelerator="cuda")
    for config in (
        zero(3, zero_quantized_weights=True),
        zero(3, offload_optimizer={"device": "cpu", "super_offload": True}) | CPU_ADAM,
        {"optimizer": {"type": "Lamb", "params": {"torch_adam": None}}},
    ):
        assert judge(setup(config))
        assert judge(replace(setup(config), environment=on_gpu)) == []


def test_zenflows_adam_is_no_hybrid_one():
    (found,) = [
        one
        for one in judge(
            setup(
                zero(3, offload_optimizer=CPU | {"ratio": 0.5}, zenflow={"update_interval": 2})
                | CPU_ADAM,
                accelerator="cuda",
            )
        )
        if one.rule == "offload.ratio_needs_cpu_adam"
    ]
    assert found.changes == {"zero_optimization": {"offload_optimizer": {"ratio": 1.0}}}


def test_a_null_is_no_dtype_of_autocast():
    plain = setup()
    config = {**plain.ds_config, "torch_autocast": {"enabled": True, "dtype": None}}
    (found,) = judge(replace(plain, ds_config=config))
    assert (found.rule, found.consequence) == ("schema.section_value", "raised")


@pytest.mark.parametrize(("more", "is_told"), [({"warmup_max_lr": None}, False), ({}, True)])
def test_a_peak_that_is_null_is_the_optimizers_rate(more, is_told):
    plain = setup({"optimizer": {"params": {"lr": 1e-5}}})
    params = {"total_num_steps": 20, "warmup_num_steps": 4, **more}
    scheduler = {"type": "WarmupDecayLR", "params": params}
    found = judge(plain.with_config({**plain.ds_config, "scheduler": scheduler}))
    assert [one.rule for one in found] == ["scheduler.default_peak"] * is_told


def test_what_is_not_known_is_not_judged():
    unknown = replace(
        setup(global_batch=4), model=None, seq_len=None, global_batch=None, recompute="every_9"
    )
    assert judge(unknown) == []


OFFLOADS_A_SCRIPTS = zero(2, offload_optimizer=CPU) | {"optimizer": None}


def test_accelerate_brings_deepspeeds_optimizer_for_the_cpu():
    assert judge(replace(setup(OFFLOADS_A_SCRIPTS), brings_cpu_adam=True)) == []


@pytest.mark.parametrize(("power", "is_legal"), [(16, True), (63, True), (64, False)])
def test_the_first_loss_scale_is_a_number_of_torchs(power, is_legal):
    config = zero(1) | {"fp16": {"enabled": True, "initial_scale_power": power}}
    assert (judge(setup(config, precision="fp16")) == []) is is_legal
    fixed = config | {"fp16": config["fp16"] | {"loss_scale": 128}}
    assert judge(setup(fixed, precision="fp16")) == []
