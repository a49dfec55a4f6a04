"""Nodes that are reached by ssh: an sshd in each of some network namespaces, joined by a switch.

The coordinator has a namespace of its own, so that no address of this machine is touched. All of
them share this machine's files; `is_apart` gives a node folders of its own where a search keeps
its record. Every node has one of its cores, in turns.
"""

import contextlib
import itertools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.devices.hardware import usable_cores
from autotune.fleet.gang_fleet import AGENT
from autotune.fleet.node.processes import kill_all
from tests.captured import captured

_SSHD = "/usr/sbin/sshd"
_LISTENS = b"Server listening on"
_UP_WAIT_S = 60.0
_letters = itertools.cycle("abcdefgijklmnopqr")
"""Of the clusters of this process; a namespace's end of a link has 15 characters at most."""


def lacks_for_ssh_nodes() -> str:
    """Why no such nodes can be made on this machine; empty: they can."""
    if os.geteuid() == 0 and all(map(shutil.which, ("ip", "ssh", "ssh-keygen", _SSHD))):
        return ""
    return "needs root, iproute2 and OpenSSH's server, for nodes in network namespaces"


needs_ssh_nodes = pytest.mark.skipif(
    bool(lacks_for_ssh_nodes()), reason=lacks_for_ssh_nodes() or "nothing is missing"
)


