"""Tests with real ranks have a second attempt, and nobody loses what failed at the first."""

import sys
from pathlib import Path

from tests.captured import captured

TESTS = """
from collections import Counter
import pytest

begun = Counter()

def again(name, why):
    begun[name] += 1
    assert begun[name] == 2, why

@pytest.fixture(scope="module")
def cluster():
    again("cluster", "no node is up\\nand nobody knows why")

@pytest.mark.real
def test_of_a_cluster(cluster):
    assert begun["cluster"] == 2

@pytest.mark.real
def test_beside_it(cluster):
    again("beside", "the machine is busy")
    assert begun["cluster"] == 2, "the cluster is kept"

@pytest.mark.real
def test_never():
    raise ValueError("wrong")

@pytest.mark.compiles
def test_a_build():
    again("build", "the compiler was killed")

def test_quick():
    again("quick", "it has one attempt")
"""
CONFTEST = """
from tests.conftest import (
    pytest_collection_modifyitems,
    pytest_terminal_summary,
    pytest_xdist_make_scheduler,
)
"""
SETTINGS = """
[pytest]
addopts = --strict-markers
markers =
    real: of ranks
    compiles: of builds
"""


def test_what_fails_at_the_first_attempt_is_named_with_that_failure(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text(SETTINGS)
    here = f"pythonpath={Path(__file__).parents[1]}"
    flags = ("-p", "no:cacheprovider", "-n", "1", "--dist", "loadgroup", "--override-ini", here)
    command = [sys.executable, "-m", "pytest", *flags]
    done = captured(command, cwd=tmp_path)
    lines = done.stdout.splitlines()
    named = [
        line for line in lines if " at the second attempt: " in line or " at both att" in line
    ]
    assert sorted(named) == [
        "failed at both attempts: test_it.py::test_never@ranks: ValueError: wrong",
        "passed at the second attempt: test_it.py::test_a_build@fleets: "
        "AssertionError: the compiler was killed",
        "passed at the second attempt: test_it.py::test_beside_it@ranks: "
        "AssertionError: the machine is busy",
        "passed at the second attempt: test_it.py::test_of_a_cluster@ranks: "
        "AssertionError: no node is up",
    ], done.stdout
    failed = [line.split()[1] for line in lines if line.startswith("FAILED ")]
    assert sorted(failed) == ["test_it.py::test_never@ranks", "test_it.py::test_quick"]
