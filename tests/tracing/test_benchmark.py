"""Traced memory is what a real step on a CPU allocates, by the allocator's own reports."""

import json
import sys
from pathlib import Path

from tests.captured import captured

REPOSITORY = Path(__file__).resolve().parents[2]


def test_real_steps_hold_what_was_traced() -> None:
    done = captured(
        [sys.executable, "benchmarks/trace_memory.py", "--half", "--seq-len", "128", "--json"],
        cwd=REPOSITORY,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 2 * 2 * 2 * 2 / 2
    assert len({tuple(row["traced_bytes"].values()) for row in rows}) == len(rows)
    worst = max(rows, key=lambda row: row["error"])
    assert worst["error"] < 0.01, worst
