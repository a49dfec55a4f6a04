"""ZeRO++: what its second copy and its quantised collectives cannot be combined with."""

from autotune.engines.deepspeed.rules.base import Setup, zero
from autotune.space.rule import Finding, rule


def _quantizes(setup: Setup, what: str) -> bool:
    if setup.stage != 3 or setup.accelerator == "cpu":
        return False
    return setup.zero.get(f"zero_quantized_{what}") is True


@rule("utils/groups.py: _create_zero_param_parallel_group counts ranks of the world")
def _hpz_with_tp(setup: Setup) -> Finding | None:
    size = setup.zero.get("zero_hpz_partition_size", 1)
    if setup.stage != 3 or setup.tp == 1 or size <= 1:
        return None
    # Two of four ranks trained silently on weights of no model: the first loss was wrong.
    return Finding(
        message=f"zero_optimization.zero_hpz_partition_size={size:.0f} with "
        f"tensor_parallel.autotp_size={setup.tp}: the second copy is shared among neighbouring "
        "ranks, which hold different parts of the model",
        changes=zero(zero_hpz_partition_size=None),
    )


@rule("runtime/zero/stage3.py:390")
def _qgz_scatters(setup: Setup) -> Finding | None:
    if not _quantizes(setup, "gradients") or setup.zero.get("reduce_scatter") is not False:
        return None
    return Finding(
        message="zero_optimization.zero_quantized_gradients=true with reduce_scatter=false",
        changes=zero(reduce_scatter=True),
    )


@rule("runtime/zero/stage3.py: __avg_scatter_grads", consequence="ignored")
def _qgz_within_a_node(setup: Setup) -> Finding | None:
    devices = setup.environment.n_devices
    if not _quantizes(setup, "gradients") or not devices or setup.world // devices > 1:
        return None
    return Finding(
        message=f"zero_optimization.zero_quantized_gradients=true on one node: {setup.world} "
        f"ranks on {devices} devices are {setup.world // devices} nodes, and it acts between "
        "nodes alone",
        changes=zero(zero_quantized_gradients=None),
    )


@rule("runtime/torch_autocast.py:30")
def _qwz_with_autocast(setup: Setup) -> Finding | None:
    is_autocast = setup.section("torch_autocast").get("enabled") is True
    if not is_autocast or not _quantizes(setup, "weights"):
        return None
    return Finding(
        message="zero_optimization.zero_quantized_weights=true with torch_autocast",
        changes={"torch_autocast": {"enabled": False}},
    )
