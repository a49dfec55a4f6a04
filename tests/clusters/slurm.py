"""A Slurm cluster on this machine: a slurmctld and a slurmd for each of some nodes.

All nodes are this machine under other names, and share its loopback and files; those of one CPU
each have one of its cores. Slurm is told not to authenticate anybody (no munge), so that only root
can run it so.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from autotune.base.guarded_process import GuardedProcess
from autotune.fleet.node import ports
from tests.captured import captured
from tests.clusters.ssh import core_of

_PROGRAMS = ("slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel")


def lacks_for_slurm() -> str:
    """Why no cluster can be made on this machine; empty: one can."""
    if os.geteuid() == 0 and all(map(shutil.which, _PROGRAMS)):
        return ""
    return "needs root, slurmctld and slurmd, for a cluster on this machine"


needs_slurm = pytest.mark.skipif(
    bool(lacks_for_slurm()), reason=lacks_for_slurm() or "nothing is missing"
)
_UP_WAIT_S = 180.0
NODE_TIMEOUT_S = 5
"""Time after which Slurm takes a node to be down that does not answer."""
_PORTS = range(10_240, ports.PORTS.start)
_CONFIGURATION = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
GresTypes=gpu
MpiDefault=none
ReturnToService=2
SlurmdTimeout={node_timeout_s}
KillWait=2
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode={preempt_mode}
SlurmdParameters=config_overrides
{nodes}
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1
PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF
"""


