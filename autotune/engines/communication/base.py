"""The communication of a run, as its rules judge it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from autotune.base.errors import FleetError

if TYPE_CHECKING:
    from autotune.devices.accelerators import Accelerator
    from autotune.devices.hardware import Environment
    from autotune.space.candidate import Candidate
    from autotune.space.knob import Knobs

LOOPBACK = "lo"
"""Interface that the fleet names where all ranks are on one node."""
LIBRARIES = ("nccl", "gloo")
"""First parts of the knobs' names."""
_MOST_BY_BRIDGES = 4
"""Most devices that NVLink joins without switches (H200 NVL)."""


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Knobs of NCCL and gloo that act, and what decides whether they are legal."""

    values: "Knobs"
    world: int
    n_devices: int
    """Devices of one node."""
    tp: int = 1
    dp: int = 1
    sp: int = 1
    nccl: str = ""
    """Release of NCCL; empty where unknown."""
    lacks_nvls: bool = False
    """True if the devices are known to be of a kind without NVLink SHARP."""

    @classmethod
    def of(
        cls, candidate: "Candidate", environment: "Environment", table: "Sequence[Accelerator]"
    ) -> Self | None:
        """The communication of a candidate; None where it leaves all to the libraries."""
        values = {
            name: value
            for name, value in candidate.values.items()
            if name.partition(".")[0] in LIBRARIES
        }
        if not values:
            return None
        return cls(
            values=values,
            world=candidate.world,
            n_devices=environment.n_devices,
            tp=candidate.tp,
            dp=candidate.dp,
            sp=candidate.sp,
            nccl=environment.nccl,
            lacks_nvls=_lacks_nvls(environment, table),
        )

    @property
    def n_nodes(self) -> int:
        return -(-self.world // max(1, self.n_devices))

    @property
    def sharing(self) -> tuple[int, int]:
        """The ranks that share parameters: how many there are, and how many are on one node."""
        size = self.dp * self.sp
        return size, self._on_a_node(size, self.tp)

    @property
    def fewest_on_a_node(self) -> int:
        """Ranks on one node of whichever group has the fewest there."""
        groups = ((self.world, 1), (self.tp, 1), (self.sp, self.tp), (self.dp, self.tp * self.sp))
        return min(self._on_a_node(size, step) for size, step in groups if size > 1)

    def _on_a_node(self, size: int, step: int) -> int:
        """Ranks of a group that are on one node, each `step` ranks from the next."""
        return min(size, max(1, self.n_devices // step))


def _lacks_nvls(environment: "Environment", table: "Sequence[Accelerator]") -> bool:
    """True for devices that are known to lack NVLink SHARP, which takes Hopper behind NVSwitch.

    Source: NVIDIA/nccl, docs/userguide/source/env.rst, NCCL_NVLS_ENABLE. Of those in the table
    that have fp8, only those generations are joined in more than pairs.
    """
    from autotune.devices.accelerators import find_accelerator  # its table needs pydantic

    try:
        device = find_accelerator(
            environment.device_name,
            memory_gib=environment.device_memory_bytes / 2**30,
            table=table,
        )
    except FleetError:
        return False
    return "fp8" not in device.peak_flops or device.nvlink_domain < _MOST_BY_BRIDGES
