"""Ask a module in a Python process of its own: it may import torch and the user's code."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.guarded_process import run_guarded, scratch_folder
from autotune.contract import read_bounded

_OUT_OF_MEMORY = ("MemoryError", "allocate memory", "std::bad_alloc", "out of memory")
_MISSING = re.compile(r"No module named '(torch|transformers)\b")
_MOST_BYTES = 16 * 2**30
"""Private memory of a child: it builds models without their weights."""


def ask(
    module: str,
    request: Mapping[str, Any],
    *,
    about: str,
    doing: str,
    timeout_s: float,
    if_slow: str,
    if_dead: str,
) -> dict[str, Any]:
    """The answer of a module to a request. It sees no GPU.

    Args:
        module: Run as `python -m MODULE ANSWER < request`; it writes a JSON object to that file,
            which is the answer, or has `error` and `hint`.
        request: As JSON.
        about: What the errors begin with.
        doing: What the child does, as in `building it ended with code 1`.
        timeout_s: Time for an answer.
        if_slow: What may help where that is over.
        if_dead: What may help where the process ended without an answer.

    Raises:
        JobError: There is none, or it is an error.
    """
    root = Path(__file__).parents[2]  # where the package is, installed or not
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    limit_bytes = min(_MOST_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with scratch_folder() as folder:
        answer = folder / "answer.json"
        command = [sys.executable, "-P", "-m", module, str(answer)]
        try:
            done = run_guarded(
                command,
                input=json.dumps(request),
                timeout_s=timeout_s,
                data_bytes=limit_bytes,
                env=os.environ
                | {"PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""},
            )
        except subprocess.TimeoutExpired as error:
            problem = f"{about}: {doing} is not done after {timeout_s:.0f} s"
            raise JobError(problem, if_slow) from error
        if not answer.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            if any(sign in last for sign in _OUT_OF_MEMORY):
                last += f" (it may have {limit_bytes / 2**30:.0f} GiB of memory)"
            if missing := _MISSING.search(last):
                if_dead = f"pip install {missing[1]}"
            problem = f"{about}: {doing} ended with code {done.returncode}: {last}"
            raise JobError(problem, if_dead)
        found: dict[str, Any] = json.loads(read_bounded(answer))
    if "error" in found:
        raise JobError(f"{about}: {found['error']}", found["hint"])
    return found
