"""A job of Slurm that holds nodes: asking for one, how it is, its end, giving it back.

Slurm's own programs are run, and what they say is passed on.
"""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from autotune.base.errors import FleetError, JobError
from autotune.base.guarded_process import run_guarded
from autotune.base.secrecy import is_secret
from autotune.base.text import Say
from autotune.fleet.node.environment import MACHINE_VARIABLES
from autotune.fleet.node.places import numbers_in
from autotune.fleet.transports.local import LocalProcess

_ANSWER_S = 60.0
"""Time for Slurm's controller to answer; its programs give up by themselves before."""
_HOLDER_WAIT_S = 120
"""Seconds after which a job that nobody came to hold ends: its coordinator was killed while it
waited for the nodes."""
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.5, 10.0
"""Time between two looks at a job that waits; it grows, since each costs the controller."""
_REPORT_PERIOD_S = 60.0
_SILENT_S = 300.0
"""Time for a controller that is started again, while a job waits."""
_ENDING_S = 10.0
"""Time for a job that is being ended to say how, while its coordinator waits: it must come back
well before the lease of its other nodes is over."""
_CLUSTER_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS")
_TAKEN_FOR_OPTIONS = ("SLURM", "SBATCH_", "SRUN_")
_SCRIPT = f"""\
trap 'rm -f "$fifo"' EXIT
trap 'exit 143' TERM
rm -f "$fifo"
mkfifo -m 600 "$fifo" || exit 1
(
    left={_HOLDER_WAIT_S}
    while [ -p "$fifo" ] && [ $left -gt 0 ]; do sleep 1; left=$((left - 1)); done
    [ -p "$fifo" ] && : > "$fifo"
) &
cat "$fifo"
"""
"""The job runs until whoever has opened the pipe for writing is gone. That is a step whose input
the coordinator holds: however either of them ends, so does the job, and its nodes are free."""
_HOLDER = 'exec cat > "$0"'
_ENDS = {
    "BOOT_FAIL": "its nodes did not start",
    "CANCELLED": "it was cancelled",
    "COMPLETED": "its script has ended",
    "DEADLINE": "its deadline is over",
    "FAILED": "its script failed",
    "GONE": "Slurm does not know it, or not any more",
    "NODE_FAIL": "a node failed, and with it the job, which was asked for without --no-kill",
    "OUT_OF_MEMORY": "it ran out of memory",
    "PREEMPTED": "a job that comes first took its nodes",
    "TIMEOUT": "its time limit is over",
}
_STARTING = ("PENDING", "CONFIGURING")
_HOLDING = ("RUNNING", "SUSPENDED")
_AGAIN = "run the same command again once there are nodes: it resumes"


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """State of a job, as `scontrol show job` tells it."""

    state: str
    """Such as `RUNNING`."""
    reason: str
    """Why it waits, such as `Resources`."""
    n_restarts: int
    time_limit: str
    end_time: str
    first_node: str
    """Node that runs its script; empty: it does not run yet, or has none."""
    slots: Mapping[str, int]
    """Slots of each of some nodes, as Slurm writes several (`n[0-3]`): GPUs, else tasks, else
    CPUs."""


