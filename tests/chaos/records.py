"""What a full run found, kept in `results/recorded/chaos/`."""

import datetime
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.base.files import write_whole
from tests.machine import machine_in_words

_PACKAGES = ("deepspeed", "torch", "transformers", "jinja2", "pyyaml", "pydantic")


def write_record(path: Path, module: str, arguments: Sequence[str], found: dict[str, Any]) -> None:
    """Write what a run found, with the command, the versions and the machine in words."""
    record = {
        "command": " ".join(["python", "-m", module, *arguments]),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in _PACKAGES},
        },
        "date": datetime.date.today().isoformat(),
        "machine": machine_in_words(),
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1) + "\n"
    # A run may be killed at any time, and the record is to be whole.
    write_whole(path, lambda aside: aside.write_text(text, encoding="utf-8"))
