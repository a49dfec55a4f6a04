"""Nodes by ssh: what a hostfile says, and trials and searches on nodes in network namespaces."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml

from autotune.base.errors import ExitCode, FleetError, JobError
from autotune.contract import Outcome, Role, Start
from autotune.engines.deepspeed.extensions import environment as extensions
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.options import FleetOptions, options_of
from autotune.fleet.transports import hostfile
from autotune.fleet.transports.hostfile import HostfileTransport, read_hostfile
from autotune.fleet.transports.remote import Host
from autotune.record.study import Study
from tests.captured import captured
from tests.clusters.ssh import core_of, needs_ssh_nodes, ssh_nodes
from tests.command_line import autotune
from tests.fleet.transports.answers import check_same_answer
from tests.hasty import HASTY
from tests.searches import Demo, Search, check_all_measured
from tests.trials import ds_config, files, spec, wait_until

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_a_hostfile_names_hosts_and_their_slots(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("# ours\nworker-1 slots=8\n\n  worker-2   slots=4 # half of it\nme@10.0.0.3\n")
    assert read_hostfile(str(file)) == (
        Host(name="worker-1", n_slots=8),
        Host(name="worker-2", n_slots=4),
        Host(name="me@10.0.0.3", n_slots=None),
    )


@pytest.mark.cases("text", "message")
def test_a_hostfile_that_is_none_says_which_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "hostfile"
    file.write_text(text)
    with pytest.raises(JobError) as raised:
        read_hostfile(str(file))
    assert message in raised.value.message


def test_a_hostfile_that_is_not_there_or_not_named_is_said(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="No such file"):
        read_hostfile(str(tmp_path / "none"))
    with pytest.raises(JobError, match="which file"):
        read_hostfile("")


def test_the_host_gets_one_text_and_ssh_asks_nothing(tmp_path, monkeypatch):
    started: list[list[str]] = []
    monkeypatch.setattr(hostfile, "LocalProcess", started.append)
    file = tmp_path / "hostfile"
    file.write_text("worker-1 slots=1\n")
    options = options_of(["ssh=ssh -F 'my config'"])
    HostfileTransport(str(file), options).open("worker-1", ["python3", "-c", "print('a b')"])
    ((*ssh, host, dashes, text),) = started
    assert ssh[:3] == ["ssh", "-F", "my config"]
    assert "BatchMode=yes" in ssh
    assert (host, dashes) == ("worker-1", "--")
    assert text == """exec python3 -c 'print('"'"'a b'"'"')'"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes that do not see where this machine keeps its records."""
    folder = tmp_path_factory.mktemp("ssh")
    records = folder / "records"
    records.mkdir()
    with ssh_nodes(folder, 2, is_apart=[records]) as made:
        yield made
        wait_until(lambda: made.processes() == [], "something is left on a node")
        assert made.left() == [], "temporary files are left"


def far_fleet(nodes, hosts: Path, world: int) -> GangFleet:
    return GangFleet(HostfileTransport(str(hosts), FleetOptions(ssh=nodes.ssh)), world=world)


