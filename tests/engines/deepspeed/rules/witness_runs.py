"""Asks the installed DeepSpeed what it does with cases: starts the driver, reads its answers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.engines.deepspeed.rules.base import as_section
from autotune.engines.deepspeed.rules.plain import config_of, model_of
from autotune.engines.deepspeed.rules.witnesses import Case
from tests.engines.deepspeed.rules.cases import source_of

DRIVER = Path(__file__).with_name("witness_driver.py")
START_S = 90.0
"""Time for imports."""
CASE_S = 10.0
"""Time for a case, on the mean."""


_SAME = (
    *("world", "pp", "recompute", "attention", "loss_chunk_tokens", "mlp_chunk_tokens", "compile"),
    *("precision", "seq_len", "fp16_supported"),
)
"""What the driver is told as the case says it."""


def key_of(case: Case) -> str:
    """Two cases with the same key are the same run: the driver is told the same."""
    return json.dumps(_run_of(case), sort_keys=True)


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run every case once, in ranks of its own.

    Returns:
        `key_of` a case -> what each of its ranks answered (see `tests.forked_ranks`).
    """
    asked = {key_of(case): case for case in cases}
    runs, results, log = (folder / name for name in ("runs.json", "results.jsonl", "log.txt"))
    runs.write_text(json.dumps([{"id": key, **_run_of(case)} for key, case in asked.items()]))
    build("cpu", lambda _: None, nvme=any(swaps(case) for case in asked.values()))
    environment = {
        **os.environ,
        **extensions_environment("cpu"),
        "OMP_NUM_THREADS": "1",
        # Muon's kernels run as they are: compiling them would take longer than all the rest.
        "TORCHDYNAMO_DISABLE": "1",
        "PYTHONPATH": os.pathsep.join(
            [str(DRIVER.parents[4]), *filter(None, [os.environ.get("PYTHONPATH")])]
        ),
    }
    with log.open("w") as file:
        done = subprocess.run(
            [sys.executable, str(DRIVER), str(runs), str(results)],
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=START_S + CASE_S * len(asked),
            check=False,
        )
    assert done.returncode == 0, log.read_text()[-4000:]
    lines = results.read_text().splitlines()
    return {answer["id"]: answer["ranks"] for answer in map(json.loads, lines)}


def swaps(case: Case) -> bool:
    """Whether it loads the extension for NVMe."""
    zero = as_section(case.ds_config.get("zero_optimization"))
    return any(as_section(section).get("device") == "nvme" for section in zero.values())


def _run_of(case: Case) -> dict[str, Any]:
    return {
        **{name: getattr(case, name) for name in _SAME},
        "config": config_of(case),
        "model": model_of(case),
        "source": source_of(model_of(case)),
        # AutoTP is told by the configuration alone.
        "tp": case.tp if case.pp > 1 else None,
        "sp": case.sp_by_script,
        "optimizer": case.script_optimizer,
    }
