"""Every rule about NCCL and gloo, for whichever engine: a row each of `rules.json`.

A row refuses those of its `knobs` with which `when` holds (`autotune.base.terms`): of each `value`
is its own and `ranks` are those of its collective on a node; other names are facts of the run. In
its texts `{listed}` is these knobs with their values. Those about NCCL are read off NVIDIA/nccl,
2.21 to 2.30; none has a witness, since NCCL runs on GPUs alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from autotune.base.data import table_beside
from autotune.base.errors import FleetError
from autotune.base.terms import filled
from autotune.engines.releases import is_at_least
from autotune.space.rule import Finding, Rule, holds

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


_MOST_SOCKETS = 64


def _facts(run: Communication) -> dict[str, Any]:
    values, (size, here) = run.values, run.sharing
    # Where the release is unknown, pairs may have NVLink SHARP.
    is_old = not is_at_least(run.nccl, "2.29")
    buffer_bytes = int(values.get("nccl.buffer_bytes", 1))
    n = {
        f"nccl.{end}_channels": int(values.get(f"nccl.{end}_channels", 0))
        for end in ("min", "max")
    }
    threads = int(values.get("nccl.socket_threads", 0))
    return {
        **values,
        **n,
        "nccl": run.nccl,
        "has_lists": is_at_least(run.nccl, "2.24"),
        "lacks_nvls": run.lacks_nvls,
        "size": size,
        "here": here,
        "n_nodes": run.n_nodes,
        "least_ranks": 3 if is_old else 2,
        "in_nccl": f" in NCCL {run.nccl}" if is_old else "",
        "channels": 64 if is_at_least(run.nccl, "2.25") else 32,
        "sockets": threads * int(values.get("nccl.sockets_per_thread", 0)),
        "fitting_sockets": _MOST_SOCKETS // max(1, threads),
        "power": 1 << (buffer_bytes.bit_length() - 1),
        "names_loopback": LOOPBACK in str(values.get("gloo.interfaces", "")).split(","),
    }


def _check(row: Mapping[str, Any], run: Communication) -> Finding | None:
    facts, ranks = _facts(run), dict[str, int]()
    for name in filter(run.values.__contains__, row["knobs"]):
        whole = name == "nccl.all_reduce" and run.world > 1
        ranks[name] = run.fewest_on_a_node if whole else facts["here"]
        known = {**facts, "value": run.values[name], "ranks": ranks[name]}
        if not holds(row["when"], known.get):
            del ranks[name]
    if not ranks:
        return None
    facts["listed"] = ", ".join(f"{name}={run.values[name]}" for name in ranks)
    facts |= {"names": " and ".join(ranks), "fewest": min(ranks.values())}
    message, fix = (filled(row[text], facts.__getitem__) for text in ("message", "fix"))
    return Finding(message=message, at=(*ranks, *row.get("also", ())), advice=fix)


RULES: tuple[Rule[Communication], ...] = tuple(
    Rule(name=name, check=partial(_check, row), source=row["source"], says=row["says"])
    for name, row in table_beside(__file__, "rules.json").items()
)
"""In the order in which they are asked."""
