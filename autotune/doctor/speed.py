"""Measure the devices, all at once, in processes that start as the ranks of a trial do."""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.contract import RANKS_DIR, STDERR_FILE, TRIAL_ENV
from autotune.doctor.diagnosis import Speed
from autotune.errors import FleetError
from autotune.fleet.ports import lease_port
from autotune.fleet.processes import kill_all, ranks_command
from autotune.trial.launcher import COORDINATOR_ENV

MAX_CORES = 16
"""Cores that take part at the most, evenly spread: each is a process that imports torch."""
TIMEOUT_S = 60.0


def measure_speed(accelerator: str, devices: Sequence[int]) -> Speed:
    """Run the matrix product and the all-reduce: gloo over cores, NCCL over GPUs.

    Args:
        accelerator: `cpu` or `cuda`.
        devices: Core numbers, or the indices of all visible GPUs.

    Returns:
        The figures; if a process failed or hung, `problem` and no figures.
    """
    chosen = _spread(devices, MAX_CORES) if accelerator == "cpu" else tuple(devices)
    started_at_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="autotune-doctor-") as name:
        folder = Path(name).resolve()
        (folder / RANKS_DIR).mkdir()
        try:
            problem = _run(folder, accelerator, chosen)
        except FleetError as error:
            problem = error.message
        reports = [] if problem else _reports(folder, len(chosen))
    wall_s = time.monotonic() - started_at_s
    if not problem and len(reports) < len(chosen):
        problem = f"{len(chosen) - len(reports)} of {len(chosen)} ranks wrote no figures"
    if problem:
        reports = []
    return Speed(
        devices=chosen,
        matmul=reports[0]["matmul"] if reports else "",
        matmul_flops=tuple(2 * r["n"] ** 3 / statistics.median(r["matmul_s"]) for r in reports),
        all_reduce_bytes=reports[0]["all_reduce_bytes"] if reports else 0,
        all_reduce_busbw=_busbw(reports),
        wall_s=wall_s,
        problem=problem,
    )


def _run(folder: Path, accelerator: str, devices: Sequence[int]) -> str:
    """Start the ranks and wait; returns what went wrong, or nothing."""
    port = lease_port()
    command = ranks_command(
        folder,
        world=len(devices),
        port=port.port,
        module="autotune.doctor.rank",
        arguments=[str(folder), accelerator, ",".join(map(str, devices))],
    )
    environment = {
        **os.environ,
        TRIAL_ENV: str(folder),
        COORDINATOR_ENV: str(os.getpid()),
        "OMP_NUM_THREADS": "1",
    }
    if accelerator == "cpu":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    errors = folder / STDERR_FILE
    try:
        with errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment,
                start_new_session=True,
            )
        code = process.wait(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer after {TIMEOUT_S:.0f} s: {_said_last(errors)}"
    finally:
        kill_all(folder)
        port.release()
    if code == 0:
        return ""
    return _first_failure(folder) or f"exit code {code}: {_said_last(errors)}"


def _reports(folder: Path, n_ranks: int) -> list[dict[str, Any]]:
    files = [folder / f"{rank}.json" for rank in range(n_ranks)]
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.exists()]


def _first_failure(folder: Path) -> str:
    """What the rank that failed first said; the others fail because of it."""
    files = sorted(folder.glob("*.error"), key=lambda file: file.stat().st_mtime_ns)
    return files[0].read_text(encoding="utf-8") if files else ""


def _said_last(errors: Path) -> str:
    lines = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1].strip() if lines else "nothing was said"


def _busbw(reports: Sequence[dict[str, Any]]) -> float | None:
    n = len(reports)
    if n < 2:
        return None
    slowest_s = max(statistics.median(report["all_reduce_s"]) for report in reports)
    return float(2 * (n - 1) / n * reports[0]["all_reduce_bytes"] / slowest_s)


def _spread(devices: Sequence[int], at_most: int) -> tuple[int, ...]:
    n = min(len(devices), at_most)
    return tuple(devices[i * len(devices) // n] for i in range(n))
