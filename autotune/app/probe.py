"""Measure this machine or a fleet, and write the file that predictions read."""

from pathlib import Path

from autotune.app.session import CPU_WORLD
from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.base.text import Say
from autotune.fleet.base import Place
from autotune.fleet.gang_fleet import GangPlace
from autotune.probe.hardware_file import check_writable
from autotune.probe.run import Probe, run_probe


def probe_place(
    out: Path, place: Place, *, world: int | None, disk: str | None, is_quick: bool, note: Say
) -> Probe:
    """Probe the devices of a place, once it is sure that the file can be written.

    Nodes measure together: `world` devices on each, or all its slots, and on this machine those
    that a search takes where nobody says. `disk` is a folder of the nodes whose disk is measured.

    Raises:
        StudyError: The file cannot be written.
        JobError: The place has no devices, the folder is none, or a value is not one.
        FleetError: No node answers, they differ, or one could not measure: it is named.
    """
    if not isinstance(place, GangPlace):
        raise JobError("this fleet has no devices to measure", f"name another {flag('fleet')}")
    check_writable(out)
    environment = place.environment
    if not place.is_elsewhere:
        if world is None:
            is_cpu = environment.accelerator == "cpu"
            world = min(environment.n_devices, CPU_WORLD) if is_cpu else environment.n_devices
        if disk is not None:
            if not Path(disk).is_dir():
                raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")
            disk = str(Path(disk).resolve())
    transport = place.transport_for(1)
    for problem in transport.problems():
        note(problem)
    return run_probe(environment, transport, world=world, disk=disk, is_quick=is_quick)
