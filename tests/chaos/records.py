"""What a full run found, kept in `results/recorded/chaos/`."""

import datetime
import json
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.base.units import format_bytes
from autotune.devices.hardware import cpu_name, usable_cores, usable_memory_bytes

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
        "machine": f"{len(usable_cores())} cores of {cpu_name()}, "
        f"{format_bytes(usable_memory_bytes())} of memory, no accelerator",
        **found,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