@dataclass(frozen=True)
class SlurmCluster:
    """Nodes `n0`, `n1`, ... of a cluster that runs."""

    folder: Path
    cpus: int
    """CPUs of each."""
    daemons: ExitStack
    """Ends them."""

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by which Slurm's programs find it."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str) -> str:
        """Output of one of Slurm's programs, which has to succeed."""
        done = captured(command, env=_environment(self), timeout=180)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.strip()

    def allocate(self, *arguments: str) -> str:
        """The number of a job that holds nodes and runs."""
        wait = ("--output=/dev/null", "--parsable", "--wrap=sleep infinity")
        job = self.run("sbatch", *arguments, *wait)
        self.wait_until(lambda: self.state_of(job) == "RUNNING", f"job {job} runs")
        return job

    def jobs(self) -> list[str]:
        """The jobs that wait or run; those that are being ended hold nothing for long."""
        return self.run("squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i").split()

    def state_of(self, job: str) -> str:
        """The state of a job, such as `RUNNING`."""
        shown = self.run("scontrol", "show", "job", "-o", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def processes(self) -> list[psutil.Process]:
        """What its jobs run."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                own = process.environ()
                is_ours = own.get("SLURM_CONF") == self.variables["SLURM_CONF"]
                if is_ours and "SLURM_JOB_ID" in own:
                    found.append(process)
        return found

    def start_daemon(self, node: int) -> None:
        """Start the slurmd of a node."""
        (self.folder / f"spool-n{node}").mkdir(exist_ok=True)
        arguments = ("-D", "-N", f"n{node}")
        core = core_of(node) if self.cpus == 1 else None
        self.daemons.enter_context(_daemon(self, "slurmd", *arguments, core=core))

    def mend(self, node: int) -> None:
        """Take a node back that is down or drained."""
        with contextlib.suppress(AssertionError):  # it has come back by itself
            self.run("scontrol", "update", f"nodename=n{node}", "state=resume")

    def n_idle(self) -> int:
        """How many nodes are up and have nothing to do."""
        with contextlib.suppress(AssertionError):
            return self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split().count("idle")
        return 0

    def kill_daemon(self, node: int) -> None:
        """Kill the slurmd of a node; the steps that it has started run on."""
        pid = int((self.folder / f"slurmd-n{node}.pid").read_text())
        os.kill(pid, signal.SIGKILL)

    def kill_controller(self) -> None:
        """Kill the slurmctld; what runs on the nodes runs on."""
        os.kill(int((self.folder / "slurmctld.pid").read_text()), signal.SIGKILL)

    def start_controller(self) -> None:
        """Start a slurmctld, which goes on where the one before it was."""
        self.daemons.enter_context(_daemon(self, "slurmctld", "-D"))

    def wait_until(
        self, is_so: Callable[[], bool], what: str, within_s: float = _UP_WAIT_S
    ) -> None:
        """Wait for something to become true."""
        deadline_s = time.monotonic() + within_s
        while not is_so():
            assert time.monotonic() < deadline_s, f"it took too long until {what}: {self._logs()}"
            time.sleep(0.1)

    def _logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text()[-1000:]}" for log in logs)


@contextmanager
def slurm_cluster(
    folder: Path, n_nodes: int, *, cpus: int = 1, gpus: int = 0, preempts: str = "CANCEL"
) -> Iterator[SlurmCluster]:
    """Start a cluster; whatever runs on it ends with it, however this process ends.

    Args:
        folder: For its configuration, state and logs.
        n_nodes: How many nodes.
        cpus: CPUs of each.
        gpus: What Slurm takes for GPUs on each: files of devices that swallow whatever comes.
        preempts: What happens to a job of the partition `low` where one of `high` needs its
            nodes: CANCEL or REQUEUE.
    """
    host = socket.gethostname()
    own_ports = free_ports(n_nodes + 1)
    nodes = "\n".join(
        f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={own_ports[i]} CPUs={cpus}"
        + (f" Gres=gpu:{gpus}" if gpus else "")
        for i in range(n_nodes)
    )
    configuration = _CONFIGURATION.format(
        name=f"autotune{os.getpid()}",
        host=host,
        port=own_ports[-1],
        folder=folder,
        nodes=nodes,
        node_timeout_s=NODE_TIMEOUT_S,
        preempt_mode=preempts,
    )
    (folder / "slurm.conf").write_text(configuration)
    for number in range(gpus):
        os.mknod(folder / f"gpu{number}", stat.S_IFCHR | 0o600, os.stat(os.devnull).st_rdev)
    devices = f"Name=gpu File={folder}/gpu[0-{gpus - 1}]\n"
    (folder / "gres.conf").write_text(devices if gpus else "")
    (folder / "state").mkdir()
    with ExitStack() as daemons:
        cluster = SlurmCluster(folder, cpus, daemons)
        daemons.enter_context(_daemon(cluster, "slurmctld", "-D", "-i"))
        for i in range(n_nodes):
            cluster.start_daemon(i)
        cluster.wait_until(lambda: cluster.n_idle() == n_nodes, "all nodes are up")
        yield cluster


@contextmanager
def _daemon(
    cluster: SlurmCluster, program: str, *arguments: str, core: int | None = None
) -> Iterator[None]:
    """Run a daemon; what it has started outlives it, and ends here at the latest."""
    kept = [] if core is None else ["taskset", "-c", str(core)]
    name = "-".join((program, *arguments[2:]))
    with (cluster.folder / f"{name}.log").open("ab") as log:
        process = GuardedProcess(
            ["sh", "-c", '"$@"; exec sleep infinity', "sh", *kept, program, *arguments],
            env=_environment(cluster),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        yield
    finally:
        process.end()


def _environment(cluster: SlurmCluster) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**kept, **cluster.variables}


def free_ports(n: int) -> list[int]:
    """Some on which nobody listens, of those that no client and no trial takes meanwhile."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == n:
            return found
    raise AssertionError("no port is free")


def main() -> int:
    """Run a command on a cluster of its own: `python -m tests.clusters.slurm NODES COMMAND ...`.

    The command finds the cluster as users find theirs, and a CPU of each node for every core.
    """
    with TemporaryDirectory() as folder:
        n_nodes = int(sys.argv[1])
        with slurm_cluster(Path(folder), n_nodes, cpus=os.cpu_count() or 1) as cluster:
            return subprocess.run(sys.argv[2:], env=_environment(cluster)).returncode


if __name__ == "__main__":
    sys.exit(main())
