"""What must hold after every fault, whatever it was: nothing is left over, the record is whole."""

import hashlib
import os
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import psutil

from autotune.contract import RESULT_FILE, SPEC_FILE
from autotune.engines.deepspeed.extensions import stale_locks
from autotune.fleet.node.ports import ports_of_segments
from autotune.fleet.node.processes import processes_of
from autotune.record.study import Study
from tests.chaos.faults import must

_LEASE = "@autotune-port-"
"""How the names of leases begin, as the kernel shows them."""
Digests = dict[int, str]
"""Digest of every finished trial's result, by number."""


def check_nothing_is_left(study: Study, ports: Collection[int]) -> None:
    """No process, leased port, listener, shared memory or lock of the study's trials.

    Args:
        study: The trials'.
        ports: That they were given.
    """
    left = processes_of(study.trials_folder)
    must(not left, f"processes are left: {[' '.join(command_of(p))[:80] for p in left]}")
    holders = [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]
    leased = [port for pid in holders for port in leased_by(pid)]
    must(not leased, f"ports are still leased: {leased}")
    # Others may run trials on this machine at the same time, and be given these ports by now.
    segments = unleased_segments() & set(ports)
    must(not segments, f"shared memory is left of ports {segments}")
    locks = stale_locks("cpu")
    must(not locks, f"locks of extensions are left: {locks}")


def unleased_segments() -> set[int]:
    """Ports of which shared memory is there, and nobody holds the lease."""
    return {port for port in ports_of_segments() if not _is_leased(port)}


def check_record(study: Study, before: Digests) -> Digests:
    """Every trial has one whole result, and those that there were are as they were.

    Args:
        study: The record.
        before: What an earlier call returned.
    """
    now = digests(study)
    lost = [n for n, digest in before.items() if now.get(n) != digest]
    must(not lost, f"finished trials were lost or changed: {lost}")
    recorded = study.read()
    # A folder whose spec was never written is one of a trial that never began.
    begun = [u for u in recorded.unreadable if (u.folder / SPEC_FILE).exists()]
    must(not begun, f"unreadable: {[u.problem for u in begun]}")
    open_ends = [t.spec.identity.number for t in recorded.trials if t.result is None]
    must(not open_ends, f"trials without a result: {open_ends}")
    numbers = Counter(t.spec.identity.number for t in recorded.trials)
    must(max(numbers.values(), default=1) == 1, f"numbers stand twice: {numbers}")
    return now


def digests(study: Study) -> Digests:
    """Digests of every result that can be read."""
    return {
        trial.spec.identity.number: hashlib.sha256(
            (trial.folder / RESULT_FILE).read_bytes()
        ).hexdigest()
        for trial in study.trials()
        if trial.result is not None
    }


def leased_by(pid: int) -> list[int]:
    """Ports of which a process holds the lease."""
    sockets = psutil.Process(pid).net_connections(kind="unix")
    names = (str(socket.laddr).partition(_LEASE) for socket in sockets)
    return [int(port) for _, lease, port in names if lease]


def _is_leased(port: int) -> bool:
    """Whether anybody holds the lease."""
    return f"{_LEASE}{port}\n" in Path("/proc/net/unix").read_text(encoding="utf-8")


def command_of(process: psutil.Process) -> list[str]:
    """The words that started a process."""
    try:
        return process.cmdline()
    except psutil.Error:
        return ["gone"]
