"""Shell files and launch lines that somebody has, whatever engine they start."""

import json
from collections.abc import Mapping
from pathlib import Path

PROGRAMS: Mapping[str, Mapping[str, str]] = json.loads(
    Path(__file__).with_name("programs.json").read_text(encoding="utf-8")
)
"""What is recorded of programs that start a training: `launchers`, options of `slurm`, and those
of srun that take the next word for a value (Slurm 24.05, srun.1)."""
