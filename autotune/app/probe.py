"""Measure this machine or a fleet, and write the file that predictions read."""

from collections.abc import Callable
from pathlib import Path

from autotune.app.session import CPU_WORLD
from autotune.base.errors import JobError
from autotune.devices.hardware import detect_environment
from autotune.fleet.transports.local import LocalTransport, local_node
from autotune.fleet.transports.remote import Elsewhere
from autotune.probe.hardware_file import check_writable
from autotune.probe.run import Probe, run_probe


def probe_machine(out: Path, *, world: int | None, disk: str | None, is_quick: bool) -> Probe:
    """Probe this machine, once it is sure that the file can be written.

    Args:
        out: The file.
        world: Devices to measure; None: those that a search takes where nobody says.
        disk: See `run_probe`.
        is_quick: See there.

    Raises:
        StudyError: The file cannot be written.
        JobError: The folder is none, or a value is not one.
        FleetError: As `run_probe`.
    """
    check_writable(out)
    environment = detect_environment()
    if world is None:
        n = environment.n_devices
        world = n if environment.accelerator == "cuda" else min(n, CPU_WORLD)
    if disk is not None:
        if not Path(disk).is_dir():
            raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")
        disk = str(Path(disk).resolve())
    here = LocalTransport(local_node(environment, 1))
    return run_probe(environment, here, world=world, disk=disk, is_quick=is_quick)


def probe_fleet(
    out: Path,
    place: Elsewhere,
    *,
    world: int | None,
    disk: str | None,
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
        StudyError: The file cannot be written.
        FleetError: No node answers, they differ, or one could not measure: it is named.
    """
    check_writable(out)
    for problem in place.transport.problems():
        note(problem)
    return run_probe(place.environment, place.transport, world=world, disk=disk, is_quick=is_quick)
