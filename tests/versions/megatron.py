"""Runs the reality tests with releases of Megatron Core: `python -m tests.versions.megatron`.

A release is one wheel, which needs nothing that is not there: it is unpacked into a folder that
comes before all others. What came out is recorded in `results/recorded/versions/`. No part of
`make test`: it installs packages.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autotune.base.private import user_cache
from autotune.engines.megatron.plugin import Megatron
from tests.versions.environments import REPOSITORY
from tests.versions.run import RECORDS, measured, write

TESTS = ("tests/engines/megatron/test_reality.py",)
_PACKAGE = Megatron.packages[0]
_FOR_PYTHON = ("--python-version", "3.12", "--only-binary=:all:", "--ignore-requires-python")
"""Releases from 0.17 on name no older Python. Their code for GPT runs with 3.11 all the same; the
record says which Python it was."""


def record_of(release: str) -> Path:
    """File in which a release is recorded: 0.14.0 -> megatron-0.14.json."""
    return RECORDS / f"megatron-{'.'.join(release.split('.')[:2])}.json"


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a test failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="*", help=f"by default {', '.join(_PACKAGE.tried)}")
    parser.add_argument("--folder", type=Path, default=user_cache() / "versions")
    options = parser.parse_args(arguments)
    failed = 0
    for release in options.releases or _PACKAGE.tried:
        failed += write(run(release, options.folder / f"megatron-{release}"), record_of(release))
    return 1 if failed else 0


def run(release: str, folder: Path) -> dict[str, Any]:
    """Run the tests with one release, whose wheel is in the folder then; returns the record."""
    if not folder.exists():
        wanted = f"{_PACKAGE.name}=={release}"
        target = ("--no-deps", "--target", str(folder), *_FOR_PYTHON)
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", *target, wanted], check=True
        )
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(REPOSITORY)]),
        "OMP_NUM_THREADS": "1",
    }
    report, packages = folder.with_suffix(".xml"), (_PACKAGE.name, "torch", "numpy")
    figures = ("candidates_trained",)
    return measured(Path(sys.executable), TESTS, report, packages, variables, figures=figures)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
