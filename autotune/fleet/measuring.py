"""Runs a measurement on ranks of this machine, which start as those of a trial do."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import FleetError
from autotune.base.guarded_process import GuardedProcess, scratch_folder
from autotune.contract import RANKS_DIR, STDERR_FILE, TRIAL_ENV, read_bounded, read_text
from autotune.devices.hardware import usable_cores
from autotune.fleet.node.ports import lease_port
from autotune.fleet.node.processes import NodePart, kill_all, ranks_command
from autotune.fleet.reports import exit_codes, read_reports
from autotune.trial.rendezvous import LOOPBACK


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """Where the ranks of several nodes find one another; by default there is one node."""

    node: int = 0
    """This node's place among them."""
    n_nodes: int = 1
    address: str = LOOPBACK
    """Address of the first node."""
    interface: str = "lo"
    """Network interface by which the ranks here reach the others."""
    port: int | None = None
    """Port of the first node; None: it leases one."""


ALONE = Meeting()
"""Ranks of this machine alone."""


def measure_on_ranks(
    module: str,
    arguments: Sequence[str] = (),
    *,
    accelerator: str,
    devices: Sequence[int],
    timeout_s: float,
    meeting: Meeting = ALONE,
) -> list[dict[str, Any]]:
    """Start a rank per device, wait for all, and leave none behind, whatever happens.

    The module ends in `autotune.trial.report_rank.report`. Devices are core numbers, or indices of
    GPUs, counted from 0.

    Returns:
        What each rank here wrote, in their order.

    Raises:
        FleetError: A rank failed, died, hung or wrote nothing, or no port is free; the message is
            what the rank said, or the last line of the log.
    """
    with scratch_folder() as folder:
        (folder / RANKS_DIR).mkdir()
        part = NodePart(folder=str(folder), devices=[*map(str, devices)], **asdict(meeting))
        _run(part, module, [accelerator, ",".join(part.devices), *arguments], timeout_s)
        ranks = range(part.first_rank, part.first_rank + len(devices))
        files = [file for rank in ranks if (file := folder / f"{rank}.json").exists()]
        if missing := len(devices) - len(files):
            raise FleetError(f"{missing} of {len(devices)} ranks wrote no figures", _HINT)
        return [json.loads(read_bounded(file)) for file in files]


_HINT = "the line names the cause: a busy device, a driver, or the network interface"


def _run(part: NodePart, module: str, arguments: Sequence[str], timeout_s: float) -> None:
    folder = Path(part.folder)
    lease = lease_port() if part.port is None else None
    port = lease.port if lease is not None else part.port or 0
    errors = folder / STDERR_FILE
    process: GuardedProcess | None = None
    try:
        with errors.open("wb") as stderr:
            process = GuardedProcess(
                ranks_command(part, port, module, part.folder, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=_environment(part, accelerator=arguments[0]),
                wall_s=2 * timeout_s,  # were this program stopped, nobody would look at the clock
            )
        code = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        reason = _first_failure(part) or _last_line(errors)
        raise FleetError(f"no answer after {timeout_s:.0f} s: {reason}", _HINT) from error
    finally:
        # Ctrl-C comes this way too: the ranks are in a session of their own, and know nothing.
        if process is not None:
            process.end()  # first: `kill_all` finds the keeper as well, which has to end last
        kill_all(folder)
        if lease is not None:
            lease.release()
    if code:
        reason = _killed(folder, part.node) or _first_failure(part)
        raise FleetError(reason or f"exit code {code}: {_last_line(errors)}", _HINT)


def _environment(part: NodePart, accelerator: str) -> dict[str, str]:
    made = {**os.environ, TRIAL_ENV: part.folder}
    if accelerator == "cpu":
        made["OMP_NUM_THREADS"] = "1"
        made["GLOO_SOCKET_IFNAME"] = part.interface
    else:
        threads = max(1, len(usable_cores()) // len(part.devices))
        made.setdefault("OMP_NUM_THREADS", str(threads))
        # Loopback for one machine alone: nothing need listen where others could reach it.
        # The equals sign keeps NCCL from taking the name for the beginning of one.
        made.setdefault("NCCL_SOCKET_IFNAME", f"={part.interface}")
    return made


def _killed(folder: Path, node: int) -> str:
    """Which rank a signal ended; the launcher ends the others with SIGTERM because of it."""
    return "; ".join(
        f"rank {rank} was ended by {signal.Signals(-code).name}"
        for rank, code in exit_codes(folder, node).items()
        if code < 0 and -code != signal.SIGTERM
    )


def _first_failure(part: NodePart) -> str:
    """Evidence of the rank that failed first; the others fail because of it."""
    reports = read_reports(Path(part.folder), len(part.devices), first=part.first_rank)
    failed = [report for report in reports if report.outcome is not None]
    first = min(failed, key=lambda report: report.ended_at_s, default=None)
    return "" if first is None else f"rank {first.rank}: {first.evidence}"


def _last_line(errors: Path) -> str:
    lines = read_text(errors).strip().splitlines()
    return lines[-1].strip() if lines else "nothing was said"
