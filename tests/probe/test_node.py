"""What a node of a fleet answers of its part of a probe."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from autotune.base.errors import FleetError
from autotune.fleet.measuring import ALONE
from autotune.fleet.node.answers import MARK, read_answer
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.base import Node, NodeProcess
from autotune.fleet.transports.remote import Host, RemoteTransport
from autotune.probe import fleet
from autotune.probe.fleet import measure_fleet
from autotune.probe.node import ProbePart
from autotune.probe.run import Measured, ProbeRequest

WANTED = ProbeRequest(precisions=("fp32",), disk="/no/such/folder", is_quick=True)


@pytest.mark.parametrize(("world", "error"), [(0, "--world 0"), (1, "is no folder")])
def test_a_wish_that_cannot_be_is_an_answer_and_no_traceback(world: int, error: str) -> None:
    part = json.dumps(dataclasses.asdict(ProbePart(wanted=WANTED, world=world, meeting=ALONE)))
    done = subprocess.run(
        [sys.executable, "-m", "autotune.probe.node", part], capture_output=True, text=True
    )
    assert done.stdout.startswith(MARK), done.stderr
    with pytest.raises(FleetError, match=error):
        read_answer(done.stdout, Measured)


class Answering(RemoteTransport):
    """A transport whose nodes answer what is given; a node without an answer hangs."""

    def __init__(self, **answers: str) -> None:
        super().__init__(NO_OPTIONS)
        self._answers = answers
        self.asked: dict[str, Any] = {}

    def hosts(self) -> Sequence[Host]:
        return [Host(name=name) for name in self._answers]

    def nodes(self) -> Sequence[Node]:
        return [
            Node(name=name, devices=("0",), places=(), address=f"10.0.0.{n}", interface=f"eth{n}")
            for n, name in enumerate(self._answers)
        ]

    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        raise AssertionError("it is asked by `ask`")

    def ask(  # type: ignore[override]  # one kind of answer is asked for
        self,
        host: str,
        kind: type[Measured],
        module: str,
        *arguments: str,
        timeout_s: float | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ) -> Measured:
        self.asked[host] = json.loads(arguments[0])
        if not self._answers[host]:
            while not is_over():
                pass
            raise FleetError("no answer within 420 s")
        return read_answer(self._answers[host], kind)


def test_the_ranks_of_all_nodes_meet_at_the_first_one() -> None:
    nodes = Answering(
        one='{"reports": [{"host": "a"}], "wall_s": 2.0}',
        two='{"reports": [{"host": "b"}], "wall_s": 3.0}',
    )
    measured = measure_fleet(nodes, WANTED, world=1)
    assert [report["host"] for report in measured.reports] == ["a", "b"]
    assert measured.wall_s == 3.0
    meetings = [nodes.asked[name]["meeting"] for name in ("one", "two")]
    assert [(m["node"], m["n_nodes"], m["address"], m["interface"]) for m in meetings] == [
        (0, 2, "10.0.0.0", "eth0"),
        (1, 2, "10.0.0.0", "eth1"),
    ]
    assert meetings[0]["port"] == meetings[1]["port"]


def test_a_node_that_fails_is_named_and_nobody_waits_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleet, "_OTHERS_WAIT_S", 0.1)
    with pytest.raises(FleetError) as raised:
        measure_fleet(Answering(one="", two='{"error": "no disk"}'), WANTED, world=1)
    assert raised.value.message == "two: no disk"
