"""Measure this machine, and write the file that predictions read."""

from pathlib import Path

from autotune.app.session import CPU_WORLD
from autotune.devices.hardware import detect_environment
from autotune.probe.hardware_file import check_writable
from autotune.probe.nodes import Nodes
from autotune.probe.run import Probe, run_probe


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
