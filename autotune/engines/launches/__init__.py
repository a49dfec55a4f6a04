"""Shell files and launch lines that somebody has, whatever engine they start."""

from collections.abc import Mapping
from typing import Any

from autotune.base.data import table_beside

PROGRAMS: Mapping[str, Any] = table_beside(__file__, "programs.json")
"""What is recorded of programs that start a training: `launchers`, options of `slurm`, and those
of srun that take the next word for a value (Slurm 24.05, srun.1)."""
