"""Ask a module in a Python process of its own: it may import torch and the user's code."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a module is asked, and what is said where there is no answer."""

    module: str
    """Run as `python -m MODULE ANSWER < request`; it writes a JSON object to that file, which is
    the answer, or has `error` and `hint`."""
    request: Mapping[str, Any]
    about: str
    """What the errors begin with."""
    doing: str
    """What the child does, as in `building it ended with code 1`."""
    timeout_s: float
    if_slow: str
    """What may help where that is over."""
    if_dead: str
    """What may help where the process ended without an answer."""


def ask(question: Question) -> dict[str, Any]:
    """The module's answer. It sees no GPU.

    Raises:
        JobError: There is none, or it is an error.
    """
    package_parent = str(Path(__file__).parent.parent)
    paths = [package_parent, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="autotune-child-") as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-P", "-m", question.module, str(answer)]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(question.request),
                capture_output=True,
                text=True,
                timeout=question.timeout_s,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(paths),
                    "CUDA_VISIBLE_DEVICES": "",
                },
            )
        except subprocess.TimeoutExpired as error:
            raise JobError(
                f"{question.about}: {question.doing} is not done after {question.timeout_s:.0f} s",
                question.if_slow,
            ) from error
        if not answer.exists():
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise JobError(
                f"{question.about}: {question.doing} ended with code {done.returncode}: {last}",
                question.if_dead,
            )
        found: dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in found:
        raise JobError(f"{question.about}: {found['error']}", found["hint"])
    return found