def read_status(text: str) -> JobStatus:
    """A job from one line of `scontrol show job --details --oneliner`."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)([A-Za-z][\w/:.]*)=(\S*)", text):
        fields.setdefault(name, value)
    shares = re.findall(r"\sNodes=(\S+) CPU_IDs=(\S*) Mem=\S* GRES=(\S*)", text)
    per_node = fields.get("NtasksPerN:B:S:C", "").partition(":")[0]
    n_tasks = int(per_node) if per_node.isdigit() else 0
    batch_host = fields.get("BatchHost", "")
    return JobStatus(
        state=fields.get("JobState", ""),
        reason=fields.get("Reason", ""),
        n_restarts=int(fields.get("Restarts", "0")),
        time_limit=fields.get("TimeLimit", ""),
        end_time=fields.get("EndTime", ""),
        first_node="" if batch_host == "(null)" else batch_host,
        slots={
            nodes: _n_gpus(gres) or n_tasks or len(numbers_in(cpus))
            for nodes, cpus, gres in shares
        },
    )


def status_of(job: str, timeout_s: float = _ANSWER_S) -> JobStatus:
    """State of a job now; `GONE` where Slurm does not know it.

    Raises:
        FleetError: Slurm does not answer.
    """
    show = ("scontrol", "show", "job", "--details", "--oneliner", job)
    done = _run(show, timeout_s)
    if done.returncode and "Invalid job id" in done.stderr:
        return read_status("JobState=GONE")
    return read_status(_output(show, done))


def end_of(job: str, *, n_restarts: int) -> str:
    """Why a job holds its nodes no more, in words; empty: it does, or that is not known."""
    deadline_s = time.monotonic() + _ENDING_S
    while True:
        try:
            status = status_of(job, _ENDING_S)
        except FleetError:
            return ""
        if status.state != "COMPLETING" or time.monotonic() > deadline_s:
            break
        time.sleep(_FIRST_LOOK_S)
    if status.n_restarts > n_restarts or status.state in (*_STARTING, "REQUEUED"):
        return f"job {job} of Slurm was requeued: it waits for nodes again"
    if status.state in _HOLDING:
        return ""
    return not_running(job, status)


def not_running(job: str, status: JobStatus) -> str:
    """A job that holds no nodes, in words."""
    if status.state in _STARTING:
        return f"job {job} of Slurm waits for its nodes: {status.reason}"
    if status.state == "GONE":
        return f"job {job} of Slurm: {_ENDS['GONE']}"
    limit = f" ({status.time_limit})" if status.state == "TIMEOUT" else ""
    why = _ENDS.get(status.state, "it holds no nodes any more")
    return f"job {job} of Slurm has ended ({status.state}): {why}{limit}"


def look_at_request(arguments: Sequence[str]) -> str:
    """Slurm's answer to a request that is not made yet: when it could start, and where.

    Raises:
        JobError: It refuses the arguments.
        FleetError: It cannot be asked.
    """
    found = _sbatch("--test-only", "", arguments)
    if found.returncode:
        raise _refused(found, arguments)
    return _words(found.stderr) or _words(found.stdout)


@contextmanager
def obtained(arguments: Sequence[str], *, wait_s: float, say: Say) -> Iterator[str]:
    """A job of one's own that holds nodes while the block runs; its number.

    It is given back whatever ends the block, unless it has ended before that. It ends by itself
    once this process is gone.

    Args:
        arguments: Of `sbatch`.
        wait_s: Longest time to wait for the nodes.
        say: Takes a line.

    Raises:
        JobError: Slurm refuses the arguments.
        FleetError: The nodes were not given in time, or not at all.
    """
    # A name that nobody on the nodes can prepare.
    fifo = f"/tmp/autotune-{secrets.token_hex(8)}"
    job = _submit(fifo, arguments)
    holder: LocalProcess | None = None
    try:
        status = _wait_for_nodes(job, wait_s=wait_s, say=say)
        holder = LocalProcess(
            step_command(job, status.first_node, ["sh", "-c", _HOLDER, fifo]),
            environment=slurm_environment(),
        )
        names = ",".join(status.slots)
        until = "" if status.end_time == "Unknown" else f" until {status.end_time}"
        say(f"job {job} of Slurm holds {names}{until}")
        yield job
    finally:
        _give_back(job, say)
        if holder is not None:
            holder.end()


def step_command(job: str, node: str, command: Sequence[str]) -> list[str]:
    """Command that runs another one on a node of a job, as one task with all that the job has."""
    return [
        *("srun", "--quiet", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1"),
        # Without these a task gets a core and its share of the memory; and the working folder
        # need not be there.
        *(f"--nodelist={node}", "--mem=0", "--cpu-bind=none", "--chdir=/"),
        *command,
    ]


def slurm_environment() -> dict[str, str]:
    """The environment of Slurm's programs, and of what they start on the nodes.

    No secret goes there, and no number of this machine's GPUs. What an allocation says of itself
    would be taken for options.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in _CLUSTER_VARIABLES
        or not (
            name.startswith(_TAKEN_FOR_OPTIONS) or name in MACHINE_VARIABLES or is_secret(name)
        )
    }


def run_slurm(*command: str) -> str:
    """Output of one of Slurm's programs.

    Raises:
        FleetError: It is not there, fails, or does not answer.
    """
    return _output(command, _run(command))


def check_slurm() -> None:
    """See that Slurm's programs are here.

    Raises:
        FleetError: One is not.
    """
    missing = [name for name in ("srun", "scontrol", "sbatch") if shutil.which(name) is None]
    if missing:
        raise FleetError.of("fleet.no_slurm_here", missing=", ".join(missing))


