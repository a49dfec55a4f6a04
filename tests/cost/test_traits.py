"""What frameworks differ in, and that a row of each is predicted with it."""

import dataclasses

import pytest

from autotune.cost import Plans, Recompute, predict
from autotune.cost.table import rows_to_plans
from autotune.cost.traits import FRAMEWORKS, Traits
from autotune.devices.accelerators import find_accelerator, shipped_accelerators
from tests.cost.rows import row

COLUMNS = {field.name for field in dataclasses.fields(Plans)}


def plans_of(**changes: str) -> Plans:
    rows = rows_to_plans([row(**changes)], shipped_accelerators())
    assert rows.plans is not None, rows.reasons
    return rows.plans


@pytest.mark.parametrize("traits", FRAMEWORKS, ids=lambda traits: traits.name)
def test_traits_are_columns_and_rows_are_predicted_with_them(traits: Traits) -> None:
    for columns in (traits.columns, traits.fp16_columns, traits.low_precision_columns):
        assert columns.keys() <= COLUMNS
    plans = plans_of(framework=traits.word, zero_stage="", sp="")
    assert plans.zero_stage[0] == traits.zero_stage  # type: ignore[index]
    assert predict(plans).step_time_s[0] > 0


def test_torchtitan_takes_the_local_batch_sample_by_sample() -> None:
    changes = {"framework": "torchtitan", "micro_batch": "8", "global_batch": "64"}
    plans = plans_of(**changes)
    assert (plans.micro_batch[0], plans.grad_accum[0]) == (1, 8)  # type: ignore[index]


def test_selective_is_what_the_framework_means_by_it() -> None:
    assert plans_of(recompute="selective").recompute == [Recompute.SELECTIVE]
    torch = plans_of(framework="torchtitan", recompute="selective")
    assert torch.recompute == [Recompute.OPERATORS]


def test_stage_0_has_no_flat_buffers() -> None:
    changes = {"framework": "megatron-deepspeed"}
    assert plans_of(**changes, zero_stage="1").flat_buffers == [1]
    assert plans_of(**changes, zero_stage="0").flat_buffers == [0]


def test_narrow_products_are_faster_but_not_by_their_whole_peak() -> None:
    held = [
        plans_of(gpu_type="B200", gpu_mem_gb="", precision=name) for name in ("bf16", "fp8", "fp4")
    ]
    rates = [float((p.matmul_flops * p.sustained_share)[0]) for p in held]
    assert rates == sorted(rates)
    assert rates[2] < 0.8 * find_accelerator("B200").achieved_flops["fp4"]


def test_a_mixture_is_predicted_where_its_experts_are_given() -> None:
    table = shipped_accelerators()
    dense = row(tp="1", pp="1", dp="64", params_b="")
    mixture = {**dense, "n_experts": "8", "experts_per_token": "2", "ep": "8"}
    rows = rows_to_plans([dense, mixture], table)
    assert rows.plans is not None
    predicted = predict(rows.plans)
    assert predicted.times.expert_comm_s[0] == 0
    assert predicted.times.expert_comm_s[1] > 0
    assert predicted.step_time_s[1] > predicted.step_time_s[0]
