"""Devices that a launch leaves visible, against the ranks that it starts on a node."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "ASCEND_RT_VISIBLE_DEVICES",
)
_DEVICES = re.compile(r"(?:\d+|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d+|(?:GPU|MIG)-[\w/-]+))*")


@dataclass(frozen=True, kw_only=True)
class VisibleDevices:
    """The devices of a node that the ranks of a launch see."""

    source: str
    """The variable, the flag or the field."""
    names: str

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.names.split(","))


def visible_devices(*places: Mapping[str, Any]) -> VisibleDevices | None:
    """The devices that flags of accelerate, variables or its YAML leave; the first place counts.

    None: all, or only the shell knows. None at all, as `""`, is meant for CPUs.
    """
    for place in places:
        for name in ("gpu_ids", *_VARIABLES):
            names = str(place.get(name, "")).replace(" ", "").strip(",")
            if _DEVICES.fullmatch(names):
                return VisibleDevices(source=name, names=names)
    return None


def too_few(visible: VisibleDevices | None, per_node: int | None) -> tuple[str, str] | None:
    """What is wrong and the fix, where a node has fewer devices than ranks."""
    if visible is None or per_node is None or per_node <= visible.count:
        return None
    first = visible.count
    ranks = f"rank {first} ends" if first == per_node - 1 else f"ranks from {first} on end"
    return (
        f"{visible.source}={visible.names} leaves {first} of a node's devices visible, and the "
        f"line starts {per_node} ranks on it: {ranks} with an invalid device ordinal",
        f"start {first} ranks a node, or make {per_node} devices visible",
    )
