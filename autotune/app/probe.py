"""Measure this machine or a fleet, and write the file that predictions read."""

import json
import random
import secrets
from collections.abc import Callable
from pathlib import Path

from autotune.app.session import CPU_WORLD
from autotune.base.errors import FleetError
from autotune.devices.hardware import detect_environment
from autotune.fleet.node.ports import PORTS
from autotune.fleet.transports.remote import Elsewhere, ask_each
from autotune.probe.hardware_file import check_writable
from autotune.probe.node import MARK, told_by
from autotune.probe.nodes import Nodes
from autotune.probe.run import TIMEOUT_S, Probe, Told, probe_of, run_probe

_NODE = "autotune.probe.node"
_MEET_S = 120.0
"""Time for the nodes to find each other, beside that for measuring."""


def probe_machine(
    out: Path, *, world: int | None, nodes: Nodes | None, disk: Path | None, is_quick: bool
) -> Probe | None:
    """Probe, once it is sure that the file can be written; of several nodes the first has figures.

    Args:
        out: The file.
        world: Devices to measure here; None: those that a search takes where nobody says.
        nodes: See `run_probe`, as for `disk` and `is_quick`.
        disk: See there.
        is_quick: See there.

    Raises:
        JobError: The file cannot be written, or a value is not one.
        FleetError: As `run_probe`.
    """
    if nodes is None or nodes.rank == 0:
        check_writable(out)
    environment = detect_environment()
    if world is None:
        n = environment.n_devices
        world = n if environment.accelerator == "cuda" else min(n, CPU_WORLD)
    return run_probe(environment, world=world, nodes=nodes, disk=disk, is_quick=is_quick)


def probe_fleet(
    out: Path,
    place: Elsewhere,
    *,
    world: int | None,
    disk: Path | None,
    is_quick: bool,
    note: Callable[[str], None],
) -> Probe:
    """Probe the nodes of a fleet together, each started by its transport.

    Args:
        out: The file, on this machine.
        place: The fleet.
        world: Devices to measure on each node; None: all its slots.
        disk: A folder of the nodes whose disk is measured too.
        is_quick: See `run_probe`.
        note: Told which nodes are left out.

    Raises:
        JobError: The file cannot be written.
        FleetError: No node answers, they differ, or one could not measure: it is named.
    """
    check_writable(out)
    environment, transport = place.environment, place.transport
    for problem in transport.problems():
        note(problem)
    nodes = transport.nodes()
    names = [node.name for node in nodes]
    n_ranks = world or min(environment.n_devices, min(len({*node.devices}) for node in nodes))
    first = nodes[0].address
    host = f"[{first}]" if ":" in first else first
    asked = {
        "count": len(nodes),
        "master": f"{host}:{random.choice(PORTS)}",
        "world": n_ranks,
        "disk": None if disk is None else str(disk),
        "quick": is_quick,
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

    answers = ask_each(names, measure)
    failed = {name: each for name, each in answers.items() if isinstance(each, FleetError)}
    told = answers[names[0]]
    if failed or not isinstance(told, Told):
        why = "; ".join(f"{name}: {error.message}" for name, error in failed.items())
        hint = next((error.hint for error in failed.values() if error.hint), "")
        raise FleetError(why or f"{names[0]}: no figures came", hint)
    return probe_of(environment, told, world=n_ranks, n_nodes=len(nodes))
