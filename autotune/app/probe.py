"""Measure this machine, and leave the file that predictions read."""

from pathlib import Path

from autotune.app.session import CPU_WORLD
from autotune.hardware import detect_environment
from autotune.probe.hardware_file import check_writable, write_hardware
from autotune.probe.nodes import Nodes
from autotune.probe.run import Probe, run_probe


def probe_machine(
    out: Path, *, world: int | None, nodes: Nodes | None, disk: Path | None, is_quick: bool
) -> Probe | None:
    """Probe, and write the file; of several nodes only the first one writes, and has the figures.

    Args:
        out: The file.
        world: Devices to measure here; None: those that a search takes where nobody says.
        nodes: As of `run_probe`.
        disk: As of `run_probe`.
        is_quick: As of `run_probe`.

    Raises:
        JobError: The file cannot be written, or a value is not one.
        FleetError: As `run_probe`.
    """
    writes = nodes is None or nodes.rank == 0
    if writes:
        check_writable(out)
    environment = detect_environment()
    if world is None:
        n = environment.n_devices
        world = n if environment.accelerator == "cuda" else min(n, CPU_WORLD)
    found = run_probe(environment, world=world, nodes=nodes, disk=disk, is_quick=is_quick)
    if found is not None:
        write_hardware(out, found.entry, found.about)
    return found
