"""Commands that a test waits for, and programs that stand in for others."""

import subprocess
from pathlib import Path
from typing import Any


def captured(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, as `subprocess.run` does; what it prints is kept, as text."""
    return subprocess.run(command, capture_output=True, text=True, **options)


def stand_in(folder: Path, name: str, text: str) -> None:
    """Write a shell script that runs in place of a program."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)
