"""Nodes by ssh that cannot be used from the start, and why."""

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.clusters.ssh import SshNodes, ssh_nodes

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
