"""A fleet of gangs over nodes that are made up: what it tells them, and what it makes of what they
say."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import FleetError, StudyError
from autotune.contract import (
    NODE_FILE,
    RANKS_DIR,
    NodeReport,
    Outcome,
    Phase,
    RankReport,
    TrialSpec,
    to_dict,
    write_json,
)
from autotune.engines.base import Engine
from autotune.fleet import gang_fleet
from autotune.fleet.gang_fleet import GangFleet, GangPlace, GangTrial
from autotune.fleet.transports.base import Node
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from tests.jobs import CPU
from tests.trials import spec


class Scripted:
    """An agent: the test reads what it was told and says what it answers."""

    def __init__(self) -> None:
        self.commands: list[dict[str, Any]] = []
        self.answers = b""
        self.code: int | None = None

    def send(self, data: bytes) -> None:
        self.commands += map(json.loads, data.splitlines())

    def receive(self) -> bytes:
        answers, self.answers = self.answers, b""
        return answers

    def poll(self) -> int | None:
        return self.code

    def end(self) -> None:
        self.code = -9

    def say(self, event: str, **what: Any) -> None:
        self.answers += json.dumps({"event": event, **what}).encode() + b"\n"


class Rack:
    """A transport to nodes of two slots each."""

    def __init__(self, n_nodes: int, *, is_remote: bool = False) -> None:
        self.is_remote = is_remote
        self.is_gone = False
        self.end = ""
        self._nodes = tuple(
            Node(name=f"n{i}", devices=("0", "1"), address=f"10.0.0.{i}", interface="eth0")
            for i in range(n_nodes)
        )
        self.agents: dict[str, list[Scripted]] = {node.name: [] for node in self._nodes}

    def nodes(self) -> tuple[Node, ...]:
        return self._nodes

    def start(self, node: Node, module: str, *arguments: str) -> Scripted:
        if self.is_gone:
            raise OSError("the cluster has ended")
        self.agents[node.name].append(Scripted())
        if module == gang_fleet.AGENT:
            self.agents[node.name][-1].say("ready")
        return self.agents[node.name][-1]

    def ended(self) -> str:
        return self.end

    def problems(self) -> tuple[str, ...]:
        return ()

    def agent(self, node: int = 0) -> Scripted:
        return self.agents[f"n{node}"][-1]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """The fleet's clock; it stands still, and a fleet that waits for it fails."""
    now_s = [0.0]
    monkeypatch.setattr(gang_fleet.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(gang_fleet, "PERIOD_S", 0.0)
    monkeypatch.setattr(gang_fleet.time, "sleep", lambda _: pytest.fail("it waits"))

    def pass_s(seconds: float) -> None:
        now_s[0] += seconds

    return pass_s


MEASURED = NodeReport(launcher_code=0)


def leave(folder: Path, name: str, seen: NodeReport | RankReport) -> None:
    """A file of what a node leaves of a trial."""
    (folder / RANKS_DIR).mkdir(parents=True, exist_ok=True)
    write_json(folder / RANKS_DIR / name, to_dict(seen))


def end(
    rack: Rack, folder: Path, seen: NodeReport = MEASURED, *, node: int = 0, world: int = 2
) -> None:
    """A node's part ends, and leaves files: of its ranks where they measured."""
    leave(folder, NODE_FILE.format(node=node), seen)
    for rank in range(world if seen.launcher_code == 0 else 0):
        report = RankReport(rank=rank, phase=Phase.TEARDOWN, step_times_s=[0.1] * 6)
        leave(folder, f"{rank:02d}.json", report)
    rack.agent(node).say("ended", folder=str(folder), problem="")


def four_ranks() -> TrialSpec:
    return spec(world=4, dp=4, global_batch=8)


def begun(fleet: GangFleet, rack: Rack, folder: Path) -> GangTrial:
    """A trial over two nodes, of which the first has started."""
    trial = fleet.submit(four_ranks(), folder)
    rack.agent().say("started", folder=str(folder), port=20_002, start="cold")
    return trial


def test_the_ranks_of_one_node_meet_on_loopback_and_their_report_is_the_result(tmp_path):
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    trial = fleet.submit(spec(), tmp_path)
    (commands,) = rack.agent().commands
    part = commands["part"]
    assert (commands["command"], part["folder"], part["devices"]) == (
        "start",
        str(tmp_path),
        ["0", "1"],
    )
    assert (part["address"], part["interface"], part["port"]) == ("127.0.0.1", "lo", None)
    assert trial.poll() is None
    rack.agent().say("started", folder=str(tmp_path), port=20_001, start="cold")
    assert trial.poll() is None
    end(rack, tmp_path, NodeReport(launcher_code=0, environment={"NCCL_DEBUG": "INFO"}))
    result = trial.poll()
    assert (result.outcome, result.environment) == (Outcome.OK, {"NCCL_DEBUG": "INFO"})
    assert result.devices == ["n0:0", "n0:1"]
    assert trial.poll() is result
    assert trial.port == 20_001


def test_a_trial_that_is_ended_slowly_holds_up_nobody(tmp_path, clock):
    rack = Rack(2)
    fleet = GangFleet(rack, world=2)
    hung, other = (fleet.submit(spec(n), tmp_path / str(n)) for n in range(2))
    clock(spec().measure.timeout_s + 1)
    end(rack, tmp_path / "1", node=1)
    assert hung.poll() is None
    result = other.poll()
    assert result.outcome is Outcome.OK
    asked = [{"command": "end", "folder": str(tmp_path / "0"), "hangs": True}]
    assert rack.agent().commands[1:] == asked
    for _ in range(100):
        assert hung.poll() is None
    assert rack.agent().commands[1:] == asked, "asked once"
    end(rack, tmp_path / "0", NodeReport(was_ended=True, launcher_code=-9))
    result = hung.poll()
    assert result.evidence == "no rank had started after 120 s"


def test_the_first_node_of_a_gang_leases_the_port_that_the_others_are_told(tmp_path: Path) -> None:
    rack = Rack(2)
    fleet = GangFleet(rack, world=4)
    assert (fleet.capacity(4), fleet.capacity(2)) == (1, 2)
    trial = fleet.submit(four_ranks(), tmp_path)
    assert rack.agents["n1"] == []
    rack.agent().say("started", folder=str(tmp_path), port=20_002, start="cold")
    assert trial.poll() is None
    first, second = (rack.agent(n).commands[0]["part"] for n in range(2))
    for node, part in enumerate((first, second)):
        assert (part["node"], part["n_nodes"], part["address"]) == (node, 2, "10.0.0.0")
        assert (part["interface"], part["devices"]) == ("eth0", ["0", "1"])
    assert (first["port"], second["port"]) == (None, 20_002)
    end(rack, tmp_path, world=4)
    assert trial.poll() is None, "the other has not ended"
    end(rack, tmp_path, NodeReport(launcher_code=0, undrained_bytes=7), node=1, world=4)
    result = trial.poll()
    assert result.outcome is Outcome.OK
    assert result.memory_bytes["undrained"] == 7
    assert result.devices == ["n0:0", "n0:1", "n1:0", "n1:1"]


def test_nodes_start_as_the_first_did_and_cold_once_one_cannot(tmp_path, clock):
    rack = Rack(2, is_remote=True)
    fleet = GangFleet(rack, world=4)
    folders = [tmp_path / str(number) for number in range(2)]
    for folder in folders:
        folder.mkdir()
    trial = fleet.submit(four_ranks(), folders[0])
    assert rack.agent().commands[0]["part"]["start"] is None, "as its spec says"
    rack.agent().say("started", folder=str(folders[0]), port=20_002, start="warm")
    assert trial.poll() is None
    assert rack.agent(1).commands[0]["part"]["start"] == "warm"
    failed = {"error": "NoTemplateError", "message": "these cannot", "hint": ""}
    rack.agent(1).say("failed", folder=str(folders[0]), **failed)
    assert trial.poll() is None
    clock(11.0)
    assert trial.poll() is None, "the first is asked to end"
    rack.agent().say("ended", folder=str(folders[0]), problem="")
    clock(1.0)
    result = trial.poll()
    assert result.outcome.is_platform_fault
    assert "n1: these cannot" in result.evidence
    fleet.submit(four_ranks(), folders[1])
    assert rack.agent().commands[-1]["part"]["start"] == "cold"


def test_ranks_that_outlive_those_of_another_node_are_ended(tmp_path, clock):
    rack = Rack(2)
    trial = begun(GangFleet(rack, world=4), rack, tmp_path)
    assert trial.poll() is None
    end(rack, tmp_path, NodeReport(launcher_code=1, exit_codes={"1": -11}))
    assert trial.poll() is None
    clock(11.0)
    assert trial.poll() is None
    assert rack.agent(1).commands[-1]["command"] == "end"
    rack.agent(1).say("ended", folder=str(tmp_path), problem="")
    result = trial.poll()
    assert (result.outcome, result.evidence) == (Outcome.CRASH, "ended by SIGSEGV")


def test_cancelling_what_has_ended_by_itself_changes_nothing(tmp_path: Path) -> None:
    rack = Rack(1)
    trial = GangFleet(rack, world=2).submit(spec(), tmp_path)
    trial.cancel()
    trial.cancel()
    assert [commands["command"] for commands in rack.agent().commands] == ["start", "end"]
    end(rack, tmp_path)
    result = trial.poll()
    assert result.outcome is Outcome.OK


def test_a_lost_agent_is_a_fault_of_the_platform_and_another_takes_its_place(tmp_path):
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    trial = fleet.submit(spec(), tmp_path)
    rack.agent().answers += b"Traceback of something\n"
    rack.agent().code = -9
    assert trial.poll() is None
    assert [c["command"] for c in rack.agent().commands] == ["reap"], "memory may be left"
    rack.agent().say("reaped", folder=str(tmp_path))
    result = trial.poll()
    assert result.outcome is Outcome.LAUNCH
    evidence = "n0: the agent of the node ended with code -9: Traceback of something"
    assert result.evidence == evidence
    fleet.submit(spec(1), tmp_path / "next")


@pytest.mark.cases("has_second", "evidence")
def test_a_cluster_that_starts_nothing_any_more_ends_the_trial_and_says_which_node(
    tmp_path: Path, has_second: bool, evidence: str
) -> None:
    rack = Rack(2, is_remote=True)
    trial = begun(GangFleet(rack, world=4), rack, tmp_path)
    if has_second:
        assert trial.poll() is None
    rack.is_gone = True
    for agents in rack.agents.values():
        for agent in agents:
            agent.code = 1
    result = trial.poll()
    assert result.outcome is Outcome.LAUNCH
    assert re.match(evidence, result.evidence), result.evidence


def test_the_end_of_all_nodes_is_told_as_such_and_not_as_that_of_each(tmp_path: Path) -> None:
    rack = Rack(3, is_remote=True)
    fleet = GangFleet(rack, world=4)
    trial = begun(fleet, rack, tmp_path)
    assert trial.poll() is None
    fleet._lose("n2", "no answer")
    assert fleet.absent() == {"n2": "no answer"}
    rack.is_gone, rack.end = True, "job 5 of Slurm has ended (CANCELLED): it was cancelled"
    for node in (0, 1):
        rack.agent(node).code = 137
    result = trial.poll()
    with pytest.raises(FleetError, match=re.escape(rack.end)):
        fleet.capacity(4)
    assert (result.outcome, result.evidence) == (Outcome.LAUNCH, rack.end)
    assert list(fleet.absent()) == ["n2"], "it is not back either"


def test_a_connection_that_broke_with_a_node_names_the_node(tmp_path: Path) -> None:
    rack = Rack(2, is_remote=True)
    fleet = GangFleet(rack, world=4)
    trial = begun(fleet, rack, tmp_path)
    assert trial.poll() is None
    broken = RankReport(rank=0, outcome=Outcome.COMM, evidence="Connection closed by peer")
    leave(tmp_path, "00.json", broken)
    end(rack, tmp_path, NodeReport())
    rack.agent(1).code = -9
    assert trial.poll() is None
    assert rack.agent(1).commands[0]["command"] == "reap", "of what files are left there"
    rack.agent(1).say("reaped", folder=str(tmp_path))
    result = trial.poll()
    assert result.outcome is Outcome.COMM
    evidence = "n1: the agent of the node ended with code -9; Connection closed by peer"
    assert result.evidence == evidence


def test_an_agent_that_does_not_end_a_trial_is_given_up(tmp_path, clock):
    rack = Rack(1)
    trial = GangFleet(rack, world=2).submit(spec(), tmp_path)
    trial.cancel()
    clock(61.0)
    assert trial.poll() is None
    assert rack.agent().code == -9
    assert trial.poll() is None
    clock(61.0)
    assert trial.poll() is None
    assert (rack.agent().code, len(rack.agents["n0"])) == (-9, 2), "nor does the next one answer"
    result = trial.poll()
    assert result.outcome is Outcome.CANCELLED


def test_an_agent_that_is_lost_while_it_reaps_says_why(tmp_path, monkeypatch):
    rack = Rack(1)

    def lose(seconds: float) -> None:
        rack.agent().answers += b"No space left on device\n"
        rack.agent().code = 1

    monkeypatch.setattr(gang_fleet.time, "sleep", lose)
    with pytest.raises(FleetError, match="No space left on device"):
        GangFleet(rack, world=2).reap(tmp_path)


def test_a_node_that_comes_back_and_goes_again_does_not_end_the_search(tmp_path, clock):
    rack = Rack(2, is_remote=True)
    fleet = GangFleet(rack, world=2)
    first_folder, second_folder = folders_of(tmp_path, "first", "second")
    first, second = fleet.submit(spec(), first_folder), fleet.submit(spec(), second_folder)
    assert (first.poll(), second.poll()) == (None, None)
    rack.is_gone, rack.agent(1).code = True, -9
    assert second.poll() is not None
    rack.is_gone = False
    assert list(fleet.absent()) == ["n1"]
    clock(61.0)
    rack.agent().say("alive")
    fleet.hear()
    fleet.hear()
    assert fleet.absent() == {}
    rack.agent(1).code = -9
    assert first.poll() is None
    fleet.submit(spec(2), tmp_path / "next")
    assert started_in(rack, 1) == ["second", "next"]
    end(rack, first_folder)
    assert first.poll() is not None


def test_where_no_agent_starts_the_fleet_is_not_available(tmp_path: Path) -> None:
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    trial = fleet.submit(spec(), tmp_path)
    rack.agent().answers, rack.agent().code = b"No module named autotune\n", 1
    for _ in range(2):
        with pytest.raises(FleetError, match="ended with code 1: No module named autotune"):
            trial.poll()
    fleet.submit(spec(1), tmp_path / "next")


@pytest.mark.parametrize(
    ("error", "kind"), [("StudyError", StudyError), ("FleetError", FleetError), ("x", FleetError)]
)
def test_what_a_node_says_against_a_start_is_raised_and_its_gang_is_free(tmp_path, error, kind):
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    trial = fleet.submit(spec(), tmp_path)
    why = {"error": error, "message": "No space left on device", "hint": "free some"}
    rack.agent().say("failed", folder=str(tmp_path), **why)
    with pytest.raises(kind, match="No space left"):
        trial.poll()
    fleet.submit(spec(1), tmp_path / "next")


def test_a_fleet_that_is_too_small_names_who_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    rack = Rack(1)
    monkeypatch.setattr(rack, "problems", lambda: ("n7 is left out: Connection refused",))
    with pytest.raises(FleetError) as raised:
        GangFleet(rack, world=4)
    assert raised.value.message.endswith(
        "slots for no such gang: 2 on n0; n7 is left out: Connection refused"
    )
    assert raised.value.hint.startswith("mend what is left out")


def test_reaping_waits_for_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rack = Rack(2)
    fleet = GangFleet(rack, world=2)
    waits = []

    def answer(seconds: float) -> None:
        waits.append(seconds)
        rack.agent(len(waits) - 1).say("reaped", folder=str(tmp_path))

    monkeypatch.setattr(gang_fleet.time, "sleep", answer)
    fleet.reap(tmp_path)
    assert len(waits) == 2


def test_every_node_is_prepared_and_one_that_fails_says_why(monkeypatch):
    rack = Rack(2)
    fleet, notes = GangFleet(rack, world=2), []
    fleet.prepare((), notes.append)
    assert rack.agents["n0"] == []

    def build(_: float) -> None:
        rack.agent(0).answers, rack.agent(0).code = b"building\nbuilt\n", 0
        rack.agent(1).answers, rack.agent(1).code = b"building\nno g++; install g++\n", 1

    monkeypatch.setattr(gang_fleet.time, "sleep", build)
    with pytest.raises(FleetError, match="n1: no g") as raised:
        fleet.prepare(("builder", "cpu"), notes.append)
    assert raised.value.hint == "install g++"
    assert notes[-3:] == ["n0: building", "n0: built", "n1: building"]


def test_a_build_that_fails_or_cannot_be_started_waits_for_those_of_other_nodes(monkeypatch):
    rack, notes, turns = Rack(3), list[str](), iter((0, 1))
    start = rack.start

    def only_two(node: Node, module: str, *arguments: str) -> Scripted:
        rack.is_gone = node.name == "n2"
        return start(node, module, *arguments)

    def build(_: float) -> None:
        turn = next(turns)
        rack.agent(turn).answers += b"no g++; install g++\n" if turn == 0 else b"built\n"
        rack.agent(turn).code = int(turn == 0)

    monkeypatch.setattr(rack, "start", only_two)
    monkeypatch.setattr(gang_fleet.time, "sleep", build)
    with pytest.raises(FleetError, match="n2: no process can be started there"):
        GangFleet(rack, world=2).prepare(("builder",), notes.append)
    assert notes == ["n1: built"]


@pytest.mark.parametrize("listens", [True, False])
def test_an_interrupt_ends_what_is_built(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rack, interrupts = Rack(1), iter(range(1))

    def interrupted(_: float) -> None:
        if next(interrupts, None) is not None:
            raise KeyboardInterrupt
        rack.agent().code = 130

    monkeypatch.setattr(gang_fleet.time, "sleep", interrupted)
    monkeypatch.setattr(gang_fleet, "_BUILD_END_WAIT_S", 10.0 if listens else 0.0)
    with pytest.raises(KeyboardInterrupt):
        GangFleet(rack, world=2).prepare(("builder",), lambda _: None)
    assert rack.agent().commands == [{"command": "end"}]
    assert rack.agent().code == (130 if listens else -9)


def folders_of(tmp_path: Path, *names: str) -> list[Path]:
    found = [tmp_path / name for name in names]
    for folder in found:
        folder.mkdir()
    return found


def started_in(rack: Rack, node: int = 0) -> list[str]:
    commands = [command for agent in rack.agents[f"n{node}"] for command in agent.commands]
    return [
        Path(command["part"]["folder"]).name
        for command in commands
        if command["command"] == "start"
    ]


def test_a_trial_waits_for_its_gang_and_its_time_begins_with_it(tmp_path, clock):
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    first_folder, second_folder = folders_of(tmp_path, "first", "second")
    first = fleet.submit(spec(), first_folder)
    second = fleet.submit(spec(), second_folder)
    assert started_in(rack) == ["first"]
    clock(second.spec.measure.timeout_s - 1)
    assert second.poll() is None
    end(rack, first_folder)
    assert first.poll() is not None
    assert second.poll() is None
    assert started_in(rack) == ["first", "second"]
    clock(2)
    assert second.progress().elapsed_s == 2
    end(rack, second_folder)
    result = second.poll()
    assert (result.outcome, result.wall_s) == (Outcome.OK, 2)


def test_a_trial_that_waits_is_cancelled_without_ever_starting(tmp_path: Path) -> None:
    rack = Rack(1)
    fleet = GangFleet(rack, world=2)
    first_folder, second_folder = folders_of(tmp_path, "first", "second")
    first = fleet.submit(spec(), first_folder)
    second = fleet.submit(spec(), second_folder)
    second.cancel()
    result = second.poll()
    assert (result.outcome, result.devices) == (Outcome.CANCELLED, [])
    end(rack, first_folder)
    assert first.poll() is not None
    assert started_in(rack) == ["first"]


def test_a_trial_waits_for_no_gang_that_cannot_come_any_more(tmp_path: Path) -> None:
    rack = Rack(2, is_remote=True)
    fleet = GangFleet(rack, world=4)
    small_folder, large_folder = folders_of(tmp_path, "small", "large")
    fleet.submit(spec(), small_folder)
    large = fleet.submit(four_ranks(), large_folder)
    assert large.poll() is None
    fleet._lose("n1", "no answer")
    with pytest.raises(FleetError, match="1 of 2 nodes are lost, and a gang of 4 does not fit"):
        large.poll()


def test_slots_that_are_left_out_may_leave_no_room_for_a_job() -> None:
    fleet = GangFleet(Rack(2), world=4)
    gang = fleet._allocator.allocate(2)
    for candidate in ("a", "a", "b"):
        fleet._allocator.judge(gang, candidate, is_fault=True)
    with pytest.raises(FleetError, match="n0:0, n0:1 are left out"):
        fleet.capacity(4)


def test_a_transport_that_answers_slowly_is_not_asked_for_each_node_that_is_lost(
    clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rack, asked = Rack(4, is_remote=True), []

    def ended() -> str:
        asked.append(len(asked))
        clock(10.0)
        return ""

    monkeypatch.setattr(rack, "ended", ended)
    fleet = GangFleet(rack, world=2)
    for name in ("n0", "n1", "n2"):
        fleet._lose(name, "no answer")
    assert len(asked) == 1, "the last node hears from here meanwhile"
    clock(10.0)
    fleet._lose("n3", "no answer")
    assert len(asked) == 2


def test_a_trial_that_no_gang_fits_is_refused_at_once(tmp_path: Path) -> None:
    fleet = GangFleet(Rack(1), world=2)
    with pytest.raises(FleetError, match="a gang of 4 slots was asked for"):
        fleet.submit(four_ranks(), tmp_path)


def test_a_command_of_the_users_own_runs_on_one_node_or_not_at_all(tmp_path: Path) -> None:
    fleet = GangFleet(Rack(2), world=2)
    asked = spec(command=["torchrun", "train.py"], world=4, dp=4, global_batch=8)
    with pytest.raises(FleetError, match="starts its 4 ranks on one node, and none has as many"):
        fleet.submit(asked, tmp_path)
    fleet.submit(spec(command=["torchrun", "train.py"]), tmp_path)


class Racks(GangPlace):
    """A place of two nodes."""

    def transport_for(self, world: int) -> Rack:
        return Rack(2)

    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], GangFleet]:
        raise NotImplementedError


def test_ranks_of_a_gang_that_is_alone_have_their_nodes_names() -> None:
    place = Racks(CPU, {})
    assert place.rank_places(4) == ("n0", "n0", "n1", "n1")
    assert place.rank_places(2) == ("n0", "n0")
    assert place.rank_places(5) == (), "five ranks are none of two each"


def test_trials_at_once_are_counted_over_all_nodes() -> None:
    place = Racks(CPU, {})
    assert [place.at_once(world) for world in (1, 2, 4, 5)] == [4, 2, 1, 0]
