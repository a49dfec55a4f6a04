"""Commands that a test waits for."""

import subprocess
from typing import Any


def captured(command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command, as `subprocess.run` does; what it prints is kept, as text."""
    return subprocess.run(command, capture_output=True, text=True, **options)
