"""ZeRO++: what its second copy and its quantised collectives cannot be combined with."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, ignored, raised
from autotune.space.rule import Finding, rule


def _zero(**keys: Any) -> dict[str, Any]:
    return {"zero_optimization": {"stage": 3, **keys}}


@rule(
    "zeropp.hpz_with_tp",
    "utils/groups.py: _create_zero_param_parallel_group counts ranks of the world",
    raised(
        "RuntimeError: .*invalid tensor size",
        _zero(zero_hpz_partition_size=4, stage3_param_persistence_threshold=0)
        | {"tensor_parallel": {"autotp_size": 2}},
        {"zero_optimization": {"zero_hpz_partition_size": None}},
        world=4,
        tp=2,
    ),
)
def _hpz_with_tp(setup: Setup) -> Finding | None:
    size = setup.zero.get("zero_hpz_partition_size", 1)
    if setup.stage != 3 or setup.tp == 1 or size <= 1:
        return None
    return Finding(
        message=f"zero_optimization.zero_hpz_partition_size={size:.0f} with "
        f"tensor_parallel.autotp_size={setup.tp}: the second copy is shared among neighbouring "
        "ranks, which hold different parts of the model",
        changes={"zero_optimization": {"zero_hpz_partition_size": None}},
    )


@rule(
    "zeropp.qgz_scatters",
    "runtime/zero/stage3.py:390",
    raised(
        "AssertionError: when enable all_to_all_reduce",
        _zero(zero_quantized_gradients=True, reduce_scatter=False),
        {"zero_optimization": {"reduce_scatter": None}},
        world=4,
        accelerator="cuda",
    ),
)
def _qgz_scatters(setup: Setup) -> Finding | None:
    if setup.stage != 3 or setup.zero.get("zero_quantized_gradients") is not True:
        return None
    if setup.environment.accelerator == "cpu" or setup.zero.get("reduce_scatter") is not False:
        return None
    return Finding(
        message="zero_optimization.zero_quantized_gradients=true with reduce_scatter=false",
        changes={"zero_optimization": {"reduce_scatter": True}},
    )


@rule(
    "zeropp.qgz_within_a_node",
    "runtime/zero/stage3.py: __avg_scatter_grads",
    ignored(
        _zero(zero_quantized_gradients=True),
        {"zero_optimization": {"zero_quantized_gradients": None}},
        accelerator="cuda",
    ),
)
def _qgz_within_a_node(setup: Setup) -> Finding | None:
    if setup.stage != 3 or setup.zero.get("zero_quantized_gradients") is not True:
        return None
    devices = setup.environment.n_devices
    if setup.environment.accelerator == "cpu" or not devices or setup.world // devices > 1:
        return None
    return Finding(
        message=f"zero_optimization.zero_quantized_gradients=true on one node: {setup.world} "
        f"ranks on {devices} devices are {setup.world // devices} nodes, and it acts between "
        "nodes alone",
        changes={"zero_optimization": {"zero_quantized_gradients": None}},
    )


@rule(
    "zeropp.qwz_with_autocast",
    "runtime/torch_autocast.py:30",
    raised(
        "AssertionError",
        _zero(zero_quantized_weights=True)
        | {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
        {"torch_autocast": None},
        accelerator="cuda",
    ),
)
def _qwz_autocast(setup: Setup) -> Finding | None:
    if setup.stage != 3 or setup.zero.get("zero_quantized_weights") is not True:
        return None
    if setup.environment.accelerator == "cpu":
        return None
    if setup.section("torch_autocast").get("enabled") is not True:
        return None
    return Finding(
        message="zero_optimization.zero_quantized_weights=true with torch_autocast",
        changes={"torch_autocast": {"enabled": False}},
    )
