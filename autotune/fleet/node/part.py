"""What a fleet asks of a node for one trial."""

from dataclasses import dataclass, field

from autotune.trial.launcher import LOOPBACK


@dataclass(frozen=True, kw_only=True)
class NodePart:
    """A trial's ranks on one node of its gang; the trial's folder holds its spec and files."""

    folder: str
    """Absolute."""
    devices: list[str]
    """Devices, one per rank: UUIDs of GPUs, or numbers of cores."""
    node: int = 0
    """This node's place in the gang."""
    n_nodes: int = 1
    address: str = LOOPBACK
    """Address of the gang's first node, where the ranks find one another."""
    interface: str = "lo"
    """Network interface by which the ranks here reach the others."""
    port: int | None = None
    """Where they meet; None: the first node leases it."""
    n_sharing: int = 1
    """Ranks of the job on this node, which share its cores; where a reduced trial has fewer, each
    still gets no more of them."""
    capacity_bytes: int = 0
    """Memory of a CPU rank; 0: a GPU knows its own."""
    submitted_at_s: float = 0.0
    """Wall-clock time (Unix)."""
    variables: dict[str, str] = field(default_factory=dict)
    """Environment variables of the coordinator that the ranks get, before the node's own."""
