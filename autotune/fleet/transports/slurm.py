"""Nodes of an allocation of Slurm, reached by its steps: `--fleet slurm`.

Within an allocation `slurm` takes that one, and `slurm:JOB` names one. `slurm:"-N 4 -t 2:00:00"`
asks for one with arguments of `sbatch`, and gives it back.
"""

import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.base.errors import FleetError, JobError
from autotune.base.flags import flag
from autotune.base.text import Say
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import NodeProcess
from autotune.fleet.transports.local import LocalProcess
from autotune.fleet.transports.remote import Elsewhere, Host, RemoteTransport
from autotune.fleet.transports.slurm_job import (
    check_slurm,
    end_of,
    look_at_request,
    not_running,
    obtained,
    run_slurm,
    slurm_environment,
    status_of,
    step_command,
)


def _how() -> str:
    fleet = flag("fleet")
    return f"name one, {fleet} slurm:JOB, or ask for one: {fleet} slurm:'-N 4 -t 2:00:00'"


class SlurmNodes:
    """Nodes of an allocation; implements `FleetPlugin` and `Obtaining`."""

    @contextmanager
    def obtain(self, of: str, options: FleetOptions, *, say: Say, agree: Say) -> Iterator[str]:
        check_slurm()
        if not of or of.isdigit():
            yield of
            return
        arguments = _split(of)
        wait_s = options.wait_s(math.inf)
        agree(f"asks Slurm for nodes: sbatch {of}\n{look_at_request(arguments)}")
        with obtained(arguments, wait_s=wait_s, say=say) as job:
            yield job

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> Elsewhere:
        check_slurm()
        job = of or os.environ.get("SLURM_JOB_ID", "")
        if not job:
            raise JobError(f"{flag('fleet')} slurm: this is no allocation of Slurm", _how())
        if not job.isdigit():
            raise JobError(f"{flag('fleet')} slurm:{of}: no nodes were asked for", _how())
        return Elsewhere(SlurmTransport(job, options), flags)


class SlurmTransport(RemoteTransport):
    """A step of a job for each process on a node."""

    def __init__(self, job: str, options: FleetOptions) -> None:
        """Take a running job.

        Raises:
            FleetError: It does not run, or Slurm does not answer.
        """
        super().__init__(options)
        self._job = job
        self._status = status_of(job)
        if self._status.state != "RUNNING":
            raise FleetError(not_running(job, self._status), _how())

    def hosts(self) -> Sequence[Host]:
        return self._hosts

    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        return LocalProcess(
            step_command(self._job, host, command), environment=slurm_environment()
        )

    def ended(self) -> str:
        return end_of(self._job, n_restarts=self._status.n_restarts)

    @cached_property
    def _hosts(self) -> tuple[Host, ...]:
        return tuple(
            Host(name=name, n_slots=n_slots)
            for names, n_slots in self._status.slots.items()
            for name in run_slurm("scontrol", "show", "hostnames", names).split()
        )


def _split(of: str) -> list[str]:
    try:
        arguments = shlex.split(of)
    except ValueError as error:
        raise JobError(f"{flag('fleet')} slurm:{of}: {error}", "close the quotation") from error
    if not arguments or not arguments[0].startswith("-"):
        raise JobError(f"{flag('fleet')} slurm:{of}: is no job and no request", _how())
    return arguments
