"""Spare the ranks DeepSpeed's repeated look at the processor.

For every extension that it loads, built or not, DeepSpeed asks py-cpuinfo for compiler flags:
about a second each time, in every rank. The answer is saved once, beside the extensions.
"""

import json
import os
from pathlib import Path
from typing import Any

_FILE = "cpu_info.json"


def save_cpu_info(folder: Path) -> None:
    """Ask py-cpuinfo once and keep its answer in the extensions folder."""
    import cpuinfo  # installed with deepspeed

    path = folder / _FILE
    if path.exists():
        return
    aside = folder / f".{_FILE}.{os.getpid()}"
    aside.write_text(json.dumps(cpuinfo.get_cpu_info()), encoding="utf-8")
    aside.replace(path)


def reuse_cpu_info() -> None:
    """Answer py-cpuinfo's question from the saved file; without one nothing changes."""
    folder = os.environ.get("TORCH_EXTENSIONS_DIR")
    if not folder:
        return
    try:
        saved: dict[str, Any] = json.loads((Path(folder) / _FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    import cpuinfo  # installed with deepspeed

    cpuinfo.get_cpu_info = lambda: saved
