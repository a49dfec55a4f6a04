"""What goes wrong with nodes by ssh, on real ones: each is named, and what is left goes on."""

import contextlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.base.errors import ExitCode, FleetError
from autotune.contract import Outcome
from autotune.devices.hardware import cpu_name
from autotune.fleet import gang_fleet
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.options import FleetOptions
from autotune.fleet.transports import remote
from autotune.fleet.transports.hostfile import HostfileTransport
from autotune.record.study import Study
from tests.captured import captured
from tests.clusters.ssh import SshNodes, needs_ssh_nodes, ssh_nodes
from tests.searches import Search
from tests.trials import ds_config, files, spec, wait_until

pytestmark = [pytest.mark.real, needs_ssh_nodes]

_ANSWER_S = 8.0
"""Time for a node to answer; longer outside of tests."""
_SILENT = (
    "import socket, time\n"
    "server = socket.create_server(('10.78.0.100', 2222))\n"
    "print('listens', flush=True)\n"
    "held = [server.accept() for _ in range(100)]\n"
)


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Nodes of which the first is as it should be, and names that reach none.

    The second cannot write its cache, the third has another DeepSpeed, the fourth lets in and
    never starts anything, the fifth is of another kind. At the first's address `refused` is where
    nobody listens, `changed` has another key, and `locked` wants a password; `silent` is an
    address that says nothing.
    """
    folder = tmp_path_factory.mktemp("odd")
    other = folder / "packages" / "deepspeed-0.0.1.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.0.1\n")
    with contextlib.ExitStack() as made:
        nodes = made.enter_context(
            ssh_nodes(
                folder,
                5,
                variables={
                    1: {"XDG_CACHE_HOME": "/proc/none"},
                    2: {"PYTHONPATH": str(other.parent)},
                },
                settings={3: "ForceCommand cat >/dev/null\n"},
                processors={4: "Slow Processor 1"},
            )
        )
        with (folder / "known_hosts").open("a") as known:
            known.write(f"another {(folder / 'key.pub').read_text()}")
        aliases = (
            "Host refused\n  Port 23\n",
            "Host changed\n  HostKeyAlias another\n",
            "Host locked\n  PreferredAuthentications password\n",
            "Host silent\n  HostName 10.78.0.100\n  Port 2222\n",
            f"Host refused changed locked\n  HostName {nodes.addresses[0]}\n",
        )
        nodes.config.write_text("".join(aliases) + nodes.config.read_text())
        listener = subprocess.Popen(
            ["ip", "netns", "exec", nodes.head, sys.executable, "-c", _SILENT],
            stdout=subprocess.PIPE,
        )
        made.callback(listener.wait)
        made.callback(listener.kill)
        listener.stdout.readline()
        yield nodes


def why_left_out(nodes: SshNodes) -> dict[str, str]:
    """Name that cannot be used -> words of the reason."""
    _, unwritable, _, half_dead, *_ = nodes.names
    return {
        "refused": "Connection refused",
        "changed": "Host key verification failed",
        "locked": "Permission denied",
        "silent": "timed out",
        "nowhere.invalid": "Could not resolve hostname",
        unwritable: "autotune cannot be unpacked there: [Errno 2] No such file or directory",
        half_dead: f"no answer within {_ANSWER_S:.0f} s",
    }


def old_python(folder: Path) -> Path:
    """A Python that says that it is 3.8."""
    path = folder / "old-python"
    path.write_text(
        "#!/bin/sh\n"
        f'exec {shutil.which("python3")} -c "import sys; sys.hexversion = 0x03080000; '
        'exec(sys.argv[1])" "$3"\n'
    )
    path.chmod(0o755)
    return path


def transport(nodes: SshNodes, *lines: str, python: str = "") -> HostfileTransport:
    # ssh takes the first value of an option: a silent host is given up after 3 s.
    options = FleetOptions(ssh=f"{nodes.ssh} -o ConnectTimeout=3", python=python)
    return HostfileTransport(str(nodes.choose(*lines)), options)


def test_every_node_that_cannot_be_used_is_named_with_its_reason(odd, monkeypatch):
    good, reasons = odd.names[0], why_left_out(odd)
    transport(odd, good).nodes()  # it unpacks the bundle, which takes a busy node long
    monkeypatch.setattr(remote, "_ANSWER_S", _ANSWER_S)
    found = transport(odd, f"{good} slots=2", *reasons)
    assert [node.name for node in found.nodes()] == [good]
    problems = dict(reason.split(" is left out: ", 1) for reason in found.problems())
    assert set(problems) == set(reasons)
    for name, reason in reasons.items():
        assert reason in problems[name]


def test_a_python_that_is_missing_or_too_old_is_named(odd):
    with pytest.raises(FleetError, match="/no/such/python"):
        transport(odd, odd.names[0], python="/no/such/python").nodes()
    old = old_python(odd.folder)
    with pytest.raises(FleetError, match=r"and 3\.11 is the oldest; name another one"):
        transport(odd, odd.names[0], python=str(old)).nodes()


def test_a_search_goes_on_with_the_nodes_there_are_or_ends_with_code_4(odd, tmp_path):
    search = Search(tmp_path)
    good, _, other, *_ = odd.names

    def run(*lines: str) -> tuple[int, str, str]:
        flags = odd.flags_of(odd.choose(*lines))
        return search.run(*flags, "--trials", "1", "--budget", "10s", "--no-diagnose")

    code, _, stderr = run("refused slots=2", "locked slots=2")
    assert code == ExitCode.FLEET_UNAVAILABLE
    assert "no node of the fleet can be used: refused: ssh: connect to host" in _flat(stderr)
    assert "locked: " in _flat(stderr)
    code, _, stderr = run(f"{good} slots=2", f"{other} slots=2")
    assert code == ExitCode.FLEET_UNAVAILABLE
    message = _flat(stderr).partition("the nodes of the fleet differ")[2]
    assert f"; {other}: " in message
    assert "DeepSpeed 0.0.1" in message.partition(f"{other}: ")[2]
    code, stdout, stderr = run(f"{good} slots=2", "refused slots=2")
    assert code == 0, stderr
    assert "refused is left out: ssh: connect to host" in _flat(stderr)
    assert json.loads(stdout.splitlines()[-1])["best"]["samples_per_s"] > 0
    wait_until(lambda: odd.processes() == [], "something is left on a node")


@pytest.mark.thorough
def test_each_kind_of_device_is_searched_and_the_best_for_the_money_is_named(odd, tmp_path):
    search = Search(tmp_path)
    search.flags["world"] = 1
    good, *_, slow = odd.names
    flags = odd.flags_of(odd.choose(f"{good} slots=1", f"{slow} slots=1"))
    flags += ["--trials", "2", "--budget", "18s", "--no-diagnose"]
    flags += ["--fleet-option", "kind=each", "--price", "slow=1,cpu=8,amd=8,intel=8"]
    code, stdout, stderr = search.run(*flags)
    assert code == 0, stderr
    found = json.loads(stdout.splitlines()[-1])
    kinds = found["comparison"]["kinds"]
    assert [kind["device_name"] for kind in kinds] == [cpu_name(), "Slow Processor 1"]
    assert [kind["price_per_hour"] for kind in kinds] == [8.0, 1.0]
    studies = [Study(search.study.root, answer["study"]) for answer in found["answers"]]
    assert studies[1].name == "it-slow-processor-1"
    for study, name in zip(studies, (good, slow), strict=True):
        assert {d for t in study.trials() for d in t.result.devices} == {f"{name}:0"}
    assert found["comparison"]["best_kinds"]["money"] == studies[1].name


def test_the_doctor_looks_at_every_node(odd):
    good, _, other, *_ = odd.names
    flags = odd.flags_of(odd.choose(f"{good} slots=2", f"{other} slots=2", "refused slots=2"))
    command = [sys.executable, "-m", "autotune", "doctor", "--json", *flags]
    done = captured(command)
    assert done.returncode == ExitCode.FLEET_UNAVAILABLE, done.stderr
    found = json.loads(done.stdout)
    nodes = {node["name"]: node for node in found["nodes"]}
    assert (nodes[good]["n_slots"], nodes["refused"]["n_slots"]) == (2, 0)
    assert nodes[good]["inventory"]["interface"] == "eth0"
    assert abs(nodes[good]["clock_ahead_s"]) < 30  # the answer of a busy node is late
    subjects = {remark["subject"] for remark in nodes[good]["findings"]}
    assert {"devices", "disk", "extensions"} <= subjects
    remarks = {remark["subject"]: remark for remark in found["findings"]}
    assert remarks["deepspeed"]["level"] == "fail"
    assert f"0.0.1 on {other}" in remarks["deepspeed"]["message"]
    assert remarks["torch"]["level"] == "ok"


def _flat(text: str) -> str:
    """A text without the line breaks that a terminal's width made."""
    return " ".join(text.split())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two good nodes."""
    folder = tmp_path_factory.mktemp("two")
    records = folder / "records"
    records.mkdir()
    with ssh_nodes(folder, 2, is_apart=[records]) as made:
        yield made
        wait_until(lambda: made.processes() == [], "something is left on a node")
        assert made.left("**/spec.json") == [], "files of trials are left"


@pytest.fixture
def fleet(two, monkeypatch):
    """Two slots on each; who hears nothing for four seconds gives up."""
    monkeypatch.setattr(gang_fleet, "LEASE_S", 4.0)
    monkeypatch.setattr(gang_fleet, "_ALIVE_S", 0.6)
    monkeypatch.setattr(gang_fleet, "_OTHERS_WAIT_S", 2.0)
    made = GangFleet(transport(two, *(f"{name} slots=2" for name in two.names)), world=2)
    with contextlib.closing(made):
        yield made


@pytest.fixture
def submit(two, fleet, request):
    study = Study(two.folder / "records", request.node.name[:40])
    study.lock()

    def start(number: int, **fields):
        wanted = spec(number, **fields)
        return fleet.submit(wanted, study.write_spec(wanted, files(ds_config())))

    yield start
    study.unlock()


def ranks_run(two: SshNodes, n_ranks: int) -> bool:
    count = sum(b"autotune.trial.wrapper" in _command(process.pid) for process in two.processes())
    return count >= n_ranks


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def polled(*trials) -> bool:
    """All are asked, as a coordinator does."""
    return all([trial.poll() is not None for trial in trials])


def test_an_agent_that_is_killed_costs_its_trial_and_no_other(two, fleet, submit):
    first, second = submit(0, factory="hangs"), submit(1, factory="hangs")
    wait_until(lambda: polled(first, second) or ranks_run(two, 4), "they run")
    agents = {agent: agent.children(recursive=True) for agent in two.agents()}
    assert len(agents) == 2
    agent = next(iter(agents))
    agent.kill()
    wait_until(lambda: polled(first) or polled(second), "the trial ends with its agent")
    lost, other = (first, second) if first.poll() else (second, first)
    assert lost.poll().outcome is Outcome.LAUNCH
    assert "the agent of the node ended" in lost.poll().evidence
    assert other.poll() is None
    assert not any(process.is_running() for process in agents[agent])
    again = submit(2)
    wait_until(lambda: polled(again), "the node goes on")
    assert again.poll().outcome is Outcome.OK, again.poll().evidence
    other.cancel()
    assert other.wait(180).outcome is Outcome.CANCELLED


def test_a_node_that_dies_is_left_out_until_it_is_back(two, fleet, submit):
    trial = submit(0, world=4, dp=4, global_batch=8, factory="hangs")
    wait_until(lambda: polled(trial) or ranks_run(two, 4), "it runs")
    two.kill(1)
    wait_until(lambda: polled(trial), "it ends with the node")
    assert trial.poll().outcome.is_platform_fault
    assert two.names[1] in trial.poll().evidence
    assert set(fleet.absent()) == {two.names[1]}
    assert fleet.capacity(2) == 1
    with pytest.raises(FleetError, match=two.names[1]):
        fleet.capacity(4)
    goes_on = submit(1)
    two.boot(1)
    wait_until(lambda: polled(goes_on), "the search goes on")
    assert goes_on.poll().outcome is Outcome.OK, goes_on.poll().evidence
    _wait_for_both(fleet)
    assert two.left("**/0000/spec.json") == [], "it is cleared"


def test_a_cut_cable_ends_what_runs_on_both_sides_of_it(two, fleet, submit):
    trial = submit(0, world=4, dp=4, global_batch=8, factory="hangs")
    wait_until(lambda: polled(trial) or ranks_run(two, 4), "it runs")
    two.cut(1)
    try:
        wait_until(lambda: polled(trial), "it ends")
        assert trial.poll().outcome.is_platform_fault
        assert f"{two.names[1]}: " in trial.poll().evidence
        assert set(fleet.absent()) == {two.names[1]}
        wait_until(lambda: len(two.agents()) <= 1, "the agent beyond the cut ends by itself")
    finally:
        two.mend(1)
    _wait_for_both(fleet)
    assert not ranks_run(two, 1)


def _wait_for_both(fleet: GangFleet) -> None:
    wait_until(lambda: fleet.hear() or not fleet.absent(), "a node that is back is not taken back")
    fleet.reap(Path("/none"))  # it answers one after the other
    assert fleet.capacity(4) == 1
