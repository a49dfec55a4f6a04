"""Rules about gloo."""

from autotune.engines.communication.base import LOOPBACK, Communication
from autotune.space.rule import Finding, rule


@rule("torch: ProcessGroupGloo.cpp, createDeviceForInterface")
def _loopback(run: Communication) -> Finding | None:
    """The loopback interface leads to no other node."""
    named = str(run.values.get("gloo.interfaces", ""))
    if LOOPBACK not in named.split(",") or run.n_nodes == 1:
        return None
    return Finding(
        message=f"gloo.interfaces={named}: {LOOPBACK} leads to no other node, and there are "
        f"{run.n_nodes}",
        at=("gloo.interfaces",),
        advice="name an interface that all nodes have towards each other",
    )
