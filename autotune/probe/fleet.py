"""Measure the nodes of a fleet together, each started by its transport."""

import json
import random
import secrets
from collections.abc import Sequence
from pathlib import Path

from autotune.base.errors import FleetError
from autotune.fleet.node.ports import PORTS
from autotune.fleet.transports.base import Node
from autotune.fleet.transports.remote import RemoteTransport
from autotune.probe.node import MARK, told_by
from autotune.probe.run import TIMEOUT_S, Told

_NODE = "autotune.probe.node"
_MEET_S = 120.0
"""Time for the nodes to find each other, beside that for measuring."""


def ranks_of_each(nodes: Sequence[Node], n_devices: int) -> int:
    """Ranks that each node can start, a device each; slots may share one."""
    return min(n_devices, min(len({*node.devices}) for node in nodes))


def measure_fleet(
    transport: RemoteTransport,
    *,
    world: int,
    disk: Path | None = None,
    is_quick: bool = False,
    only_pairs: bool = False,
) -> Told:
    """What the ranks of all nodes measured.

    Args:
        transport: The way to the nodes.
        world: Ranks of each node.
        disk: See `autotune.probe.run.measure`, as for the two after it.
        is_quick: See there.
        only_pairs: See there.

    Raises:
        FleetError: No node answers, or one could not measure: it is named.
    """
    nodes = transport.nodes()
    names = [node.name for node in nodes]
    first = nodes[0].address
    host = f"[{first}]" if ":" in first else first
    asked = {
        "count": len(nodes),
        "master": f"{host}:{random.choice(PORTS)}",
        "world": world,
        "disk": None if disk is None else str(disk),
        "quick": is_quick,
        "only_pairs": only_pairs,
    }
    token = f"{secrets.token_hex(16)}\n".encode()

    def measure(name: str) -> Told | FleetError | None:
        said = json.dumps({**asked, "rank": names.index(name)})
        try:
            line = transport.ask(
                name, _NODE, MARK, said, data=token, timeout_s=TIMEOUT_S + _MEET_S
            )
            return told_by(line)
        except FleetError as error:
            return error
        except ValueError as error:
            return FleetError(str(error))

    answers = transport.ask_all(names, measure)
    failed = {name: each for name, each in answers.items() if isinstance(each, FleetError)}
    told = answers[names[0]]
    if failed or not isinstance(told, Told):
        why = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
        hint = next((error.hint for error in failed.values() if error.hint), "")
        raise FleetError(why or f"{names[0]}: no figures came", hint)
    return told
