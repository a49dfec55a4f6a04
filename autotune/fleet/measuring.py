"""Runs a measurement on ranks of this machine, which start as those of a trial do."""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import FleetError
from autotune.contract import RANKS_DIR, STDERR_FILE, TRIAL_ENV, ContractError, read_json
from autotune.devices.hardware import usable_cores
from autotune.fleet.node.ports import lease_port
from autotune.fleet.node.processes import kill_all, ranks_command
from autotune.trial.launcher import EXIT_FILE, PARENT_ENV


def measure_on_ranks(
    module: str,
    arguments: Sequence[str] = (),
    *,
    accelerator: str,
    devices: Sequence[int],
    name: str,
    timeout_s: float,
    interface: str = "lo",
) -> list[dict[str, Any]]:
    """Start a rank per device, wait for all, and leave none behind, whatever happens.

    Args:
        module: What each rank runs; it ends in `autotune.trial.report_rank.report`.
        arguments: The module's own, after those that `report` reads.
        accelerator: `cpu` or `cuda`.
        devices: Core numbers, or the indices of GPUs, counted from 0.
        name: Name of the command, for the folder that the ranks write to.
        timeout_s: Seconds after which the ranks are killed.
        interface: Network interface by which the ranks talk to each other and to other machines.

    Returns:
        What each rank wrote, in their order.

    Raises:
        FleetError: A rank failed, died, hung or wrote nothing, or no port is free; the message is
            what the rank said, or the last line of the log.
    """
    with tempfile.TemporaryDirectory(prefix=f"autotune-{name}-") as made:
        folder = Path(made).resolve()
        (folder / RANKS_DIR).mkdir()
        command = [str(folder), accelerator, ",".join(map(str, devices)), *arguments]
        environment = _environment(folder, accelerator, len(devices), interface)
        _run(module, command, folder, len(devices), environment, timeout_s)
        return _reports(folder, len(devices))


def _run(
    module: str,
    arguments: Sequence[str],
    folder: Path,
    world: int,
    environment: Mapping[str, str],
    timeout_s: float,
) -> None:
    port = lease_port()
    errors = folder / STDERR_FILE
    try:
        command = ranks_command(
            folder, n_ranks=world, port=port.port, module=module, arguments=arguments
        )
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        code = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        said = _first_failure(folder) or _said_last(errors)
        raise FleetError(f"no answer after {timeout_s:.0f} s: {said}", _HINT) from error
    finally:
        # Ctrl-C comes this way too: the ranks are in a session of their own, and know nothing.
        kill_all(folder)
        port.release()
    if code:
        said = _killed(folder) or _first_failure(folder)
        raise FleetError(said or f"exit code {code}: {_said_last(errors)}", _HINT)


_HINT = "the line names the cause: a busy device, a driver, or the network interface"


def _environment(folder: Path, accelerator: str, world: int, interface: str) -> dict[str, str]:
    made = {**os.environ, TRIAL_ENV: str(folder), PARENT_ENV: str(os.getpid())}
    if accelerator == "cpu":
        made["OMP_NUM_THREADS"] = "1"
        made["GLOO_SOCKET_IFNAME"] = interface
    else:
        made.setdefault("OMP_NUM_THREADS", str(max(1, len(usable_cores()) // world)))
        # Loopback for one machine alone: nothing need listen where others could reach it.
        # The equals sign keeps NCCL from taking the name for the beginning of one.
        made.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    return made


def _reports(folder: Path, n_ranks: int) -> list[dict[str, Any]]:
    files = [folder / f"{rank}.json" for rank in range(n_ranks)]
    there = [file for file in files if file.exists()]
    if len(there) < n_ranks:
        raise FleetError(f"{n_ranks - len(there)} of {n_ranks} ranks wrote no figures", _HINT)
    return [json.loads(file.read_text(encoding="utf-8")) for file in there]


def _killed(folder: Path) -> str:
    """Which rank a signal ended; torchrun ends the others with SIGTERM because of it."""
    try:
        codes = read_json(folder / RANKS_DIR / EXIT_FILE.format(node=0))
    except ContractError:
        return ""
    signals = [
        f"rank {rank} was ended by {signal.Signals(-code).name}"
        for rank, code in codes.items()
        if isinstance(code, int) and code < 0 and -code != signal.SIGTERM
    ]
    return "; ".join(signals)


def _first_failure(folder: Path) -> str:
    """What the rank that failed first said; the others fail because of it."""
    files = sorted(folder.glob("*.error"), key=lambda file: file.stat().st_mtime_ns)
    return files[0].read_text(encoding="utf-8") if files else ""


def _said_last(errors: Path) -> str:
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "nothing was said"
