"""Measure the nodes of a fleet together, each started by its transport."""

import dataclasses
import json
import random
import time
from collections.abc import Sequence

from autotune.base.errors import FleetError
from autotune.fleet.measuring import ALONE, Meeting
from autotune.fleet.node.ports import PORTS
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.remote import RemoteTransport
from autotune.probe.node import TIMEOUT_S, ProbePart
from autotune.probe.run import Measured, ProbeRequest

_NODE = "autotune.probe.node"
_START_S = 60.0
"""Time for a node to begin and to answer, beside that of its ranks."""
_OTHERS_WAIT_S = 5.0
"""Time for the other nodes to say why they failed, once one of them has: the cause may be
theirs."""


def ranks_of_each(nodes: Sequence[Node], n_devices: int) -> int:
    """Ranks that each node can start, a device each; slots may share one."""
    return min(n_devices, min(len({*node.devices}) for node in nodes))


def measure_fleet(transport: RemoteTransport, wanted: ProbeRequest, *, world: int) -> Measured:
    """What `world` ranks of each node measured, with those of the other nodes.

    Raises:
        FleetError: No node answers, or one could not measure: it is named.
    """
    nodes = {node.name: node for node in transport.nodes()}
    names = list(nodes)
    port = random.choice(PORTS)
    failed: dict[str, FleetError] = {}
    ends_at_s: list[float] = []
    """Once a node has failed: when the others are ended, which would wait for it."""

    def measure(name: str) -> Measured | None:
        meeting = ALONE
        if len(nodes) > 1:
            meeting = Meeting(
                node=names.index(name),
                n_nodes=len(nodes),
                address=nodes[names[0]].address,
                interface=nodes[name].interface,
                port=port,
            )
        part = ProbePart(wanted=wanted, world=world, meeting=meeting)
        try:
            return transport.ask(
                name,
                Measured,
                _NODE,
                json.dumps(dataclasses.asdict(part)),
                timeout_s=TIMEOUT_S + _START_S,
                is_over=lambda: bool(ends_at_s) and time.monotonic() > ends_at_s[0],
            )
        except FleetError as error:
            if not ends_at_s or time.monotonic() < ends_at_s[0]:
                failed[name] = error
            ends_at_s.append(time.monotonic() + _OTHERS_WAIT_S)
            return None

    answers = [answer for answer in transport.ask_all(names, measure).values() if answer]
    if failed:
        why = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
        raise FleetError(why, next((error.hint for error in failed.values() if error.hint), ""))
    return Measured(
        reports=[report for answer in answers for report in answer.reports],
        wall_s=max(answer.wall_s for answer in answers),
    )