@dataclass(frozen=True)
class SshNodes:
    """Nodes with an sshd each."""

    head: str
    """Namespace of the coordinator."""
    names: tuple[str, ...]
    """Namespaces of the nodes."""
    addresses: tuple[str, ...]
    hostfile: Path
    """All nodes."""
    config: Path
    """Configuration of ssh, by which it knows keys and hosts; tests add to it."""
    folder: Path
    temporary: Path
    """Of each node a folder for temporary files, by its name."""
    servers: "list[_Server]"
    """The sshd of each node."""
    is_apart: Sequence[Path]

    @property
    def ssh(self) -> str:
        """The command that logs in, wherever it is run."""
        return f"ip netns exec {self.head} ssh -F {shlex.quote(str(self.config))}"

    def left(self, pattern: str = "") -> list[Path]:
        """Temporary files of ours that stand on the nodes, or those of a pattern."""
        return list(self.temporary.glob(f"*/autotune-run-*/{pattern}"))

    @property
    def flags(self) -> list[str]:
        """Flags of a command of ours."""
        return self.flags_of(self.hostfile)

    def flags_of(self, hostfile: Path) -> list[str]:
        """Flags of a command of ours for another choice of nodes."""
        return ["--fleet", f"hostfile:{hostfile}", "--fleet-option", f"ssh={self.ssh}"]

    def choose(self, *lines: str) -> Path:
        """A hostfile of these lines."""
        path = self.folder / f"hostfile-{len(list(self.folder.glob('hostfile*')))}"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def kill(self, node: int) -> None:
        """Kill all that runs on a node, which then answers nobody."""
        self.servers[node].kill()
        self.servers[node].wait()
        _kill_all_in(self.names[node])

    def boot(self, node: int) -> None:
        """Let a node that was killed answer again."""
        name = self.names[node]
        config = self.folder / f"sshd-{name}.conf"
        self.servers[node] = _serve(self.folder, name, config, self.is_apart, core_of(node))
        self.servers[node].wait_until_it_listens()

    def processes(self, node: int | None = None) -> list[psutil.Process]:
        """What runs on a node, or on all, beside what logs in, or waits to."""
        names = self.names if node is None else (self.names[node],)
        found = []
        for pid in (pid for name in names for pid in _pids_in(name)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.name() != "sshd":
                    found.append(process)
        return found

    def agents(self, node: int | None = None) -> list[psutil.Process]:
        """The agents on a node, or on all."""
        found = []
        for process in self.processes(node):
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                if command[1:4] == ["-P", "-m", AGENT]:
                    found.append(process)
        return found

    def cut(self, node: int) -> None:
        """Take a node's cable out."""
        run("ip", "-n", self.names[node], "link", "set", "eth0", "down")

    def mend(self, node: int) -> None:
        """Put it in again."""
        run("ip", "-n", self.names[node], "link", "set", "eth0", "up")


@contextmanager
def ssh_nodes(
    folder: Path,
    n_nodes: int,
    *,
    slots: int = 1,
    is_apart: Sequence[Path] = (),
    variables: Mapping[int, Mapping[str, str]] | None = None,
    settings: Mapping[int, str] | None = None,
    processors: Mapping[int, str] | None = None,
) -> Iterator[SshNodes]:
    """Make nodes; whatever runs on them ends with them.

    Args:
        folder: For keys and logs.
        n_nodes: How many.
        slots: Of each.
        is_apart: Folders of this machine that the nodes do not see: each has an empty one there.
        variables: What the environment of a node has besides.
        settings: Lines of the configuration of a node's sshd, before all others.
        processors: What the kernel of a node calls its processor, where that is not this one's.
    """
    tag = f"as{os.getpid() % 100_000}{next(_letters)}"
    # Short: where sockets do not fit, a node takes this machine's own folder.
    temporary = Path(tempfile.mkdtemp(prefix=f"{tag}-", dir="/tmp"))
    head, switch = f"{tag}h", f"{tag}s"
    names = tuple(f"{tag}{i}" for i in range(n_nodes))
    addresses = tuple(f"10.78.0.{i + 1}" for i in range(n_nodes))
    servers: list[_Server] = []
    key, host_key = folder / "key", folder / "host_key"
    for each in (key, host_key):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(each))
    Path("/run/sshd").mkdir(exist_ok=True)
    try:
        run("ip", "netns", "add", head)
        run("ip", "-n", head, "link", "set", "lo", "up")
        run("ip", "-n", head, "link", "add", switch, "type", "bridge")
        run("ip", "-n", head, "addr", "add", "10.78.0.100/24", "dev", switch)
        run("ip", "-n", head, "link", "set", switch, "up")
        for name, address in zip(names, addresses, strict=True):
            run("ip", "netns", "add", name)
            end = f"{name}p"
            pair = ("type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "-n", head, "link", "add", end, *pair)
            run("ip", "-n", head, "link", "set", end, "master", switch)
            run("ip", "-n", head, "link", "set", end, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")
            said = (variables or {}).get(len(servers), {}), (settings or {}).get(len(servers), "")
            config = _server(folder, name, address, key, host_key, temporary / name, *said)
            if called := (processors or {}).get(len(servers)):
                own = Path("/proc/cpuinfo").read_text()
                other = re.sub(r"(?m)^(model name\s*): .*$", rf"\1: {called}", own)
                _cpuinfo(folder, name).write_text(other)
            servers.append(_serve(folder, name, config, is_apart, core_of(len(servers))))
        config = _client(folder, names, addresses, key, host_key)
        hostfile = folder / "hostfile"
        hostfile.write_text("".join(f"{name} slots={slots}\n" for name in names))
        for server in servers:
            server.wait_until_it_listens()
        yield SshNodes(
            head, names, addresses, hostfile, config, folder, temporary, servers, is_apart
        )
    finally:
        for server in servers:
            server.kill()
            server.wait()
        kill_all(folder)
        for name in (*names, head):
            _kill_all_in(name)
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        shutil.rmtree(temporary, ignore_errors=True)


def core_of(node: int) -> int:
    """The core of this machine that a node of this number has."""
    cores = usable_cores()
    return cores[node % len(cores)]


def _pids_in(name: str) -> list[int]:
    listed = captured(["ip", "netns", "pids", name])
    return [int(pid) for pid in listed.stdout.split()]


def _kill_all_in(name: str) -> None:
    while pids := _pids_in(name):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)


def _server(
    folder: Path,
    name: str,
    address: str,
    key: Path,
    host_key: Path,
    home: Path,
    variables: Mapping[str, str],
    settings: str,
) -> Path:
    """Configuration of a node's sshd."""
    config = folder / f"sshd-{name}.conf"
    home.mkdir()
    seen = {"TMPDIR": home, "XDG_RUNTIME_DIR": home / "none", **variables}
    config.write_text(
        f"{settings}\nPort 22\nListenAddress {address}\nHostKey {host_key}\nPidFile none\n"
        f"UsePAM no\nAuthorizedKeysFile {key}.pub\nStrictModes no\nPasswordAuthentication yes\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nUseDNS no\nMaxStartups 100\n"
        f"SetEnv {' '.join(f'{name}={value}' for name, value in seen.items())}\n"
    )
    return config


class _Server(subprocess.Popen[bytes]):
    """An sshd that writes a log; one that ran before it on the same node wrote to the same."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        """Start it."""
        self._log = log
        with log.open("ab") as file:
            self._begins_at = file.tell()
            super().__init__(command, stdout=file, stderr=file, start_new_session=True)

    def wait_until_it_listens(self) -> None:
        """Return once a client is let in: on a busy machine that takes seconds."""
        deadline_s = time.monotonic() + _UP_WAIT_S
        while _LISTENS not in (said := self._log.read_bytes()[self._begins_at :]):
            why = f"{self._log.name}: {said.decode(errors='replace')}"
            assert self.poll() is None, f"an sshd ended with code {self.returncode}; {why}"
            assert time.monotonic() < deadline_s, (
                f"an sshd does not listen after {_UP_WAIT_S:.0f} s; {why}"
            )
            time.sleep(0.01)


def _serve(folder: Path, name: str, config: Path, is_apart: Sequence[Path], core: int) -> _Server:
    serve = f"exec {_SSHD} -D -e -f {shlex.quote(str(config))}"
    # Names in shared memory have the address and the port of a trial in them, and every node has
    # the same of both on its loopback.
    hidden = "; ".join(
        f"mkdir -p {shlex.quote(str(each))}; mount -t tmpfs none {shlex.quote(str(each))}"
        for each in (Path("/dev/shm"), *is_apart)
    )
    if (cpuinfo := _cpuinfo(folder, name)).exists():
        hidden += f"; mount --bind {shlex.quote(str(cpuinfo))} /proc/cpuinfo"
    command = ["taskset", "-c", str(core), "unshare", "-m", "sh", "-ec", f"{hidden}; {serve}"]
    return _Server(["ip", "netns", "exec", name, *command], folder / f"sshd-{name}.log")


def _cpuinfo(folder: Path, name: str) -> Path:
    return folder / f"cpuinfo-{name}"


def _client(
    folder: Path, names: Sequence[str], addresses: Sequence[str], key: Path, host_key: Path
) -> Path:
    known = folder / "known_hosts"
    public = " ".join(host_key.with_suffix(".pub").read_text().split()[:2])
    known.write_text("".join(f"{address} {public}\n" for address in addresses))
    config = folder / "ssh_config"
    config.write_text(
        "".join(
            f"Host {name}\n  HostName {address}\n"
            for name, address in zip(names, addresses, strict=True)
        )
        + f"Host *\n  User root\n  IdentityFile {key}\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {known}\n  StrictHostKeyChecking yes\n"
    )
    return config


def run(*command: str) -> None:
    """Run a command that has to succeed; the test is skipped where the machine cannot."""
    done = captured(command)
    if done.returncode:
        pytest.skip(f"{shlex.join(command)}: {done.stderr.strip()}")