def _output(command: Sequence[str], done: "subprocess.CompletedProcess[str]") -> str:
    if done.returncode:
        reason = _words(done.stderr) or f"exit code {done.returncode}"
        raise FleetError(f"{' '.join(command[:3])}: {reason}", "see whether `sinfo` answers here")
    return done.stdout.strip()


def _run(
    command: Sequence[str], timeout_s: float = _ANSWER_S
) -> "subprocess.CompletedProcess[str]":
    try:
        return run_guarded(command, timeout_s=timeout_s, env=slurm_environment())
    except OSError as error:
        raise FleetError(f"{command[0]} cannot be started: {error}", "") from error
    except subprocess.TimeoutExpired as error:
        raise FleetError.of(
            "fleet.slurm_silent", command=" ".join(command[:3]), timeout_s=timeout_s
        ) from error


def _sbatch(first: str, fifo: str, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    # Nobody watches a job that begins again by itself, and its other nodes survive one's failure.
    flags = ("--job-name=autotune", "--chdir=/", "--no-requeue", "--no-kill", "--output=/dev/null")
    # Ours come first: what follows the name of a script would be arguments of that.
    return _run(["sbatch", first, *flags, f"--wrap=fifo={fifo}\n{_SCRIPT}", *arguments])


def _submit(fifo: str, arguments: Sequence[str]) -> str:
    # An interrupt half way would leave a job whose number nobody knows.
    held = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        found = _sbatch("--parsable", fifo, arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if found.returncode:
        raise _refused(found, arguments)
    return found.stdout.strip().partition(";")[0]


def _refused(
    found: "subprocess.CompletedProcess[str]", arguments: Sequence[str]
) -> JobError | FleetError:
    if any(phrase in found.stderr for phrase in _UNREACHED):
        return FleetError.of("fleet.no_cluster", output=_words(found.stderr))
    return JobError.of(
        "fleet.sbatch_refuses", arguments=shlex.join(arguments), output=_words(found.stderr)
    )


_UNREACHED = (
    *("resolve_ctls_from_dns_srv", "Could not establish a configuration source"),
    *("Unable to contact slurm controller", "fetch_config"),
)
"""What Slurm's programs say where there is no controller, or no configuration that names one."""


def _wait_for_nodes(job: str, *, wait_s: float, say: Say) -> JobStatus:
    started_s = reported_at_s = answered_s = time.monotonic()
    look_s, reason = _FIRST_LOOK_S, ""
    while True:
        try:
            status = status_of(job)
            answered_s = time.monotonic()
        except FleetError as error:
            if time.monotonic() - answered_s > _SILENT_S:
                raise
            say(f"job {job} of Slurm is asked for again: {error.message}")
            time.sleep(_LONGEST_LOOK_S)
            continue
        if status.state == "RUNNING":
            return status
        if status.state not in _STARTING:
            raise FleetError(end_of(job, n_restarts=0) or not_running(job, status), _AGAIN)
        now_s = time.monotonic()
        is_new = status.reason not in (reason, "None")
        if is_new or now_s - reported_at_s > _REPORT_PERIOD_S:
            say(not_running(job, status))
            reason, reported_at_s = status.reason, now_s
        if now_s - started_s > wait_s:
            raise FleetError.of("fleet.no_nodes_in_time", job=job, wait_s=wait_s, status=status)
        time.sleep(min(look_s, max(0.0, started_s + wait_s - now_s)))
        look_s = min(2 * look_s, _LONGEST_LOOK_S)


def _give_back(job: str, say: Say) -> None:
    is_held = True
    try:
        with suppress(FleetError):
            is_held = status_of(job).state in (*_STARTING, *_HOLDING)
    finally:  # an interrupt meanwhile is no reason to keep the nodes
        try:
            run_slurm("scancel", job)
        except FleetError as error:
            if is_held:
                may = f"job {job} of Slurm may still hold its nodes"
                say(f"{may}: {error.message}; scancel {job}")
        else:
            if is_held:
                say(f"job {job} of Slurm is given back")


def _words(text: str) -> str:
    """Words of a program of Slurm, without its name before each line."""
    lines = (re.sub(r"^\w+: (error: )?", "", line.strip()) for line in text.splitlines())
    return "; ".join(filter(None, lines))


def _n_gpus(gres: str) -> int:
    """GPUs in `gpu:a100:4(IDX:0-3),nic:1`."""
    return sum(int(n) for n in re.findall(r"(?:^|,)gpu(?::[^:,()]+)?:(\d+)", gres))
