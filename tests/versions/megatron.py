"""Runs the reality tests with releases of Megatron Core: `python -m tests.versions.megatron`.

A release is one wheel, which needs nothing that is not there: it is unpacked into a folder that
comes before all others. What came out is recorded in `results/recorded/versions/`. No part of
`make test`: it installs packages.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from autotune.base.private import user_cache
from autotune.engines.megatron.plugin import Megatron
from tests.machine import machine_in_words
from tests.versions.environments import REPOSITORY
from tests.versions.run import RECORDS, summary

TESTS = ("tests/engines/megatron/test_reality.py",)
_PACKAGE = Megatron.packages[0]
_FOR_PYTHON = ("--python-version", "3.12", "--only-binary=:all:", "--ignore-requires-python")
"""Releases from 0.17 on name no older Python. Their code for GPT runs with 3.11 all the same; the
record says which Python it was."""
_VERSIONS = (
    "import json, platform; from importlib.metadata import version; "
    "print(json.dumps({'python': platform.python_version(), "
    "**{name: version(name) for name in ('megatron-core', 'torch', 'numpy')}}))"
)


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
        record = run(release, options.folder / f"megatron-{release}")
        path = record_of(release)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        failed += len(record["failed"])
        print(f"{path}: {record['tests']}", flush=True)
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
    report = folder.with_suffix(".xml")
    report.unlink(missing_ok=True)
    started = time.monotonic()
    subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
            *("-o", "junit_family=xunit1", f"--junitxml={report}"),
            *TESTS,
        ],
        env=variables,
        cwd=REPOSITORY,
        check=False,  # the report says what failed
    )
    wall_s = round(time.monotonic() - started)
    said = subprocess.run(
        [sys.executable, "-c", _VERSIONS],
        env=variables,
        check=True,
        capture_output=True,
        text=True,
    )
    found = summary(report)
    return {
        "versions": json.loads(said.stdout),
        "date": datetime.date.today().isoformat(),
        "machine": machine_in_words(),
        "wall_s": wall_s,
        **{name: found[name] for name in ("candidates_trained", "tests", "failed")},
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
