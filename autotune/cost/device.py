"""Columns of `Plans` that describe an accelerator and its node."""

from typing import Literal

from autotune.cost.plans import HOST_MEMORY_BYTES_PER_S, NVME_BYTES_PER_S, PAGE_BYTES
from autotune.devices.accelerators import Accelerator
from autotune.devices.probed import AttentionRates, MeasuredLink, MeasuredRates

STREAM_SHARE = 0.9
"""Share of a datasheet's memory bandwidth that a stream reaches on a healthy device. The model's
constants are shares of the datasheet's bandwidth, so the rate of a probe's stream is divided by
this share first. Source: Deakin et al., BabelStream (IJCSE 17, 2018), which finds streams near it
on GPUs of several vendors."""
LinkName = Literal["nvlink", "network"]
"""Link between the devices of a node, and between nodes."""

_C2C_BYTES_PER_S = 200e9
"""A link to the host this fast is one to a CPU in the same package, not PCIe."""
_FP4_KEPT_SHARE = 0.15
"""Share of the linear layers that stay in bf16 where the others are in fp4."""

_UNMEASURED_ATTENTION = AttentionRates(forward_flops_per_s=0.0, backward_flops_per_s=0.0)


def device_columns(accelerator: Accelerator, precision: str, per_node: float) -> dict[str, float]:
    """The columns of the device and its links: what was measured, else as the table has them.

    Raises:
        JobError: There are no figures for that precision.
    """
    link_bytes_per_s, domain = accelerator.links(per_node)
    found = accelerator.measured or MeasuredRates()
    attention = found.attention.get(precision, _UNMEASURED_ATTENTION)
    wide = "fp32" if precision == "fp32" else accelerator.half
    powered = accelerator.powered_share(wide)
    held = accelerator.rate(precision) * accelerator.powered_share(precision)
    return {
        # `sustained_share` holds for both, and narrow products take less power.
        "matmul_flops": held / powered,
        "half_flops": accelerator.rate(wide),
        "sustained_share": accelerator.sustained_share * powered,
        "exponential_speed": accelerator.exponential_speed,
        "memory_bytes": accelerator.memory_bytes,
        "memory_bytes_per_s": _streamed(found.memory_bytes_per_s)
        or accelerator.memory_bytes_per_s,
        "cached_bytes_per_s": _streamed(found.cached_bytes_per_s),
        "cache_bytes": found.cache_bytes or 0.0,
        "page_s": _clearing(found),
        "operand_elements_per_s": found.operand_elements_per_s.get(precision, 0.0),
        "nvlink_bytes_per_s": link_bytes_per_s,
        "network_bytes_per_s": accelerator.network_bytes_per_s,
        **link_columns("nvlink", found.link),
        **link_columns("network", found.network),
        "host_bytes_per_s": found.host_bytes_per_s or accelerator.host_bytes_per_s,
        "host_link_measured": float(found.host_bytes_per_s is not None),
        "host_memory_bytes_per_s": _host_memory_bytes_per_s(accelerator, per_node),
        "nvme_bytes_per_s": found.nvme_bytes_per_s or NVME_BYTES_PER_S,
        "layer_host_s": found.layer_s or 0.0,
        "attention_forward_flops": attention.forward_flops_per_s,
        "attention_backward_flops": attention.backward_flops_per_s,
        "logit_s": found.logit_s.get(precision, 0.0),
        "nvlink_domain": domain,
        "devices_per_node": per_node,
    }


def _host_memory_bytes_per_s(accelerator: Accelerator, per_node: float) -> float:
    """Rate of a node's own memory: what a probe measured, else its peak.

    Devices with a CPU of their own (NVLink-C2C) bring their share of it.
    """
    if accelerator.measured is not None and accelerator.measured.host_memory_bytes_per_s:
        return accelerator.measured.host_memory_bytes_per_s
    whole = accelerator.host_memory_bytes_per_s or HOST_MEMORY_BYTES_PER_S
    brings_own = accelerator.host_bytes_per_s >= _C2C_BYTES_PER_S
    return whole * (per_node / accelerator.devices_per_node if brings_own else 1.0)


def fp4_flops(narrow_flops: float, wide_flops: float) -> float:
    """Rate of a model's products in fp4, of which some layers stay in bf16.

    Source: NVIDIA, Pretraining Large Language Models with NVFP4 (arXiv:2509.25149).
    """
    return 1.0 / ((1.0 - _FP4_KEPT_SHARE) / narrow_flops + _FP4_KEPT_SHARE / wide_flops)


def link_columns(name: LinkName, found: MeasuredLink | None) -> dict[str, float]:
    """The columns of a link that a probe can fill.

    Without one the rate is what a datasheet or a person promises, and stays as it is.
    """
    link = found or MeasuredLink(bytes_per_s=0.0)
    columns = {
        f"{name}_measured": float(found is not None),
        f"{name}_latency_s": link.latency_s or 0.0,
        f"{name}_all_reduce_speed": link.all_reduce_speed,
        f"{name}_all_to_all_speed": link.all_to_all_speed,
        f"{name}_send_speed": link.send_speed,
        f"{name}_all_reduce_latency_s": link.all_reduce_latency_s or 0.0,
    }
    return columns if found is None else {**columns, f"{name}_bytes_per_s": link.bytes_per_s}


def _clearing(found: MeasuredRates) -> float:
    """Seconds to clear a page: what a stream into new ones takes longer; 0: not known.

    A third of the bytes that a stream moves is its result, which lies in new pages.
    """
    if found.memory_bytes_per_s is None or found.fresh_bytes_per_s is None:
        return 0.0
    longer_s = 1.0 / found.fresh_bytes_per_s - 1.0 / found.memory_bytes_per_s
    return max(0.0, 3.0 * PAGE_BYTES * longer_s)


def _streamed(reached: float | None) -> float:
    """The datasheet's rate of a memory whose stream reaches this; 0 where nobody measured it."""
    return 0.0 if reached is None else reached / STREAM_SHARE
