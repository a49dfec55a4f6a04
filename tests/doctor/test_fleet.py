"""What the doctor says of a fleet: each node, and what differs between them."""

import dataclasses
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pytest
from rich.console import Console

from autotune.base.errors import FleetError
from autotune.doctor import Level
from autotune.doctor.diagnosis import Machine
from autotune.doctor.findings import inspect_machine
from autotune.doctor.fleet import FleetExamination, diagnose_fleet
from autotune.fleet.node.answers import read_answer
from autotune.fleet.node.inventory import Inventory
from autotune.fleet.node.places import DevicePlace
from autotune.fleet.options import NO_OPTIONS
from autotune.fleet.transports.base import NodeProcess
from autotune.fleet.transports.remote import Host, RemoteTransport
from autotune.report.terminal.doctor import print_fleet
from tests.jobs import A100, CPU

GOOD = Inventory(
    environment=CPU,
    devices=("0", "1"),
    places=(DevicePlace(),) * 2,
    host="h",
    address="10.0.0.1",
    interface="eth0",
    releases={"python": "3.11.7", "torch": "2.13.0", "deepspeed": "0.19.8", "peft": "0.21.2"},
    unix_s=0.0,
    free_disk_bytes=2**40,
    addresses={},
)


@pytest.fixture(scope="module")
def machine() -> str:
    """What this machine would say of itself as a node."""
    return json.dumps(dataclasses.asdict(inspect_machine()))


class Asked(RemoteTransport):
    """A transport whose nodes have answered."""

    def __init__(
        self, machine: str, found: Mapping[str, Inventory], problems: Mapping[str, str]
    ) -> None:
        super().__init__(NO_OPTIONS)
        self._machine = machine
        vars(self)["_asked"] = (dict(found), dict(problems))
        self.clocks_ahead_s = dict.fromkeys(found, 0.01)

    def hosts(self) -> Sequence[Host]:
        return [Host(name=name) for name in (*self._asked[0], *self._asked[1])]

    def open(self, host: str, command: Sequence[str]) -> NodeProcess:
        raise AssertionError("it is asked by `ask`")

    def ask(  # type: ignore[override]  # one kind of answer is asked for
        self, hosts: Iterable[str], kind: type[Machine], module: str, *arguments: str
    ) -> Iterator[tuple[str, Machine | FleetError]]:
        for host in hosts:
            missing = FleetError("No module named 'yaml'")
            yield host, read_answer(self._machine, kind) if self._machine else missing


def examined(
    machine: str, found: Mapping[str, Inventory], problems: Mapping[str, str] | None = None
) -> FleetExamination:
    return diagnose_fleet(Asked(machine, found, problems or {}))


def remark_of(fleet: FleetExamination, subject: str) -> tuple[Level, str]:
    (remark,) = [finding for finding in fleet.findings if finding.subject == subject]
    return remark.level, remark.message


def other(**changes: str) -> Inventory:
    return dataclasses.replace(GOOD, releases={**GOOD.releases, **changes})


def test_nodes_that_are_alike_are_well_and_the_answer_is_json(machine: str) -> None:
    fleet = examined(machine, {"a": GOOD, "b": GOOD})
    assert {remark.level for remark in fleet.findings} == {Level.OK}
    assert remark_of(fleet, "nodes") == (Level.OK, "2 of 2 answer, with 4 slots")
    subjects = {remark.subject for remark in fleet.nodes[0].findings}
    assert {"devices", "address", "clock", "disk", "extensions"} <= subjects
    data = json.loads(json.dumps(fleet.to_dict()))
    assert data["nodes"][1]["inventory"]["interface"] == "eth0"
    assert data["nodes"][1]["clock_ahead_s"] == 0.01


def test_a_node_that_does_not_answer_is_left_out_and_named(machine: str) -> None:
    fleet = examined(machine, {"a": GOOD}, {"b": "Connection refused"})
    assert fleet.level is Level.WARN
    assert remark_of(fleet, "nodes") == (Level.WARN, "1 of 2 answer, with 2 slots; without b")
    assert fleet.nodes[1].n_slots == 0
    shown = io.StringIO()
    print_fleet(Console(file=shown), fleet)
    assert "a: 2 slots\n" in shown.getvalue()
    assert "b: left out\n" in shown.getvalue()


def test_one_slot_is_not_several(machine: str) -> None:
    one = dataclasses.replace(GOOD, devices=("0",), places=(DevicePlace(),))
    fleet = examined(machine, {"a": one})
    assert remark_of(fleet, "nodes") == (Level.OK, "1 of 1 answer, with 1 slot")
    shown = io.StringIO()
    print_fleet(Console(file=shown), fleet)
    assert "a: 1 slot\n" in shown.getvalue()


def test_a_node_that_does_not_answer_says_why(machine: str) -> None:
    fleet = examined(machine, {"a": GOOD}, {"b": "Connection refused"})
    assert fleet.nodes[1].findings[0].message == "Connection refused"


def test_where_none_answers_no_search_runs() -> None:
    fleet = examined("", {}, {"a": "no", "b": "way"})
    assert fleet.level is Level.FAIL
    assert [node.findings[0].message for node in fleet.nodes] == ["no", "way"]


def test_releases_that_differ_are_told_by_node(machine: str) -> None:
    fleet = examined(machine, {"a": GOOD, "b": other(deepspeed="0.18.0"), "c": GOOD})
    assert remark_of(fleet, "deepspeed") == (Level.FAIL, "differ: 0.19.8 on a, c; 0.18.0 on b")
    assert fleet.level is Level.FAIL
    fleet = examined(machine, {"a": GOOD, "b": other(peft="0.1")})
    assert remark_of(fleet, "peft")[0] is Level.WARN, "no figure depends on it"
    fleet = examined(machine, {"a": GOOD, "b": other(**{"megatron-core": "0.16.1"})})
    expected = (Level.WARN, "differ: missing on a; 0.16.1 on b")
    assert remark_of(fleet, "megatron-core") == expected, "DeepSpeed trains there"


def test_devices_that_differ_are_no_fleet(machine: str) -> None:
    gpus = dataclasses.replace(GOOD, environment=A100)
    level, message = remark_of(examined(machine, {"a": GOOD, "b": gpus}), "devices")
    assert level is Level.FAIL
    assert "NVIDIA A100-SXM4-80GB on b" in message


def test_a_clock_a_disk_and_an_address_that_are_off_are_said(machine: str) -> None:
    odd = dataclasses.replace(GOOD, free_disk_bytes=2**20, address="127.0.0.1", interface="lo")
    transport = Asked(machine, {"a": GOOD, "b": odd}, {})
    transport.clocks_ahead_s["b"] = -3600.2
    fleet = diagnose_fleet(transport)
    remarks = {remark.subject: remark for remark in fleet.nodes[1].findings}
    assert remarks["clock"].message.startswith("3600 s behind this machine's")
    assert remarks["disk"].message == "1 MiB free for temporary files"
    assert remark_of(fleet, "addresses")[0] is Level.FAIL


def test_a_node_that_cannot_be_looked_into_is_asked_no_more() -> None:
    fleet = examined("", {"a": GOOD})
    (remark,) = [finding for finding in fleet.nodes[0].findings if finding.subject == "machine"]
    assert remark.message == "it cannot be looked into: No module named 'yaml'"
    fleet = examined("{}", {"a": GOOD})
    (remark,) = [finding for finding in fleet.nodes[0].findings if finding.subject == "machine"]
    assert "an answer that cannot be read" in remark.message
