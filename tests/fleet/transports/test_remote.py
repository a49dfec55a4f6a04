"""What transports to other machines share, with pipes to this machine in the place of the way."""

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autotune.base import keeper
from autotune.base.errors import FleetError
from autotune.fleet.node.answers import MARK as ANSWER_MARK
from autotune.fleet.node.inventory import Inventory
from autotune.fleet.node.places import DevicePlace
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.fleet.transports import remote
from autotune.fleet.transports.local import LocalProcess
from autotune.fleet.transports.remote import (
    Elsewhere,
    Host,
    RemoteTransport,
    boot_command,
    boot_request,
    bundle,
    common_environment,
)
from tests.jobs import A100, CPU, tiny_job
from tests.trials import wait_until

AGENT = "autotune.fleet.node.agent"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of the user on the node, which has no package of ours of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path / "cache" / "autotune" / "nodes"


def booted(command: Sequence[str], module: str = AGENT) -> LocalProcess:
    line = LocalProcess(list(command))
    line.send(boot_request(module, (), {"GIVEN": "1"}))
    return line


def received_until(process: LocalProcess, word: str) -> str:
    received, deadline_s = "", time.monotonic() + 180
    while word not in received:
        assert time.monotonic() < deadline_s, received
        received += process.receive().decode()
        if process.poll() is not None:
            return received + process.receive().decode()
        time.sleep(0.01)
    return received


def code_of(process: LocalProcess) -> int:
    while (code := process.poll()) is None:
        process.receive()
        time.sleep(0.01)
    return code


def test_the_bundle_is_brought_once_and_the_agent_answers(cache: Path) -> None:
    old, recent = cache / "old", cache / "recent"
    for earlier in (old, recent):
        earlier.mkdir(parents=True)
    os.utime(old, (0, 0))
    greeting = ["sh", "-c", 'echo "Welcome to node 7"; exec "$@"', "sh"]
    first = booted([*greeting, *boot_command(sys.executable)])
    first.send(b'{"command": "alive"}\n')
    received = received_until(first, '"alive"')
    assert received.splitlines()[0] == "Welcome to node 7"
    assert [line for line in received.splitlines()[1:] if line.startswith("{")] == [
        '{"event": "ready"}',
        '{"event": "alive"}',
    ]
    first.send(b'{"command": "close"}\n')
    assert code_of(first) == 0
    folder = cache / bundle()[0]
    assert set(cache.iterdir()) == {folder, recent}, "one that nothing was started from is gone"
    made_at = (folder / "autotune").stat().st_ctime_ns
    assert (folder / "autotune" / "fleet" / "node" / "__pycache__").exists(), "compiled once"

    second = booted(boot_command(""))
    assert '"ready"' in received_until(second, '"ready"')
    second.end()
    assert code_of(second) != 0
    assert (folder / "autotune").stat().st_ctime_ns == made_at
    assert set(cache.iterdir()) == {folder, recent}


def test_a_python_that_is_too_old_and_a_cache_that_cannot_be_written_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    *_, code = boot_command(sys.executable)
    aged = "import sys; sys.hexversion = 0x03090000; exec(sys.argv[1])"
    process = booted([sys.executable, "-c", aged, code])
    received = received_until(process, "oldest")
    assert "and 3.11 is the oldest; name another one: --fleet-option python=PATH" in received
    assert code_of(process) == 3

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    process = booted(boot_command(sys.executable))
    received = received_until(process, "unpacked")
    assert received.startswith("autotune cannot be unpacked there: ")
    assert "Not a directory" in received
    assert code_of(process) == 3


WAY = """
import json, os, subprocess, sys
options = {**json.loads(sys.argv[2]), "parent": os.getpid(), "root": sys.argv[3]}
command = [sys.executable, sys.argv[1], json.dumps(options), "sh", "-c", sys.argv[4]]
subprocess.Popen(command, stdin=subprocess.PIPE).wait()
"""
"""Starts a program on a node, and holds its input, as a daemon of ssh does."""


