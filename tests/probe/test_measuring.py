"""What a measurement is taken on, and how it names what failed."""

import pytest

from autotune.base.errors import FleetError, JobError
from autotune.contract import Outcome, Role, TrialResult
from autotune.fleet.transports.base import Node
from autotune.probe import measuring
from autotune.probe.measuring import with_devices

NODES = (Node(name="one", devices=("0", "1", "0")), Node(name="two", devices=("0", "1", "2")))


def test_every_node_gives_as_many_devices_and_none_twice() -> None:
    assert [node.devices for node in with_devices(NODES, None)] == [("0", "1")] * 2
    assert [node.devices for node in with_devices(NODES, 1)] == [("0",)] * 2
    with pytest.raises(FleetError, match="--world 3: one has 2 device"):
        with_devices(NODES, 3)
    with pytest.raises(JobError, match="--world 0: not above zero"):
        with_devices(NODES, 0)


@pytest.mark.cases("devices", "wall_s", "source", "reason")
def test_the_rank_that_failed_is_named_with_its_node(devices, wall_s, source, reason) -> None:
    result = TrialResult(
        number=0,
        role=Role.SEARCH,
        candidate_hash="",
        outcome=Outcome.CRASH,
        evidence="no disk",
        evidence_source=source,
        wall_s=wall_s,
        devices=devices,
    )
    assert measuring._reason(result, 5.0) == reason
