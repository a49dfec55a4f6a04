"""What an accelerator and its node put into the columns of `Plans`."""

from autotune.accelerators import Accelerator


def device_columns(accelerator: Accelerator, precision: str, per_node: float) -> dict[str, float]:
    """The columns of the device and its links, as the table has them.

    Args:
        accelerator: Its entry.
        precision: Of the layers.
        per_node: Devices of one node.

    Raises:
        FleetError: There are no figures for that precision.
    """
    link_bytes_per_s, domain = accelerator.links(per_node)
    return {
        "matmul_flops": accelerator.rate(precision),
        "half_flops": accelerator.rate("fp32" if precision == "fp32" else accelerator.half),
        "sustained_share": accelerator.sustained_share,
        "memory_bytes": accelerator.memory_bytes,
        "memory_bytes_per_s": accelerator.memory_bytes_per_s,
        "nvlink_bytes_per_s": link_bytes_per_s,
        "network_bytes_per_s": accelerator.network_bytes_per_s,
        "host_bytes_per_s": accelerator.host_bytes_per_s,
        "nvlink_domain": domain,
        "devices_per_node": per_node,
    }
