"""What a node of a fleet says of its part of a probe."""

import json
import subprocess
import sys

import pytest

from autotune.base.errors import FleetError
from autotune.probe.node import MARK, told_by


def test_what_a_node_measured_travels_as_a_line() -> None:
    told = {"reports": [{"host": "a"}], "strangers": [], "wall_s": 2.0}
    found = told_by(json.dumps({"told": told}))
    assert found is not None
    assert (found.reports, found.wall_s) == ([{"host": "a"}], 2.0)
    assert told_by('{"told": null}') is None, "node 0 has the figures"


def test_a_node_that_could_not_measure_says_why() -> None:
    with pytest.raises(FleetError, match="no such device"):
        told_by('{"error": "no such device", "hint": "name another"}')
    with pytest.raises(ValueError, match="no figures of a probe"):
        told_by('{"told": {"reports": []}}')


def test_a_wish_that_cannot_be_is_an_answer_and_no_traceback() -> None:
    asked = {"count": 1, "master": "", "world": 0, "disk": None, "quick": True, "rank": 0}
    asked["only_pairs"] = False
    done = subprocess.run(
        [sys.executable, "-m", "autotune.probe.node", json.dumps(asked)],
        input="secret\n",
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(MARK), done.stderr
    with pytest.raises(FleetError, match="--world 0"):
        told_by(done.stdout.removeprefix(MARK))
