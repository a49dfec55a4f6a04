"""Ranks that train the cases of a test, by a driver script of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment

REPOSITORY = Path(__file__).resolve().parent.parent


def train_cases(
    driver: Path,
    cases: list[dict[str, Any]],
    folder: Path,
    *,
    world: int = 2,
    nvme: bool = False,
    timeout_s: float = 200,
    variables: Mapping[str, str] | None = None,
    forks: bool = False,
) -> list[Any]:
    """Train the cases one after the other in one set of ranks.

    Args:
        driver: Script that every rank runs, with the files of the cases and of the answers.
        cases: As the driver reads them.
        folder: For both files.
        world: Ranks.
        nvme: Whether the extension that swaps is built as well.
        timeout_s: Time for all of them.
        variables: Further ones of the ranks.
        forks: Whether the driver forks the ranks itself, as many as its third argument says:
            then one process imports what all of them need.

    Returns:
        The driver's answers, one for each case.
    """
    build("cpu", lambda _: None, nvme=nvme)
    asked, answered = folder / "cases.json", folder / "results.json"
    asked.write_text(json.dumps(cases))
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    files = (str(driver), str(asked), str(answered))
    done = subprocess.run(
        [sys.executable, *((*files, str(world)) if forks else (*torchrun, *files))],
        env={
            **os.environ,
            **extensions_environment("cpu"),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            **(variables or {}),
        },
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[Any] = json.loads(answered.read_text())
    assert len(results) == len(cases)
    return results
