"""Ranks that train the cases of a test, by a driver script of its own."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from tests.captured import captured

REPOSITORY = Path(__file__).resolve().parent.parent


def train_cases(
    driver: Path,
    cases: list[dict[str, Any]],
    folder: Path,
    *,
    world: int = 2,
    nvme: bool = False,
    timeout_s: float = 200,
) -> list[list[Any]]:
    """Train the cases one after the other in one set of ranks.

    Args:
        driver: Script of a driver, as of `tests.rank_driver`.
        cases: As the driver reads them.
        folder: For both files.
        world: Ranks.
        nvme: Whether the extension that swaps is built as well.
        timeout_s: Time for all of them.

    Returns:
        The answers of all ranks to each case.
    """
    build("cpu", lambda _: None, nvme=nvme)
    asked, answered = folder / "cases.json", folder / "results.json"
    asked.write_text(json.dumps(cases))
    done = captured(
        [sys.executable, str(driver), str(asked), str(answered), str(world)],
        env={
            **os.environ,
            **extensions_environment("cpu"),
            "DS_ACCELERATOR": "cpu",
            "LOCAL_SIZE": str(world),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
        },
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    results: list[list[Any]] = json.loads(answered.read_text())
    assert len(results) == len(cases)
    return results
