"""What older releases have to send or to keep less: 1-bit optimizers, MiCS, LoCo, rounded weights.

That a newer release lacks them is `version.removed_key` and `version.removed_optimizer`.
"""

from typing import Any

from autotune.engines.deepspeed.rules.base import (
    Setup,
    as_section,
    zero,
)
from autotune.engines.deepspeed.rules.version import (
    OPTIMIZERS_REMOVED_IN,
    REMOVED_OPTIMIZERS,
    uncompressed,
)
from autotune.space.rule import Finding, rule

_MICS_REMOVED_IN = "0.19.7"
_LOCO_REMOVED_IN = "0.19.8"
_LIBRARY_REMOVED_IN = "0.19.7"
_LOCO = {"err_beta": 0.8, "reset_T": 1024}


@rule("runtime/comm/nccl.py, mpi.py and compressed.py of 0.16.9 and 0.19.6")
def _one_bit_needs_cuda(setup: Setup) -> Finding | None:
    if setup.accelerator != "cpu" or setup.optimizer not in REMOVED_OPTIMIZERS or setup.stage:
        return None
    if setup.is_at_least(OPTIMIZERS_REMOVED_IN):
        return None
    return Finding(
        message=f"optimizer.type={setup.section('optimizer')['type']}: its communication is "
        "packed by cupy on CUDA devices, or by an extension for XPUs: there is nothing for the "
        "CPU accelerator",
        changes=uncompressed(setup),
        advice="choose another optimizer.type, such as AdamW",
    )


@rule("runtime/zero/mics_utils.py of 0.19.6: _generate_mics_config")
def _mics_groups(setup: Setup) -> Finding | None:
    size = _shard_size(setup)
    if setup.stage != 3 or not size or setup.world % size == 0:
        return None
    below = max(n for n in range(1, min(size, setup.world) + 1) if setup.world % n == 0)
    return Finding(
        message=f"zero_optimization.mics_shard_size={size} does not divide the world: "
        f"{setup.world} % {size} = {setup.world % size}",
        changes=zero(mics_shard_size=None if setup.accelerator == "cpu" else below),
    )


@rule("runtime/zero/mics.py of 0.19.6: _flat_all_gather_with_coalescing_manager")
def _mics_needs_cuda(setup: Setup) -> Finding | None:
    size = _shard_size(setup)
    if setup.accelerator != "cpu" or setup.stage != 3 or not size or _mics_groups.check(setup):
        return None
    return Finding(
        message=f"zero_optimization.mics_shard_size={size} on CPU ranks: it gathers parameters by "
        "coalesced calls, which gloo has not",
        changes=zero(mics_shard_size=None),
    )


@rule(
    "runtime/engine.py of 0.19.6: _configure_zero_optimizer asks at stage 3 alone",
    consequence="ignored",
)
def _mics_stage(setup: Setup) -> Finding | None:
    size = _shard_size(setup)
    if setup.stage == 3 or not size:
        return None
    return Finding(
        message=f"zero_optimization.mics_shard_size={size} at stage {setup.stage}: MiCS is a form "
        "of stage 3",
        changes=zero(mics_shard_size=None),
    )


@rule("runtime/zero/mics.py of 0.19.6: allreduce_mics_shard_grads")
def _mics_with_offload(setup: Setup) -> Finding | None:
    size = _shard_size(setup)
    if setup.stage != 3 or not size or size >= setup.world or setup.accelerator == "cpu":
        return None
    if setup.optimizer_offload == "none":
        return None
    return Finding(
        message=f"zero_optimization.mics_shard_size={size} with offload_optimizer: groups reduce "
        "gradients among each other on the device alone",
        changes=zero(offload_optimizer=None),
    )


@rule("runtime/zero/mics_utils.py of 0.19.6: create_mics_comm_groups")
def _mics_hierarchy(setup: Setup) -> Finding | None:
    size, devices = _shard_size(setup), setup.environment.n_devices
    asked = setup.zero.get("mics_hierarchical_params_gather") is True
    # A CPU counts its devices in another way: by sockets, or by LOCAL_SIZE.
    if not asked or not size or not devices or setup.stage != 3 or setup.accelerator == "cpu":
        return None
    if size // devices > 1:
        return None
    return Finding(
        message=f"zero_optimization.mics_hierarchical_params_gather=true with mics_shard_size="
        f"{size}: a group of {size} ranks is within one node of {devices} devices",
        changes=zero(mics_hierarchical_params_gather=None),
    )


@rule("runtime/zero/stage3.py of 0.19.7: __avg_scatter_grads", consequence="ignored")
def _loco_alone(setup: Setup) -> Finding | None:
    if not setup.zero.get("zeropp_loco_param") or setup.is_at_least(_LOCO_REMOVED_IN):
        return None
    if _quantizes_gradients(setup):
        return None
    return Finding(
        message="zero_optimization.zeropp_loco_param without zero_quantized_gradients at stage 3: "
        "it carries the errors of these",
        changes=zero(zeropp_loco_param=None),
    )


@rule("runtime/comm/coalesced_collectives.py of 0.19.7: all_to_all_loco_quant_reduce")
def _loco_keys(setup: Setup) -> Finding | None:
    given = setup.zero.get("zeropp_loco_param")
    if given is None or setup.is_at_least(_LOCO_REMOVED_IN) or not _quantizes_gradients(setup):
        return None
    missing = {name: value for name, value in _LOCO.items() if name not in as_section(given)}
    if not missing:
        return None
    return Finding(
        message=f"zero_optimization.zeropp_loco_param without {' and '.join(missing)}",
        changes=zero(zeropp_loco_param=missing),
    )


@rule("compression/config.py of 0.19.6: get_weight_quantization")
def _rounded_groups(setup: Setup) -> Finding | None:
    section = _rounding(setup)
    if not section or section.get("different_groups") is not None:
        return None
    return Finding(
        message="compression_training.weight_quantization without different_groups, which name "
        "the modules and their bits",
        advice="add different_groups, or set shared_parameters.enabled to false",
    )


@rule("runtime/engine.py of 0.19.6: _configure_quantization")
def _rounded_in_the_step(setup: Setup) -> Finding | None:
    shared = as_section(_rounding(setup).get("shared_parameters"))
    if not shared or setup.dtype == "fp16" or _rounded_groups.check(setup):
        return None
    if shared.get("quantize_weight_in_forward") is True:
        return None
    return Finding(
        message="compression_training.weight_quantization without quantize_weight_in_forward "
        f"rounds in the optimizer step, which DeepSpeed {setup.version} does in fp16 alone",
        changes={
            "compression_training": {
                "weight_quantization": {"shared_parameters": {"quantize_weight_in_forward": True}}
            }
        },
    )


def _quantizes_gradients(setup: Setup) -> bool:
    return setup.stage == 3 and setup.zero.get("zero_quantized_gradients") is True


def _shard_size(setup: Setup) -> int:
    """Ranks of a group of MiCS; 0: it is off, or the release has none."""
    size = setup.zero.get("mics_shard_size")
    if type(size) is not int or setup.is_at_least(_MICS_REMOVED_IN):
        return 0
    return max(0, size)


def _rounding(setup: Setup) -> Any:
    """The section of rounded weights; empty where it is off, or the release has none."""
    if setup.is_at_least(_LIBRARY_REMOVED_IN):
        return {}
    section = as_section(setup.section("compression_training").get("weight_quantization"))
    is_on = as_section(section.get("shared_parameters")).get("enabled") is True
    return section if is_on else {}
