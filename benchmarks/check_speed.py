"""How long `check` takes, from the start of Python to its end, and what the large files cost.

Each command runs in fresh processes, after one that leaves the compiled modules in a folder of
this benchmark's: an installed package has them. Of the times the fastest is the command's own: the
others also hold what else the machine did.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune.base.user_text import MAX_BYTES

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_cliping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_com": True},
}
YAML = "distributed_type: DEEPSPEED\nnum_processes: 8\ndeepspeed_config: {zero_stage: 3}\n"


def files_in(folder: Path) -> dict[str, list[str]]:
    """Name of a case -> the arguments of its command; its files are written."""
    small, yaml, large = (folder / name for name in ("ds_config.json", "a.yaml", "large.json"))
    small.write_text(json.dumps(CONFIG, indent=2), encoding="utf-8")
    yaml.write_text(YAML, encoding="utf-8")
    unknown = {f"unknown_{number}": number for number in range(MAX_BYTES // 32)}
    large.write_text(json.dumps(CONFIG | unknown), encoding="utf-8")
    return {
        "check ds_config.json": ["check", str(small)],
        "check accelerate.yaml": ["check", str(yaml)],
        f"check {large.stat().st_size / 2**20:.1f} MiB, {len(unknown)} unknown keys": [
            *("check", str(large)),
        ],
        "rule batch.product": ["rule", "batch.product"],
        "--help": ["--help"],
    }


def measure(arguments: list[str], runs: int, modules: Path) -> dict[str, float]:
    """Seconds from start to end, seconds of the processor, and the most memory, of one command.

    Args:
        arguments: Of the command.
        runs: Processes that count.
        modules: Folder of the compiled modules.
    """
    walls_s, processor_s, memory_bytes = [], [], 0
    compiled = {"PYTHONPYCACHEPREFIX": str(modules), "PYTHONDONTWRITEBYTECODE": ""}
    for _ in range(runs + 1):
        started = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "autotune", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | compiled,
        ) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        walls_s.append(time.perf_counter() - started)
        processor_s.append(used.ru_utime + used.ru_stime)
        memory_bytes = max(memory_bytes, used.ru_maxrss * 1024)
    return {
        "fastest_s": min(walls_s[1:]),
        "median_s": statistics.median(walls_s[1:]),
        "processor_s": min(processor_s[1:]),
        "memory_bytes": memory_bytes,
    }


def main() -> None:
    """Print a line per command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="Processes of each command.")
    runs = parser.parse_args().runs
    print("| command | fastest | median | processor | memory |")
    print("|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        for name, arguments in files_in(Path(folder)).items():
            took = measure(arguments, runs, Path(folder) / "modules")
            print(
                f"| `{name}` | {took['fastest_s']:.2f} s | {took['median_s']:.2f} s "
                f"| {took['processor_s']:.2f} s | {took['memory_bytes'] / 2**20:.0f} MiB |"
            )


if __name__ == "__main__":
    main()