def listeners(nodes) -> set[str]:
    """Addresses on which the nodes listen, beside sshd."""
    found = set()
    for name in nodes.names:
        command = ["ip", "netns", "exec", name, "ss", "-Hltn", "sport != :22"]
        for line in captured(command).stdout.splitlines():
            found.add(line.split()[3].rpartition(":")[0])
    return found


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_trials_side_by_side_and_one_over_both_nodes(nodes, tmp_path, monkeypatch):
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_tell")
    study = Study(nodes.folder / "records", "side")
    study.lock()
    hosts = nodes.choose(*(f"{name} slots=2" for name in nodes.names))
    fleet = far_fleet(nodes, hosts, 2)
    with contextlib.closing(fleet):
        assert fleet.capacity(2) == 2
        assert fleet.capacity(4) == 1
        listening: set[str] = set()
        specs = [spec(n, diagnoses=n == 0) for n in range(2)]
        trials = [fleet.submit(s, study.write_spec(s, files(ds_config()))) for s in specs]
        results = [trial.wait(240) for trial in trials]
        assert [r and r.outcome for r in results] == [Outcome.OK] * 2, results
        names = [{device.partition(":")[0] for device in r.devices} for r in results]
        assert names[0] | names[1] == set(nodes.names)
        assert len(names[0]) == len(names[1]) == 1
        assert results[0].diagnosis.problem == ""
        assert results[0].environment["NCCL_DEBUG"] == "WARN"
        assert "do_not_tell" not in json.dumps(results[0].environment)

        wide = spec(2, world=4, dp=4, global_batch=8)
        trial = fleet.submit(wide, study.write_spec(wide, files(ds_config())))
        while (result := trial.poll()) is None:
            listening |= listeners(nodes)
        assert result.outcome is Outcome.OK, result.evidence
        assert result.devices == [f"{name}:{slot}" for name in nodes.names for slot in (0, 1)]
        assert listening <= {"127.0.0.1", "[::ffff:127.0.0.1]", *nodes.addresses}
        assert nodes.addresses[0] in listening
        for name in ("stderr.log", "node_01.stderr.log", "ranks/03.json", "ranks/node_01.json"):
            assert (study.trial_folder(2) / name).exists()

        cold = result
        warm = spec(3, world=4, dp=4, global_batch=8, start=Start.WARM)
        result = fleet.submit(warm, study.write_spec(warm, files(ds_config()))).wait(240)
        assert (result.outcome, result.start) == (Outcome.OK, Start.WARM), result.evidence
        assert (result.loss_first, result.read_back) == (cold.loss_first, cold.read_back)

        bad = spec(4, world=4, dp=4, global_batch=8, factory="raises", start=Start.WARM)
        result = fleet.submit(bad, study.write_spec(bad, files(ds_config()))).wait(240)
        assert result.outcome is Outcome.INVALID, result.evidence
        assert "this model cannot be trained so" in result.evidence

        hung = spec(5, world=4, dp=4, global_batch=8, factory="hangs", start=Start.WARM)
        trial = fleet.submit(hung, study.write_spec(hung, files(ds_config())))
        wait_until(lambda: trial.poll() or len(nodes.processes()) > 8, "it runs")
        trial.cancel()
        assert trial.wait(180).outcome is Outcome.CANCELLED
    wait_until(lambda: nodes.processes() == [], "an agent stays when its fleet is closed")


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_a_search_outlives_its_coordinator(nodes, tmp_path):
    """`test_ssh_faults.py` searches in every run, and cuts nodes off from their coordinator."""
    search = Search(tmp_path)
    search.study = Study(nodes.folder / "records" / tmp_path.name, "it")
    flags = [*nodes.flags, "--results", str(search.study.root), "--trials", "1"]
    flags += ["--no-diagnose", "--budget", "10s", "--compare", "best", "--guard-steps", "0"]
    first = search.start(*flags)
    wait_until(search.is_under_way, "a rank runs")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    wait_until(lambda: nodes.processes() == [], "what it ran ends with it")

    code, _, stderr = search.run(*flags)
    assert code == 0, stderr
    trials = search.study.trials()
    assert trials[0].result.outcome is Outcome.LOST
    check_all_measured(search.study, trials[1:])
    assert trials[1].spec.identity.role is Role.BASELINE
    for trial in trials[1:]:
        assert trial.result.devices == [f"{name}:0" for name in nodes.names]
    best = search.study.folder / "best"
    assert json.loads((best / "ds_config.json").read_text())["train_micro_batch_size_per_gpu"] > 0

    export = tmp_path / "export"
    words = ("export", "--launcher", "deepspeed", "--results", str(search.study.root))
    assert autotune(*words, "--out", str(export), folder=tmp_path).returncode == 0
    lines = (export / "hostfile").read_text().splitlines()
    assert f"# ranks 0 on {nodes.names[0]}; 1 on {nodes.names[1]}" in lines
    assert lines[-2:] == [f"{name} slots=1" for name in nodes.names]


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_nodes_answer_as_here_and_what_they_are_handed_is_soaked_and_launched_on_them(
    nodes, answer_here, tmp_path
):
    search = Demo(tmp_path)
    search.study = Study(nodes.folder / "records" / tmp_path.name, "it")
    code, _, stderr = search.run(*nodes.flags, "--results", str(search.study.root))
    assert code == 0, stderr
    check_same_answer(answer_here, search.study)

    def soak(*more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "autotune", "soak", "--json", "--minutes", "0.1"]
        words = [*command, *nodes.flags, *more]
        return captured(words, cwd=tmp_path)

    done = soak("--results", str(search.study.root))
    assert done.returncode == ExitCode.FLEET_UNAVAILABLE
    message = f"{', '.join(nodes.names)} cannot see this folder"
    assert message in " ".join(done.stderr.split())
    shutil.copytree(search.study.best_folder, tmp_path / "shared")
    done = soak("--from", str(tmp_path / "shared"))
    assert done.returncode in (ExitCode.FOUND, ExitCode.CHECK_FAILED), done.stderr
    found = json.loads(done.stdout)
    assert found["checkpoint"]["steps_compared"] == 4
    assert found["checkpoint"]["loss_deviation"] <= found["checkpoint"]["loss_tolerance"]
    assert launched(nodes, tmp_path / "shared") == [0, 0]


