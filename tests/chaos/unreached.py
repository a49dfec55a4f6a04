"""Nodes by ssh that cannot be used from the start: each is named, and what is left trains."""

import contextlib
import functools
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune.base.errors import FleetError
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports import remote
from autotune.fleet.transports.hostfile import HostfileTransport
from autotune.fleet.transports.remote import common_environment
from tests.chaos.arena import Ground
from tests.chaos.faults import Fault, must
from tests.chaos.gangs import Gangs, new_records
from tests.clusters.ssh import SshNodes, lacks_for_ssh_nodes, ssh_nodes
from tests.trials import wait_until

ANSWER_S = 14.0
"""Time for a node to answer; longer outside of tests."""
_SILENT = (
    "import socket, time\n"
    "server = socket.create_server(('10.78.0.100', 2222))\n"
    "print('listens', flush=True)\n"
    "held = [server.accept() for _ in range(100)]\n"
)


@contextlib.contextmanager
def odd_nodes(folder: Path, *, n_more: int = 0, **more: dict[int, str]) -> Iterator[SshNodes]:
    """Nodes of which the first is as it should be, and names that reach none.

    The second cannot write its cache, the third has another DeepSpeed, the fourth lets in and
    never starts anything. At the first's address `refused` is where nobody listens, `changed` has
    another key, and `locked` wants a password; `silent` is an address that says nothing.

    Args:
        folder: For keys and logs.
        n_more: Nodes after these four.
        more: Arguments of `ssh_nodes` by the node's number.
    """
    other = folder / "packages" / "deepspeed-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    with contextlib.ExitStack() as made:
        nodes = made.enter_context(
            ssh_nodes(
                folder,
                4 + n_more,
                variables={
                    1: {"XDG_CACHE_HOME": "/proc/none"},
                    2: {"PYTHONPATH": str(other.parent)},
                },
                settings={3: "ForceCommand cat >/dev/null\n"},
                processors=more.get("processors"),
            )
        )
        with (folder / "known_hosts").open("a") as known:
            known.write(f"another {(folder / 'key.pub').read_text()}")
        aliases = (
            "Host refused\n  Port 23\n",
            "Host changed\n  HostKeyAlias another\n",
            "Host locked\n  PreferredAuthentications password\n",
            "Host silent\n  HostName 10.78.0.100\n  Port 2222\n",
            f"Host refused changed locked\n  HostName {nodes.addresses[0]}\n",
        )
        nodes.config.write_text("".join(aliases) + nodes.config.read_text())
        listener = subprocess.Popen(
            ["ip", "netns", "exec", nodes.head, sys.executable, "-c", _SILENT],
            stdout=subprocess.PIPE,
        )
        made.callback(listener.wait)
        made.callback(listener.kill)
        assert listener.stdout is not None
        listener.stdout.readline()
        yield nodes


def why_left_out(nodes: SshNodes) -> dict[str, str]:
    """Name that cannot be used -> words of the reason."""
    _, unwritable, _, half_dead, *_ = nodes.names
    return {
        "refused": "Connection refused",
        "changed": "Host key verification failed",
        "locked": "Permission denied",
        "silent": "timed out",
        "nowhere.invalid": "Could not resolve hostname",
        unwritable: "autotune cannot be unpacked there: [Errno 2] No such file or directory",
        half_dead: f"no answer within {ANSWER_S:.0f} s",
    }


def old_python(folder: Path) -> Path:
    """A Python that says that it is 3.8."""
    path = folder / "old-python"
    path.write_text(
        "#!/bin/sh\n"
        f'exec {shutil.which("python3")} -c "import sys; sys.hexversion = 0x03080000; '
        'exec(sys.argv[1])" "$3"\n'
    )
    path.chmod(0o755)
    return path


class Odd:
    """These nodes, shared by the faults."""

    def __init__(self, folder: Path) -> None:
        """Make them."""
        with contextlib.ExitStack() as made:
            self.nodes = made.enter_context(odd_nodes(folder))
            self.transport(self.nodes.names[0]).nodes()  # the first time it unpacks the bundle
            made.enter_context(pytest.MonkeyPatch.context()).setattr(remote, "_ANSWER_S", ANSWER_S)
            self._made = made.pop_all()

    def close(self) -> None:
        """End them."""
        self._made.close()

    def transport(self, *lines: str, python: str = "") -> HostfileTransport:
        """The nodes of some lines of a hostfile."""
        options = FleetOptions(ssh=self.nodes.ssh, python=python)
        return HostfileTransport(str(self.nodes.choose(*lines)), options)

    def trains(self, transport: HostfileTransport) -> None:
        """See that a trial trains on what is left, and leaves nothing.

        Raises:
            NotSurvivedError: It does not.
        """
        records = new_records(self.nodes.folder)
        gangs = Gangs(transport, records, world=2, seen=self.nodes.folder)
        with contextlib.closing(gangs):
            gangs.trains()
        wait_until(lambda: self.nodes.processes() == [], "something is left on a node")


_LEFT_OUT = {
    "ssh refused": 0,
    "host key changed": 1,
    "password asked for": 2,
    "node that says nothing": 3,
    "no such node": 4,
    "cache of a node unwritable": 5,
    "half-dead node": 6,
}
"""Subject of a fault -> its place in `why_left_out`."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for subject, at in _LEFT_OUT.items():
        yield _fault(f"{subject}: another goes on", functools.partial(_left_out, at))
        yield _fault(f"{subject}: and there is no other", functools.partial(_alone, at))
    yield _fault("another DeepSpeed on a node: the fleet is refused", _differs)
    yield _fault("no Python on a node: it is named", functools.partial(_python, "missing"))
    yield _fault("Python of a node too old: it is named", functools.partial(_python, "old"))


def _fault(name: str, inject: Callable[[Ground], None]) -> Fault:
    return Fault(name=name, inject=inject, needs=lacks_for_ssh_nodes)


def _odd_of(ground: Ground) -> Odd:
    found: Odd = ground.shared("odd", Odd)
    return found


def _left_out(at: int, ground: Ground) -> None:
    odd = _odd_of(ground)
    name, why = list(why_left_out(odd.nodes).items())[at]
    good = odd.nodes.names[0]
    transport = odd.transport(f"{good} slots=2", f"{name} slots=2")
    must([node.name for node in transport.nodes()] == [good], "another node is used")
    (said,) = transport.problems()
    must(said.startswith(f"{name} is left out: ") and why in said, f"it says: {said}")
    odd.trains(transport)


def _alone(at: int, ground: Ground) -> None:
    odd = _odd_of(ground)
    name, why = list(why_left_out(odd.nodes).items())[at]
    _refused(odd.transport(f"{name} slots=2").nodes, name, why)


def _differs(ground: Ground) -> None:
    odd = _odd_of(ground)
    good, _, other, *_ = odd.nodes.names
    transport = odd.transport(f"{good} slots=2", f"{other} slots=2")
    _refused(lambda: common_environment(transport), other, "DeepSpeed 0.0.1")
    odd.trains(odd.transport(f"{good} slots=2"))


def _python(which: str, ground: Ground) -> None:
    odd = _odd_of(ground)
    python = "/no/such/python" if which == "missing" else str(old_python(odd.nodes.folder))
    good = odd.nodes.names[0]
    why = python if which == "missing" else "3.11 is the oldest"
    _refused(odd.transport(good, python=python).nodes, good, why)


def _refused(ask: Callable[[], object], name: str, why: str) -> None:
    said = ""
    try:
        ask()
    except FleetError as error:
        said = f"{error.message}; {error.hint}"
    must(name in said and why in said, f"it says: {said or 'nothing'}")
