"""Asks the installed DeepSpeed what it does with cases: starts the driver, reads its answers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.engines.deepspeed.rules.base import Case, as_section
from autotune.engines.deepspeed.rules.plain import config_of, model_of
from tests.engines.deepspeed.rules.cases import source_of

DRIVER = Path(__file__).with_name("witness_driver.py")
START_S = 90.0
"""Seconds for the first answer of a process group: imports and extension loading."""


def key_of(case: Case) -> str:
    """Two cases with the same key are the same run; AutoTP is told by the configuration alone."""
    tp = {} if case.pp > 1 else {"tp": None}
    return json.dumps([asdict(case) | {"global_batch": None} | tp], sort_keys=True)


def run_cases(cases: Iterable[Case], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run every case once; those of one world share a process group.

    Returns:
        `key_of` a case -> what each of its ranks answered. After a case that hung, or ended its
        process, the rest goes on in fresh processes; if it does so as the first of them, when it
        can be nobody else's fault, its answer is the error `hung`.
    """
    answers: dict[str, list[dict[str, Any]]] = {}
    waiting = {key_of(case): case for case in cases}
    for world in sorted({case.world for case in waiting.values()}):
        left = {key: case for key, case in waiting.items() if case.world == world}
        attempt = 0
        while left:
            done = _run_group(left, world, folder, f"{world}-{attempt}")
            answers |= done
            left = {key: case for key, case in left.items() if key not in done}
            if left and not done:
                stuck = next(iter(left))
                answers[stuck] = [{"error": "hung", "traceback": _tail(folder, world, attempt)}]
                del left[stuck]
            attempt += 1
    return answers


def _run_group(
    cases: dict[str, Case], world: int, folder: Path, label: str
) -> dict[str, list[dict[str, Any]]]:
    runs = folder / f"runs-{label}.json"
    results = folder / f"results-{label}.jsonl"
    runs.write_text(json.dumps([_run_of(key, case) for key, case in cases.items()]))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={world}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"),
        *(str(DRIVER), str(runs), str(results)),
    ]
    build("cpu", lambda _: None, nvme=any(swaps(case) for case in cases.values()))
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
    with (folder / f"log-{label}.txt").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            process.wait(timeout=START_S + 5 * len(cases))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = results.read_text().splitlines() if results.exists() else []
    return {answer["id"]: answer["ranks"] for answer in map(json.loads, lines)}


def swaps(case: Case) -> bool:
    """Whether it loads the extension for NVMe."""
    zero = as_section(case.ds_config.get("zero_optimization"))
    return any(as_section(section).get("device") == "nvme" for section in zero.values())


def _run_of(key: str, case: Case) -> dict[str, Any]:
    return {
        "id": key,
        "config": config_of(case),
        "model": model_of(case),
        "source": source_of(model_of(case)),
        "tp": case.tp,
        "pp": case.pp,
        "recompute": case.recompute,
        "attention": case.attention,
        "loss_chunk_tokens": case.loss_chunk_tokens,
        "compile": case.compile,
        "sp": case.sp_by_script,
        "optimizer": case.script_optimizer,
        "precision": case.precision,
        "seq_len": case.seq_len,
        "fp16_supported": case.fp16_supported,
    }


def _tail(folder: Path, world: int, attempt: int) -> str:
    return (folder / f"log-{world}-{attempt}.txt").read_text()[-2000:]
