"""The network between nodes: which of them share a switch, and what lies between the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from autotune.base.errors import JobError
from autotune.base.names import did_you_mean
from autotune.base.text import shortened
from autotune.base.units import parse_latency
from autotune.contract import is_count


class FabricKind(StrEnum):
    """How the switches of a network are joined."""

    FAT_TREE = "fat-tree"
    """Nodes under leaf switches, leaves under spines. Source: Leiserson (IEEE Transactions on
    Computers C-34, 1985); Al-Fares et al. (SIGCOMM 2008)."""
    DRAGONFLY = "dragonfly"
    """Groups whose switches are all joined, and a link between every two groups. Source: Kim et
    al., Technology-Driven, Highly-Scalable Dragonfly Topology (ISCA 2008)."""
    RAIL_OPTIMIZED = "rail-optimized"
    """A fat tree with a leaf per network card: card i of every node is under leaf i. Source:
    NVIDIA, Doubling all2all Performance with NCCL 2.12 (2022)."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """A network between nodes, as somebody describes it."""

    kind: FabricKind = FabricKind.FAT_TREE
    nodes_per_group: int = 1
    """Nodes that reach each other at full rate: those under one leaf, on one set of rail switches,
    in one group of a dragonfly. 1: any two may lie apart."""
    oversubscription: float = 1.0
    """Bandwidth of a group's nodes over that of all links that leave the group; 1: full."""
    rails: int = 0
    """Network cards of a node; 0: one per device."""
    hop_s: float = 3e-7
    """Latency of one more switch on the way, with its cable. Source of the default: NVIDIA QM8700
    datasheet, 130 ns from port to port, and 5 ns per metre of cable; Ethernet takes longer."""

    def columns(self) -> dict[str, float]:
        """The columns of `Plans` that say this of the network."""
        # Switches beyond the first. A fat tree: one leaf in a group; leaf, spine, leaf across.
        # A dragonfly: the switch of each node in a group; across, the switch of each node and each
        # end of the link between the groups, by the shortest way (Kim et al., section 4.1).
        inside, across = (1, 3) if self.kind is FabricKind.DRAGONFLY else (0, 2)
        return {
            "fabric_nodes": float(self.nodes_per_group),
            "oversubscription": self.oversubscription,
            "rails": float(self.rails),
            "rail_optimized": float(self.kind is FabricKind.RAIL_OPTIMIZED),
            "inside_hop_s": inside * self.hop_s,
            "across_hop_s": across * self.hop_s,
        }

    def spelled(self) -> str:
        """As `parse_topology` reads it: `fat-tree,nodes_per_group=16,oversubscription=4`."""
        kind, *others = self.shape().items()
        return ",".join((kind[1], *(f"{key}={value}" for key, value in others)))

    def shape(self) -> dict[str, str]:
        """The kind, and every key that is not at its default, as `parse_topology` reads them."""
        shape = {"kind": str(self.kind)}
        for key in _READERS:
            value = getattr(self, _FIELDS.get(key, key))
            if value != getattr(Topology, _FIELDS.get(key, key)):
                shape[key] = f"{value * 1e9:g}ns" if key == "hop" else f"{value:g}"
        return shape


def parse_topology(value: Any, *, where: str = "network_topology") -> Topology:
    """Read a description of a network.

    Raises:
        JobError: There is no such kind or key, or a value is not allowed.
    """
    if isinstance(value, Topology):
        return value
    shape = _mapping(value, where)
    found: dict[str, Any] = {}
    for key, given in shape.items():
        if key == "kind":
            found["kind"] = _kind(given, where)
        elif key in _READERS:
            found[_FIELDS.get(key, key)] = _READERS[key](given, f"{where}: {key}")
        else:
            raise JobError(f"{where}: {_shown(key)}: there is no such key", _meant(key, _KEYS))
    return Topology(**found)


def changed(topology: Topology, key: str, value: str, *, where: str) -> Topology:
    """A network with one key otherwise; `kind` is a key as well.

    Raises:
        JobError: There is no such key, or the value is not allowed.
    """
    return parse_topology({**topology.shape(), key: value}, where=where)


def parse_oversubscription(value: Any, where: str) -> float:
    """Read a ratio of at least 1.

    Raises:
        JobError: It is not one.
    """
    try:
        ratio = float("nan") if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        ratio = float("nan")
    if not 1.0 <= ratio <= _MOST_RATIO:
        shown = _shown(value)
        raise JobError.of("devices.no_ratio", where=where, shown=shown, most=_MOST_RATIO)
    return ratio


_MOST_RATIO = 1000.0
_MOST_NODES = 1_000_000
_MOST_RAILS = 256


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, str) or not value.strip():
        raise JobError(f"{where}: {_shown(value)} is not a network", _HOW)
    kind, *rest = (part.strip() for part in value.split(","))
    if "=" in kind:  # the kind is left out
        kind, rest = "", [kind, *rest]
    shape: dict[Any, Any] = {"kind": kind} if kind else {}
    for part in rest:
        key, equals, given = (word.strip() for word in part.partition("="))
        if not equals or not given:
            raise JobError(f"{where}: {_shown(part)} is no KEY=VALUE", _HOW)
        if key in shape:
            raise JobError(f"{where}: {_shown(key)} stands there twice", "write it once")
        shape[key] = given
    return shape


def _kind(value: Any, where: str) -> FabricKind:
    if value not in list(FabricKind):
        meant = _meant(value, list(FabricKind))
        raise JobError.of("devices.no_kind", where=where, shown=_shown(value), meant=meant)
    return FabricKind(value)


def _counted(value: Any, where: str, of: str, most: int) -> int:
    text = "" if isinstance(value, bool) else str(value)
    if not is_count(text) or not 1 <= int(text) <= most:
        known = {"shown": _shown(value), "most": most, "of": of}
        raise JobError.of("devices.no_count", where=where, **known)
    return int(text)


def _meant(value: Any, known: Sequence[str]) -> str:
    return did_you_mean(str(value), known, most=1) + f"known: {', '.join(known)}"


def _shown(value: Any) -> str:
    return shortened(repr(value) if not isinstance(value, str) else value)


_READERS: Mapping[str, Callable[[Any, str], Any]] = {
    "nodes_per_group": lambda value, where: _counted(
        value, where, "nodes under one leaf switch, or in one group", _MOST_NODES
    ),
    "oversubscription": parse_oversubscription,
    "rails": lambda value, where: _counted(value, where, "network cards of one node", _MOST_RAILS),
    "hop": lambda value, where: parse_latency(str(value), where=where),
}
"""Key of a description, beside `kind` -> what reads its value."""
_FIELDS = {"hop": "hop_s"}
"""Field of a key, where it is not called the same."""
_KEYS = ["kind", *_READERS]
TOPOLOGY_KEYS = tuple(_READERS)
"""Keys of a description, beside `kind`."""
_HOW = (
    "write it as fat-tree,nodes_per_group=16,oversubscription=4; kinds: "
    + ", ".join(FabricKind)
    + f"; keys: {', '.join(_READERS)}"
)
