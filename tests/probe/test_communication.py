"""Rings of several nodes: who measures with whom, for real, on ranks that share one machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.probe.points import LINK_KINDS, of_kind, points_of
from tests.probe.ring_driver import WORLD

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
@pytest.mark.real
def test_ranks_measure_within_their_node_across_nodes_and_all_together(tmp_path: Path) -> None:
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.probe.ring_driver"),
                *(str(rank), str(tmp_path / "store"), str(tmp_path)),
            ],
            cwd=REPOSITORY,
            env=environment,
        )
        for rank in range(WORLD)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0] * WORLD
    reports = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(WORLD)]
    assert [report["rings"] for report in reports] == [
        {"node": [0, 1], "nodes": [0, 2], "all": [0, 1, 2, 3]},
        {"node": [0, 1], "nodes": [1, 3], "all": [0, 1, 2, 3]},
        {"node": [2, 3], "nodes": [0, 2], "all": [0, 1, 2, 3]},
        {"node": [2, 3], "nodes": [1, 3], "all": [0, 1, 2, 3]},
    ]
    points = points_of(reports)
    for span in ("node", "nodes", "all"):
        for kind in LINK_KINDS:
            theirs = of_kind(points, kind, span)
            assert len(theirs) == 2
            assert all(point.ranks == (0, 1, 2, 3) for point in theirs)
            assert all(seconds > 0 for point in theirs for seconds in point.seconds)
    pairs = {span: {p.ranks for p in of_kind(points, "pair", span)} for span in ("node", "nodes")}
    assert pairs == {"node": {(0, 1), (2, 3)}, "nodes": {(0, 2), (1, 3)}}
