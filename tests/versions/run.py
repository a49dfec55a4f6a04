"""Runs the reality tests with older releases of DeepSpeed: `python -m tests.versions.run`.

Each line of releases has a file of constraints here and gets an environment of its own, where the
tests that ask the installed DeepSpeed run as they are. What came out is recorded in
`results/recorded/versions/`. No part of `make test`: it installs packages and compiles.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.private import user_cache
from tests.machine import machine_in_words
from tests.versions.environments import REPOSITORY, VersionEnvironment, install, names

TESTS = (
    "tests/planning/test_lattice_reality.py",
    "tests/engines/deepspeed/test_engine_reality.py",
    "tests/engines/deepspeed/rules/test_keys.py",
    "tests/engines/deepspeed/rules/test_witnesses.py",
)
RECORDS = REPOSITORY / "results" / "recorded" / "versions"
PACKAGES = ("deepspeed", "torch", "transformers", "numpy", "pydantic")
_BUILD = "from autotune.engines.deepspeed.extensions import build; build('cpu', print)"
_VARIABLES = {
    **os.environ,
    "PYTHONPATH": str(REPOSITORY),
    "DS_ACCELERATOR": "cpu",
    "OMP_NUM_THREADS": "1",
}


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a test failed."""
    options = _parse(arguments)
    failed = 0
    for name in options.names or names():
        made = VersionEnvironment(name=name, folder=options.environments / name)
        print(f"DeepSpeed {name}: {made.folder}", flush=True)
        install(made)
        subprocess.run([made.python, "-c", _BUILD], check=True, env=_VARIABLES, cwd=REPOSITORY)
        base = f"--basetemp={made.folder / 'pytest'}"
        report = made.folder / "report.xml"
        record = measured(made.python, (base, *TESTS), report, PACKAGES, _VARIABLES)
        failed += write(record, options.records / f"{name}.json")
    return 1 if failed else 0


def measured(
    python: Path,
    tests: Sequence[str],
    report: Path,
    packages: Sequence[str],
    variables: Mapping[str, str] | None = None,
    *,
    figures: Sequence[str] = ("candidates_parsed", "candidates_trained", "lacking"),
) -> dict[str, Any]:
    """Run tests with an interpreter; returns the record, which says what failed.

    Args:
        python: The interpreter.
        tests: Arguments of pytest.
        report: File that it writes.
        packages: Those whose releases are recorded.
        variables: The environment; None: that of this process.
        figures: What is recorded of that which the tests count.
    """
    report.unlink(missing_ok=True)
    started = time.monotonic()
    quiet = ("-q", "-p", "no:cacheprovider", "-o", "junit_family=xunit1", f"--junitxml={report}")
    # The report says what failed.
    subprocess.run([python, "-m", "pytest", *quiet, *tests], env=variables, cwd=REPOSITORY)
    wall_s = round(time.monotonic() - started)
    code = (
        "import json, platform; from importlib.metadata import version; "
        "print(json.dumps({'python': platform.python_version(), "
        f"**{{name: version(name) for name in {tuple(packages)}}}}}))"
    )
    said = subprocess.run([python, "-c", code], env=variables, check=True, capture_output=True)
    found = summary(report)
    return {
        "versions": json.loads(said.stdout),
        "date": datetime.date.today().isoformat(),
        "machine": machine_in_words(),
        "wall_s": wall_s,
        **{name: found[name] for name in (*figures, "tests", "failed")},
    }


def write(record: dict[str, Any], path: Path) -> int:
    """Write a record, and say what is in it; returns how many tests failed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"{path}: {record['tests']}", flush=True)
    return len(record["failed"])


def summary(report: Path) -> dict[str, Any]:
    """A JUnit report as counts by file name, figures that tests counted, and failures."""
    tests: dict[str, Counter[str]] = defaultdict(Counter)
    counted: Counter[str] = Counter()
    lacking: list[str] = []
    failed: list[dict[str, str]] = []
    for case in ElementTree.parse(report).iter("testcase"):
        problem = next(
            (at for kind in ("failure", "error") if (at := case.find(kind)) is not None), None
        )
        skipped = case.find("skipped") is not None
        outcome = "failed" if problem is not None else "skipped" if skipped else "passed"
        where = case.get("classname", "").rpartition(".")[2]
        tests[where][outcome] += 1
        if problem is not None:
            line = (problem.get("message") or "").strip().partition("\n")[0]
            failed.append({"test": f"{where}::{case.get('name')}", "message": line})
        for item in case.iter("property"):
            if item.get("name") == "lacking":
                lacking = json.loads(item.get("value", "[]"))
            else:
                counted[item.get("name", "")] += int(item.get("value", "0"))
    return {
        "candidates_parsed": counted["candidates"],
        "candidates_trained": counted["trained"],
        "lacking": lacking,
        "tests": {where: dict(counts) for where, counts in sorted(tests.items())},
        "failed": failed,
    }


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Reality tests with older releases of DeepSpeed")
    parser.add_argument("names", nargs="*", help="such as 0.16; all if none is named")
    parser.add_argument("--environments", type=Path, default=user_cache() / "versions")
    parser.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(names())):
        parser.error(f"no constraints for {', '.join(unknown)}; there are {', '.join(names())}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
