"""Run a probe: start the ranks, fit what they measured, and put the file together."""

import datetime
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import __version__
from autotune.accelerators import Accelerator, find_accelerator
from autotune.errors import FleetError, JobError
from autotune.fleet.measuring import measure_on_ranks
from autotune.hardware import Environment, usable_cores
from autotune.probe.figures import Figures, figures_of
from autotune.probe.findings import conclude
from autotune.probe.hardware_file import Line, entry_of, fits_of, names_of
from autotune.probe.points import Point, points_of

TIMEOUT_S = 300.0
"""A probe takes well below a minute; longer than this, a rank hangs."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What was measured, and what follows from it."""

    environment: Environment
    devices: tuple[int, ...]
    """Core numbers, or indices of GPUs, by rank."""
    points: tuple[Point, ...]
    figures: Figures
    its_class: Accelerator | None
    """Entry of the devices in the shipped table; None: it has none."""
    warnings: tuple[str, ...]
    when: str
    wall_s: float

    @property
    def entry(self) -> dict[str, Any]:
        """As the table of accelerators spells it, by name."""
        return entry_of(
            self.environment,
            self.figures,
            self.its_class,
            n_ranks=len(self.devices),
            when=self.when,
        )

    @property
    def about(self) -> dict[str, Any]:
        """How the entry came about, down to the points."""
        return {
            "date": self.when,
            "took_s": round(self.wall_s, 1),
            "ranks": len(self.devices),
            "devices": names_of(self.environment, self.devices),
            "device_name": self.environment.device_name,
            "versions": {
                "autotune": __version__,
                "torch": self.environment.torch_version,
                "deepspeed": self.environment.deepspeed_version,
            },
            "warnings": list(self.warnings),
            "fits": fits_of(self.figures),
            "points": [Line(point.as_dict()) for point in self.points],
        }


def run_probe(
    environment: Environment,
    *,
    world: int,
    disk: Path | None = None,
    is_quick: bool = False,
    timeout_s: float = TIMEOUT_S,
) -> Probe:
    """Measure this machine's devices, all at once.

    Args:
        environment: What there is.
        world: Ranks to start, each on a device of its own.
        disk: A folder whose disk is measured too; None: none is.
        is_quick: Whether figures may be rougher for being there sooner.
        timeout_s: Ranks that are not done then are killed.

    Raises:
        JobError: The world is below one, or the folder is none.
        FleetError: There are fewer devices, or a rank failed, died or hung.
    """
    devices = _devices(environment, world)
    if disk is not None and not disk.is_dir():
        raise JobError(f"--nvme {disk}: is no folder", "name one on the disk to measure")
    wanted = {
        "quick": is_quick,
        "precisions": list(environment.precisions),
        "disk": None if disk is None else str(disk.resolve()),
    }
    started_s = time.monotonic()
    reports = measure_on_ranks(
        "autotune.probe.rank",
        [json.dumps(wanted)],
        accelerator=environment.accelerator,
        devices=devices,
        name="probe",
        timeout_s=timeout_s,
    )
    wall_s = time.monotonic() - started_s
    points = points_of(reports)
    figures = figures_of(points, world)
    its_class = _class_of(environment)
    is_cpu = environment.accelerator == "cpu"
    return Probe(
        environment=environment,
        devices=tuple(devices),
        points=points,
        figures=figures,
        its_class=its_class,
        warnings=conclude(
            points,
            figures,
            names=names_of(environment, devices),
            # Processors differ too much for a class: its figures are a guess.
            its_class=None if is_cpu else its_class,
        ),
        when=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ"),
        wall_s=wall_s,
    )


def _devices(environment: Environment, world: int) -> Sequence[int]:
    if world < 1:
        raise JobError(f"--world {world}: not above zero", "how many devices to measure")
    if world > environment.n_devices:
        raise FleetError(
            f"--world {world}: this machine has {environment.n_devices} {environment.accelerator} "
            "device(s), and ranks that share one measure each other",
            f"at most {environment.n_devices}",
        )
    if environment.accelerator == "cuda":
        return range(world)
    return usable_cores()[:world]


def _class_of(environment: Environment) -> Accelerator | None:
    name = "cpu" if environment.accelerator == "cpu" else environment.device_name
    try:
        return find_accelerator(name, memory_gib=environment.device_memory_bytes / 2**30)
    except FleetError:
        return None