def test_an_agent_may_clean_up_where_the_way_to_it_was_killed(tmp_path: Path) -> None:
    header = boot_request("m", (), {}).partition(b"\n")[0]
    options = json.dumps(json.loads(header)["keeping"])
    script = "echo up; read word; sleep 0.2; echo cleaned"
    way = subprocess.Popen(
        [sys.executable, "-c", WAY, keeper.__file__, options, str(tmp_path), script],
        stdout=subprocess.PIPE,
    )
    assert way.stdout.readline() == b"up\n"
    way.kill()
    assert way.communicate(timeout=60)[0] == b"cleaned\n"


class Machines(RemoteTransport):
    """Machines that are this one, or say what they are told to."""

    def __init__(self, options: FleetOptions = NO_OPTIONS, **says: str) -> None:
        super().__init__(options)
        self.says = says

    def hosts(self) -> Sequence[Host]:
        return [Host(name=name, n_slots=3) for name in self.says]

    def open(self, host: str, command: Sequence[str]) -> LocalProcess:
        if not self.says[host]:
            return LocalProcess(list(command))
        if self.says[host] == "cannot":
            raise OSError(2, "No such file or directory: 'ssh'")
        return LocalProcess(["sh", "-c", self.says[host]])


def test_each_node_that_cannot_be_used_says_why_and_the_others_are_there(monkeypatch, tmp_path):
    """Nothing of ours is left where a node was asked."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    Machines(good="").nodes()  # it unpacks the bundle
    monkeypatch.setattr(remote, "_ANSWER_S", 4.0)
    machines = Machines(
        good="",
        refused="echo 'ssh: connect to host refused port 22: Connection refused'; exit 255",
        gone="exit 255",
        silent="sleep 600",
        slow="echo 'motd of slow'; sleep 600",
        unreached="cannot",
        noisy='read x; echo "autotune-answer: {}"; sleep 600',
    )
    (node,) = machines.nodes()
    assert node.name == "good"
    assert len(node.devices) == 3
    problems = dict(line.split(" is left out: ", 1) for line in machines.problems())
    assert problems["noisy"].startswith("an answer that cannot be read: Inventory: ")
    assert problems == {
        "refused": "ssh: connect to host refused port 22: Connection refused",
        "gone": "the way to it ended with code 255",
        "silent": "no answer within 4 s",
        "slow": "no answer within 4 s: motd of slow",
        "unreached": "it cannot be reached: [Errno 2] No such file or directory: 'ssh'",
        "noisy": problems["noisy"],
    }
    wait_until(lambda: not any(temporary.glob("autotune-run-*")), "something is left")


def test_an_interrupt_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    machines = Machines(silent="sleep 600", slow="sleep 600")
    started: list[LocalProcess] = []
    way = machines.open
    monkeypatch.setattr(
        machines, "open", lambda host, command: started.append(way(host, command)) or started[-1]
    )

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(remote.time, "sleep", interrupted)
        with pytest.raises(KeyboardInterrupt):
            machines.nodes()
    assert len(started) == 2
    assert all(code_of(process) != 0 for process in started)


def test_only_variables_that_change_speed_and_those_named_travel(monkeypatch):
    for name in ("NCCL_DEBUG", "HF_TOKEN", "WANDB_MODE", "NCCL_API_KEY"):
        monkeypatch.setenv(name, "x")
    given = Machines().variables()
    assert "NCCL_DEBUG" in given
    assert not {"HF_TOKEN", "WANDB_MODE", "NCCL_API_KEY", "PATH", "HOME"} & given.keys()
    named = Machines(FleetOptions(forward=("HF_TOKEN", "NOT_SET"))).variables()
    assert set(named) == {*given, "HF_TOKEN"}


def has(environment=CPU, devices=("0", "1"), **fields) -> Inventory:
    return Inventory(
        environment=environment,
        devices=devices,
        places=(DevicePlace(),) * len(devices),
        host="h",
        address="10.0.0.1",
        interface="eth0",
        releases={},
        unix_s=0.0,
        free_disk_bytes=0,
        addresses={},
        **fields,
    )


def fleet_of(**found: Inventory) -> Machines:
    machines = Machines(**dict.fromkeys(found, ""))
    vars(machines)["_asked"] = (found, {})
    return machines


def answer_of(found: Inventory) -> str:
    return ANSWER_MARK + json.dumps(dataclasses.asdict(found))


def test_of_several_kinds_one_is_chosen_by_words_of_its_name() -> None:
    hopper = dataclasses.replace(A100, device_name="NVIDIA H100 80GB HBM3")
    says = {
        name: f"echo {shlex.quote(answer_of(has(environment)))}; sleep 9"
        for name, environment in (("old", A100), ("new", hopper))
    }
    chosen = Machines(FleetOptions(kind="h100"), **says)
    assert [node.name for node in chosen.nodes()] == ["new"]
    (problem,) = chosen.problems()
    assert problem == (
        f"old is left out: it has {A100.device_name}, and nodes of kind=h100 are asked for"
    )
    with pytest.raises(FleetError, match="differ") as raised:
        common_environment(Machines(**says))
    assert "--fleet-option kind=NAME" in raised.value.hint


def test_cpu_nodes_share_cores_and_memory_among_their_slots() -> None:
    first, second = fleet_of(a=has(), b=has(devices=("4",))).nodes()
    assert (first.devices, second.devices) == (("0", "1", "0"), ("4", "4", "4"))
    assert second.rank_memory_bytes == CPU.device_memory_bytes // 3


def test_gpu_nodes_have_no_more_slots_than_gpus() -> None:
    (node,) = fleet_of(a=has(A100, ("g0", "g1"))).nodes()
    assert (node.devices, node.rank_memory_bytes) == (("g0", "g1"), 0)


def test_nodes_that_differ_are_no_fleet() -> None:
    other = dataclasses.replace(CPU, deepspeed_version="0.18.0")
    with pytest.raises(FleetError) as raised:
        common_environment(fleet_of(a=has(), b=has(other), c=has()))
    assert "a, c: a processor, torch 2.13.0, DeepSpeed 0.19.8" in raised.value.message
    assert "b: a processor, torch 2.13.0, DeepSpeed 0.18.0" in raised.value.message


def test_a_fleet_has_what_all_its_nodes_have() -> None:
    poor = dataclasses.replace(CPU, precisions=("fp32",), device_memory_bytes=2**30)
    found = common_environment(fleet_of(a=has(), b=has(poor)))
    assert (found.n_devices, found.precisions) == (3, ("fp32",))
    assert found.device_memory_bytes == 2**30 * 2 // 3


@pytest.mark.cases("flag", "package")
def test_a_package_that_one_node_lacks_is_told_and_no_trial_uses_it(flag, package) -> None:
    has_it, lacks_it = (
        dataclasses.replace(A100, **{flag: is_there}) for is_there in (True, False)
    )
    uneven = fleet_of(a=has(has_it), b=has(lacks_it), c=has(has_it))
    (problem,) = uneven.problems()
    assert problem.startswith(f"b lacks {package}, which the other nodes have")
    assert getattr(common_environment(uneven), flag) is False
    for environment in (has_it, lacks_it):
        alike = fleet_of(a=has(environment), b=has(environment))
        assert alike.problems() == ()
        assert getattr(common_environment(alike), flag) is getattr(environment, flag)


@pytest.mark.parametrize(("other", "words"), [("0.16.1", "b: 0.16.1"), ("", "b: none")])
def test_megatron_of_several_releases_counts_as_missing(other: str, words: str) -> None:
    ours, others = (dataclasses.replace(A100, megatron_core=it) for it in ("0.14.0", other))
    uneven = fleet_of(a=has(ours), b=has(others))
    (problem,) = uneven.problems()
    assert f"(a: 0.14.0; {words})" in problem
    assert common_environment(uneven).megatron_core == ""
    assert common_environment(fleet_of(a=has(ours), b=has(ours))).megatron_core == "0.14.0"


def test_nodes_without_the_engine_are_named_unless_the_job_brings_it(tmp_path: Path) -> None:
    there = dataclasses.replace(has(), releases={"megatron-core": "0.16.1", "torch": "2.13.0"})
    place = Elsewhere(fleet_of(a=there, b=has()), {})
    job = tiny_job(tmp_path, engine="megatron")
    unused: Any = None
    with pytest.raises(FleetError, match="megatron-core is not installed on b"):
        place.fleet_for(job, unused, unused)
    place.fleet_for(dataclasses.replace(job, megatron_path=tmp_path), unused, unused)
