"""Devices that a launch leaves visible, against the ranks that it starts on a node."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.space.rule import Violation

_VARIABLES = (
    *("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
    "ASCEND_RT_VISIBLE_DEVICES",
)
_DEVICES = re.compile(r"(?:\d+|(?:GPU|MIG)-[\w/-]+)(?:,(?:\d+|(?:GPU|MIG)-[\w/-]+))*")
_FILTERS = ("include", "exclude")
_COUNTS = ("num_gpus", "num_nodes")
"""Flags of DeepSpeed's launcher that name devices, and that count them."""


@dataclass(frozen=True, kw_only=True)
class VisibleDevices:
    """The devices of a node that the ranks of a launch see."""

    told_by: str
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
                return VisibleDevices(told_by=name, names=names)
    return None


def too_few(visible: VisibleDevices | None, per_node: int | None) -> tuple[str, str] | None:
    """What is wrong and the fix, where a node has fewer devices than ranks."""
    if visible is None or per_node is None or per_node <= visible.count:
        return None
    first = visible.count
    ranks = f"rank {first} ends" if first == per_node - 1 else f"ranks from {first} on end"
    return (
        f"{visible.told_by}={visible.names} leaves {first} of a node's devices visible, and the "
        f"line starts {per_node} ranks on it: {ranks} with an invalid device ordinal",
        f"start {first} ranks a node, or make {per_node} devices visible",
    )


def device_violations(
    kind: str, flags: Sequence[str], visible: VisibleDevices | None, per_node: int | None
) -> Iterator[Violation]:
    """What a launcher does with devices that are named and counted in two places.

    Args:
        kind: The launcher.
        flags: Names of its flags.
        visible: What variables or accelerate leave visible.
        per_node: Ranks of a node.
    """
    if kind != "deepspeed":
        if (found := too_few(visible, per_node)) is not None:
            message, fix = found
            yield Violation(rule="file.visible_devices", message=message, fix=fix)
        return
    # launcher/runner.py, main: it takes the variable away before it starts ranks.
    filters, counts = ([name for name in names if name in flags] for names in (_FILTERS, _COUNTS))
    if filters and counts:
        yield Violation(
            rule="file.visible_devices",
            message=f"--{filters[0]} names devices and --{counts[0]} counts them: DeepSpeed's "
            "launcher refuses the two together",
            fix=f"leave --{counts[0]} out",
        )
    elif visible is not None and (filters or "num_gpus" in flags):
        flag = (filters or counts)[0]
        yield Violation(
            rule="file.visible_devices",
            message=f"{visible.told_by}={visible.names} beside --{flag}: DeepSpeed's launcher "
            "ignores the variable, and takes the devices from the first on",
            fix=f"leave --{flag} out, or name the devices with --include "
            f"localhost:{visible.names} alone",
            consequence="ignored",
        )
