"""One search for each kind of accelerator of a fleet, one after the other."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.app.own_script import study_name
from autotune.app.session import find_far_place, read_job
from autotune.devices.hardware import Environment
from autotune.fleet.options import FleetOptions


def searches_of_kinds(
    fleet: str,
    options: FleetOptions,
    *,
    job_file: Path | None,
    flags: Mapping[str, Any],
    agreed: Mapping[str, Any] | None,
    command: Sequence[str],
) -> Iterator[tuple[dict[str, Any], FleetOptions]]:
    """The flags and the fleet's options of a search of each kind.

    Each has a study of its own, named after the job's and the kind.

    Args:
        fleet: As of `open_session`, as the three after it.
        options: They ask for a search of each kind.
        job_file: See there.
        flags: Keys of the job.
        agreed: See there.
        command: The user's own; empty: none.

    Raises:
        JobError: That is no fleet of other machines, or the job is not valid.
        FleetError: No node answers.
    """
    inventory = find_far_place(fleet, replace(options, kind="")).transport.inventory
    kinds: dict[str, Environment] = {}
    for found in inventory.values():
        kinds.setdefault(found.environment.device_name, found.environment)
    for kind, environment in kinds.items():
        name = flags.get("study")
        if name is None and command:
            name = study_name(command, os.getcwd())
        elif name is None:
            name = read_job(job_file, flags, environment, agreed=agreed)[0].study
        own = f"{name}-{re.sub(r'[^a-z0-9]+', '-', kind.lower()).strip('-')}"
        yield {**flags, "study": own}, replace(options, kind=f"={kind}")