def launched(nodes, export: Path) -> list[int]:
    """Exit codes of an export's script, started on both nodes as its README says."""
    variables = {"MASTER_ADDR": nodes.addresses[0], "GLOO_SOCKET_IFNAME": "eth0"}
    environment = {**os.environ, **extensions("cpu"), **variables, "PYTHON": sys.executable}
    started = [
        subprocess.Popen(
            ["timeout", "-k", "1", "300", *("ip", "netns", "exec", name), "bash", "launch.sh"],
            cwd=export,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name in nodes.names
    ]
    return [process.wait() for process in started]


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_a_users_own_command_is_diagnosed_on_a_node(nodes, tmp_path):
    hosts = nodes.choose(f"{nodes.names[1]} slots=2")
    torchrun = str(Path(sys.executable).parent / "torchrun")
    command = [sys.executable, "-P", HASTY, "diagnose", "--json"]
    flags = ["--results", str(tmp_path), *nodes.flags_of(hosts)]
    done = captured(
        [*command, *flags, "--", torchrun, "--nproc-per-node", "2", "train.py"],
        cwd=EXAMPLES / "deepspeed_dict",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["row"]["outcome"] == "ok"
    assert found["settings"]["world"] == 2
    (observed,) = tmp_path.glob("*/observed.json")
    assert json.loads(observed.read_text())["result"]["devices"] == [
        f"{nodes.names[1]}:{slot}" for slot in (0, 1)
    ]


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_the_nodes_are_examined_and_probed_together(nodes, tmp_path):
    words = [sys.executable, "-m", "autotune", "doctor", "--links", "--json", *nodes.flags]
    done = captured(words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    (link,) = found["links"]
    assert link["span"] == "nodes"
    assert [link["first"], link["second"]] == [
        f"core {core_of(node)} of {name}" for node, name in enumerate(nodes.names)
    ]
    assert link["bytes_per_s"] > 1e6
    (message,) = [
        finding["message"] for finding in found["findings"] if finding["subject"] == "links"
    ]
    assert message.endswith(" GB/s between nodes")

    out = tmp_path / "hardware.yaml"
    words = [sys.executable, "-m", "autotune", "probe", "--quick", "--json", "--out", str(out)]
    done = captured([*words, *nodes.flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    about = json.loads(done.stdout)["probe"]
    assert (about["nodes"], about["ranks"]) == (2, 2)
    (entry,) = yaml.safe_load(out.read_text())["accelerators"].values()
    assert entry["measured"]["network"]["gb_per_s"] > 0
    wait_until(lambda: nodes.processes() == [], "a probe leaves something")
    words += ["--nvme", "/no/such/folder"]
    done = captured([*words, *nodes.flags], cwd=tmp_path)
    assert done.returncode == ExitCode.FLEET_UNAVAILABLE
    message = " ".join(done.stderr.split())
    assert "--nvme /no/such/folder: is no folder" in message
    assert any(f"{name}, rank" in message for name in nodes.names)


@pytest.mark.thorough
@pytest.mark.real
@needs_ssh_nodes
def test_a_node_that_dies_ends_a_probe_and_is_named(nodes, tmp_path):
    words = [sys.executable, "-m", "autotune", "probe", *nodes.flags]
    probe = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=tmp_path)

    def has_rank(node):
        for process in nodes.processes(node):
            with contextlib.suppress(psutil.Error):
                if "RANK" in process.environ():
                    return True
        return False

    wait_until(lambda: has_rank(0) and has_rank(1), "the ranks do not start")
    nodes.kill(1)
    try:
        _, errors = probe.communicate(timeout=180)
    finally:
        nodes.boot(1)
    assert probe.returncode == ExitCode.FLEET_UNAVAILABLE
    assert f"{nodes.names[1]}: " in errors
    assert "Traceback" not in errors
    assert not (tmp_path / "hardware.yaml").exists()
    wait_until(lambda: nodes.processes() == [], "a probe leaves something")


def test_no_node_is_an_error_that_names_each(tmp_path: Path) -> None:
    file = tmp_path / "hostfile"
    file.write_text("one slots=1\ntwo slots=1\n")
    transport = HostfileTransport(str(file), FleetOptions(ssh="sh -c 'echo no way; exit 255'"))
    with pytest.raises(FleetError) as raised:
        transport.nodes()
    assert "one: no way; two: no way" in raised.value.message
