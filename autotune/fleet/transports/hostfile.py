"""Nodes in a file, reached by ssh: `--fleet hostfile:FILE`, in DeepSpeed's format.

A line is `HOST slots=N`; a number sign begins a remark. HOST is what `ssh` takes: a name of the
user's ssh configuration, an address, `user@host`.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.contract import read_text
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports.base import NodeProcess
from autotune.fleet.transports.local import LocalProcess
from autotune.fleet.transports.remote import Elsewhere, Host, RemoteTransport

_LINE = re.compile(r"(?P<name>[^\s=#-][^\s=#]*)(?:\s+slots=(?P<slots>[0-9]{1,6}))?")
_SSH_OPTIONS = (
    # A password or an unknown key is asked for at a terminal, and nobody sits there.
    *("-o", "BatchMode=yes"),
    *("-o", "ConnectTimeout=10"),
    *("-o", "ServerAliveInterval=15"),
    *("-o", "ServerAliveCountMax=3"),
    "-T",
)


class Hostfile:
    """Nodes in a file; implements `FleetPlugin`."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> Elsewhere:
        return Elsewhere(HostfileTransport(of, options), flags)


class HostfileTransport(RemoteTransport):
    """One ssh to each node."""

    def __init__(self, file: str, options: FleetOptions) -> None:
        """Read the file.

        Raises:
            JobError: It cannot be read, or names no nodes.
        """
        super().__init__(options)
        self._hosts = read_hostfile(file)

    def hosts(self) -> Sequence[Host]:
        return self._hosts

    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        ssh = shlex.split(self.options.ssh)
        # sshd gives the text to the user's shell, which may be any.
        return LocalProcess([*ssh, *_SSH_OPTIONS, host, "--", "exec " + shlex.join(command)])


def read_hostfile(file: str) -> tuple[Host, ...]:
    """The hosts of a file in DeepSpeed's format.

    Raises:
        JobError: It cannot be read, a line is none of a host's, a host comes twice, or there is
            none.
    """
    if not file:
        raise JobError(f"{flag('fleet')} hostfile: which file?", f"{flag('fleet')} hostfile:FILE")
    hint = "a line is HOST slots=N, such as: worker-1 slots=8"
    try:
        lines = read_text(Path(file)).splitlines()
    except OSError as error:
        why = error.strerror or error
        raise JobError(f"{flag('fleet')} hostfile:{file}: {why}", hint) from error
    hosts: dict[str, Host] = {}
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise JobError(f"{file}, line {number}: {text[:80]!r} is no host", hint)
        name, slots = found["name"], found["slots"]
        if name in hosts:
            raise JobError(f"{file}, line {number}: {name} comes twice", "leave one out")
        if slots is not None and not int(slots):
            raise JobError(f"{file}, line {number}: {name} has slots=0", "leave the line out")
        hosts[name] = Host(name=name, n_slots=None if slots is None else int(slots))
    if not hosts:
        raise JobError(f"{file}: names no host", hint)
    return tuple(hosts.values())
