"""Runs what needs no torch with newer Pythons: `python -m tests.versions.pythons`.

A Python is taken from the path or from pyenv; one that is not here is named and left out, one in
which the packages cannot be installed fails. Each gets an environment of its own, as a login node
has it: requirements-login.txt and this checkout. What came out is recorded in
`results/recorded/versions/`, but not with `--short`, which runs the commands alone: that is what
CI does. No part of `make test`: it installs packages.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.base.private import user_cache
from tests.gpu.wheels import WheelsError, find_python
from tests.versions.environments import (
    REPOSITORY,
    TEST_NEEDS,
    PinnedEnvironment,
    install,
    own_pins,
)
from tests.versions.run import RECORDS, measured, write

LOGIN = REPOSITORY / "requirements-login.txt"
NEWER = ("3.12", "3.13")
PACKAGES = ("numpy", "pandas", "pydantic", "optuna", "typer")
TESTS = (
    *("tests/test_login_node.py", "tests/base", "tests/contract", "tests/space", "tests/replay"),
    *("tests/record", "tests/report", "tests/planning/test_choices.py", "tests/cost"),
)
"""Tests that need no torch."""
SHORT = ("tests/test_login_node.py", "-k", "runs_no_trial or without_torch")
"""Those of commands that need no torch: a minute, where all take five to nine."""
QUICK = "not real and not package and not browser and not thorough"


class PythonEnvironment(PinnedEnvironment):
    """This repository with a newer Python, where torch is not installed."""

    def pins(self) -> str:
        # Another checkout or another list is installed over what is there.
        about = [f"# {REPOSITORY}", *(f"# {line}" for line in LOGIN.read_text().splitlines())]
        return "\n".join([*own_pins().values(), *about]) + "\n"

    def wanted(self, constraints: Path) -> Iterator[tuple[str, ...]]:
        yield "--constraint", str(constraints), "-r", str(LOGIN), *TEST_NEEDS
        yield "--no-deps", "--editable", str(REPOSITORY)


def record_of(release: str) -> Path:
    """File in which a Python is recorded: python-3.13.json."""
    return RECORDS / f"python-{release}.json"


def main(arguments: list[str]) -> int:
    """Run what is asked for; 1 if a test failed, or a Python that is here could not be tried."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("releases", nargs="*", help=f"by default {', '.join(NEWER)}")
    parser.add_argument("--folder", type=Path, default=user_cache() / "versions")
    parser.add_argument("--records", type=Path, default=RECORDS)
    parser.add_argument("--short", action="store_true", help="commands alone, without a record")
    options = parser.parse_args(arguments)
    failed = 0
    for release in options.releases or NEWER:
        try:
            base = find_python(release)
        except WheelsError:
            print(f"Python {release}: not on this machine, so not tried", flush=True)
            continue
        folder = options.folder / f"python-{release}"
        made = PythonEnvironment(name=release, folder=folder, base=base)
        try:
            install(made)
        except subprocess.CalledProcessError:
            print(f"Python {release}: failed: its packages cannot be installed", flush=True)
            failed += 1
            continue
        if options.short:
            done = run_tests(made, SHORT)
            print(f"Python {release}: commands {'failed' if done else 'passed'}", flush=True)
            failed += done != 0
            continue
        tests = ("-m", QUICK, *TESTS)
        record = measured(made.python, tests, folder / "report.xml", PACKAGES, figures=())
        failed += write(record, options.records / record_of(release).name)
    return 1 if failed else 0


def run_tests(made: PythonEnvironment, tests: Sequence[str]) -> int:
    """Run tests in an environment; returns pytest's exit code."""
    pytest = (made.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", QUICK)
    return subprocess.run([*pytest, *tests], cwd=REPOSITORY, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
