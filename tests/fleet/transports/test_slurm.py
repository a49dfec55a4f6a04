"""Nodes of a Slurm allocation: what Slurm says of a job, and searches and faults on a cluster."""

import contextlib
import json
import os
import signal
import subprocess

import pytest

from autotune.base.errors import ExitCode, FleetError, JobError
from autotune.contract import Outcome
from autotune.fleet.gang_fleet import GangFleet
from autotune.fleet.node.processes import processes_of
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.fleet.transports import slurm, slurm_job
from autotune.fleet.transports.base import Transport
from autotune.fleet.transports.slurm import SlurmNodes, SlurmTransport
from autotune.fleet.transports.slurm_job import read_status, slurm_environment
from autotune.record.study import Study
from autotune.testing import TransportContract
from tests.cases import data_beside
from tests.clusters.slurm import SlurmCluster, needs_slurm, slurm_cluster
from tests.fleet.transports.answers import check_same_answer
from tests.searches import Demo, Search, check_all_measured
from tests.trials import ds_config, files, spec, wait_until

DATA = data_beside(__file__)

SHOWN = DATA["SHOWN"]


@pytest.mark.cases("tasks", "gres", "slots")
def test_slots_are_gpus_or_else_tasks_or_else_cores(tasks, gres, slots):
    status = read_status(SHOWN.format(tasks=tasks, gres=gres))
    assert status.slots == dict(slots)
    assert (status.state, status.n_restarts, status.first_node) == ("RUNNING", 1, "n0")
    assert (status.time_limit, status.end_time) == ("00:05:00", "2026-11-25T13:20:42")


def test_no_secret_and_no_option_of_an_allocation_goes_to_the_nodes(monkeypatch):
    for name in ("HF_TOKEN", "SLURM_NTASKS_PER_NODE", "SBATCH_PARTITION", "SLURM_CONF", "MINE"):
        monkeypatch.setenv(name, "x")
    made = slurm_environment()
    assert made.keys() & {"HF_TOKEN", "SLURM_NTASKS_PER_NODE", "SBATCH_PARTITION"} == set()
    assert made.keys() >= {"SLURM_CONF", "MINE", "PATH"}


def test_numbers_of_the_coordinators_gpus_go_to_the_nodes_only_if_they_are_named(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("MINE", "x")
    shown = SHOWN.format(tasks=0, gres="")
    monkeypatch.setattr(slurm, "status_of", lambda _: read_status(shown))
    monkeypatch.setattr(slurm, "LocalProcess", lambda command, *, environment: environment)
    seen = []
    for options in (NO_OPTIONS, FleetOptions(forward=("CUDA_VISIBLE_DEVICES",))):
        transport = SlurmTransport("12", options)
        seen.append(transport.variables().get("CUDA_VISIBLE_DEVICES"))
        step = transport.open("n0", ["true"])
        assert "CUDA_VISIBLE_DEVICES" not in step
        assert step["MINE"] == "x"
    assert seen == [None, "3"]


def test_where_slurm_is_not_there_that_is_said(monkeypatch):
    monkeypatch.setattr(slurm_job.shutil, "which", lambda _: None)
    with pytest.raises(FleetError, match="not on this machine: srun, scontrol, sbatch"):
        SlurmNodes().find("", None, {}, NO_OPTIONS)


@needs_slurm
def test_each_job_has_the_gpus_that_slurm_gives_it(tmp_path, monkeypatch):
    with slurm_cluster(tmp_path, 1, cpus=2, gpus=4) as made, contextlib.ExitStack() as stack:
        for name, value in made.variables.items():
            monkeypatch.setenv(name, value)
        # The coordinator's own, as in a batch script on another node.
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        seen = []
        for asked in ("--gres=gpu:2", "--gpus-per-node=1"):
            job = made.allocate("-N1", asked)
            stack.callback(made.run, "scancel", job)
            transport = SlurmTransport(job, NO_OPTIONS)
            assert "CUDA_VISIBLE_DEVICES" not in transport.variables()
            (host,) = transport.hosts()
            step = transport.open(host.name, ["sh", "-c", "echo $CUDA_VISIBLE_DEVICES"])
            wait_until(lambda step=step: step.poll() is not None, "the step ends")
            seen.append((host.n_slots, step.receive().decode().split()[-1]))
    assert seen == [(2, "0,1"), (1, "2")]


@pytest.fixture(scope="module")
def running_cluster(tmp_path_factory):
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), 3) as made:
        yield made


@pytest.fixture
def cluster(running_cluster: SlurmCluster, monkeypatch):
    """Three nodes with a core each, and nothing on them before and after."""
    for name, value in running_cluster.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_tell")
    yield running_cluster
    running_cluster.wait_until(lambda: running_cluster.jobs() == [], "no job is left")
    running_cluster.wait_until(lambda: running_cluster.processes() == [], "no process is left")
    running_cluster.wait_until(lambda: running_cluster.n_idle() == 3, "all nodes are free")


@pytest.fixture
def allocate(cluster: SlurmCluster):
    """Makes allocations that end with the test."""
    with contextlib.ExitStack() as stack:

        def make(*arguments: str) -> str:
            job = cluster.allocate(*arguments)
            stack.callback(cluster.run, "scancel", job)
            return job

        yield make
    cluster.wait_until(lambda: cluster.jobs() == [], "its jobs are gone")


@pytest.mark.parametrize(
    ("answer", "kind", "helps"),
    [
        ("resolve_ctls_from_dns_srv: res_nsearch error: Unknown host", FleetError, "SLURM_CONF"),
        ("Unable to contact slurm controller (connect failure)", FleetError, "`sinfo`"),
        ("invalid partition specified: nope", JobError, "arguments that `sbatch` takes"),
    ],
)
def test_a_cluster_that_is_not_reached_is_no_mistake_of_the_arguments(answer, kind, helps):
    found = subprocess.CompletedProcess([], 1, stdout="", stderr=f"sbatch: error: {answer}")
    error = slurm_job._refused(found, ["-N", "2"])
    assert type(error) is kind
    assert answer.partition(":")[0] in error.message
    assert helps in error.hint


@needs_slurm
class TestSlurmTransport(TransportContract):
    @pytest.fixture(autouse=True)
    def _job(self, allocate):
        self._number = allocate("-N2")

    def make(self) -> Transport:
        return SlurmTransport(self._number, NO_OPTIONS)


@needs_slurm
@pytest.mark.parametrize(
    ("of", "error", "words"),
    [
        ("", JobError, "this is no allocation of Slurm"),
        ("job.sh", JobError, "is no job and no request"),
        ("-N '2", JobError, "No closing quotation"),
        ("--nodez=2", JobError, "unrecognized option '--nodez=2'"),
        ("-N 2 /bin/true", JobError, "Script arguments not permitted with --wrap option"),
        ("-N 9", JobError, "Requested node configuration is not available"),
        ("4711", FleetError, "job 4711 of Slurm: Slurm does not know it"),
        ("-N 3", FleetError, "has no nodes after 1 s: Resources"),
    ],
)
def test_what_cannot_be_had_is_said_in_slurms_words(cluster, allocate, of, error, words):
    blocker = allocate("-N1")
    shown: list[str] = []
    options = FleetOptions(wait="1s")
    with (
        pytest.raises(error) as raised,
        SlurmNodes().obtain(of, options, say=shown.append, agree=shown.append) as held,
    ):
        SlurmNodes().find(held, None, {}, options)
    assert words in raised.value.message, raised.value.message
    if of == "-N 3":
        assert shown[0].startswith("asks Slurm for nodes: sbatch -N 3\nJob "), shown
        assert shown[1].endswith("waits for its nodes: Resources")
        assert shown[-1].endswith("is given back")
    assert cluster.jobs() == [blocker]


def test_a_job_that_has_ended_by_itself_is_not_said_to_be_given_back(monkeypatch):
    """It is cancelled all the same, as where nobody says how it is."""
    ran: list[str] = []

    def answer(state: str):
        def status(_job):
            if not state:
                raise FleetError("no answer")
            return read_status(f"JobState={state}")

        return status

    monkeypatch.setattr(slurm_job, "run_slurm", lambda *command: ran.append(" ".join(command)))
    for state, is_noted in [
        ("RUNNING", True),
        ("PENDING", True),
        ("", True),
        ("CANCELLED", False),
    ]:
        notes: list[str] = []
        monkeypatch.setattr(slurm_job, "status_of", answer(state))
        slurm_job._give_back("5", notes.append)
        assert notes == (["job 5 of Slurm is given back"] if is_noted else []), state
    assert ran == ["scancel 5"] * 4


@needs_slurm
def test_an_interrupt_while_nodes_are_waited_for_gives_the_job_back(cluster, allocate):
    blocker = allocate("-N3")

    def interrupt(line: str) -> None:
        if "waits" in line:
            assert len(cluster.jobs()) == 2
            raise KeyboardInterrupt

    obtained = SlurmNodes().obtain("-N1", NO_OPTIONS, say=interrupt, agree=lambda _: None)
    with pytest.raises(KeyboardInterrupt), obtained:
        raise AssertionError("nothing is free")
    assert cluster.jobs() == [blocker]


@pytest.fixture
def study(tmp_path):
    study = Study(tmp_path / "results", "test")
    study.lock()
    return study


def start_hanging(fleet: GangFleet, study: Study, number: int = 0):
    """A trial whose ranks run and never end."""
    hung = spec(number, factory="hangs")
    trial = fleet.submit(hung, study.write_spec(hung, files(ds_config())))
    wait_until(lambda: trial.poll() or _runs(trial), "its ranks run")
    return trial


def _runs(trial) -> bool:
    return all((trial.folder / "ranks" / f"0{rank}.json").exists() for rank in (0, 1))


@pytest.mark.thorough
@pytest.mark.real
@needs_slurm
def test_a_node_whose_slurmd_is_killed_is_lost_and_others_take_its_trial(cluster, allocate, study):
    fleet = GangFleet(SlurmTransport(allocate("-N3", "--no-kill"), NO_OPTIONS), world=2)
    with contextlib.closing(fleet):
        trial = start_hanging(fleet, study)
        ranks = processes_of(study.folder)
        assert ranks
        assert all("HF_TOKEN" not in rank.environ() for rank in ranks)
        cluster.kill_daemon(1)
        result = trial.wait(180)
        assert result is not None, "Slurm has found out by then"
        assert result.outcome.is_platform_fault
        assert "Node failure on n1" in result.evidence, result.evidence
        assert list(fleet.absent()) == ["n1"]
        assert fleet.capacity(2) == 1
        good = spec(1)
        result = fleet.submit(good, study.write_spec(good, files(ds_config()))).wait(240)
        assert result.outcome is Outcome.OK, result.evidence
        assert result.devices == ["n0:0", "n2:0"]
    cluster.start_daemon(1)


@pytest.mark.thorough
@pytest.mark.real
@needs_slurm
@pytest.mark.cases("command", "words")
def test_the_end_of_an_allocation_is_told_as_such(cluster, allocate, study, command, words):
    """That one is cancelled is asked below, under a search."""
    job = allocate("-N2", "--requeue" if "requeue" in command else "--no-requeue")
    fleet = GangFleet(SlurmTransport(job, NO_OPTIONS), world=2)
    with contextlib.closing(fleet):
        trial = start_hanging(fleet, study)
        cluster.run(*command.format(job=job).split())
        result = trial.wait(180)
        assert result.outcome.is_platform_fault, result.evidence
        with pytest.raises(FleetError) as raised:
            fleet.capacity(2)
        assert raised.value.message == f"job {job} of Slurm {words}"
        assert "resumes" in raised.value.hint
    if "state=down" in command:
        cluster.mend(0)


@pytest.mark.thorough
@pytest.mark.real
@needs_slurm
def test_a_search_in_an_allocation_leaves_it_and_answers_as_here(
    cluster, allocate, answer_here, tmp_path, monkeypatch
):
    """It ends well on a node that is drained meanwhile: Slurm lets its job end there."""
    job = allocate("-N2")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    search = Demo(tmp_path)
    process = search.start("--fleet", "slurm")
    wait_until(search.is_under_way, "a rank runs")
    cluster.run("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    _, stderr = process.communicate(timeout=300)
    cluster.mend(1)
    assert process.returncode == 0, stderr
    check_same_answer(answer_here, search.study)
    monkeypatch.delenv("SLURM_JOB_ID")
    code, _, stderr = search.run("--fleet", f"slurm:{job}")
    assert code == 0, stderr
    trials = search.study.trials()
    check_all_measured(search.study, trials)
    assert {tuple(trial.result.devices) for trial in trials} == {("n0:0", "n1:0")}
    assert cluster.state_of(job) == "RUNNING"


@pytest.mark.real
@needs_slurm
def test_a_search_that_asks_for_nodes_gives_them_back_however_it_ends(cluster, tmp_path):
    search = Search(tmp_path)
    flags = ["--fleet", "slurm:-N2 -t 10", "--trials", "1", "--no-diagnose"]
    flags += ["--budget", "40s", "--compare", "best", "--guard-steps", "0"]

    def begun(number: int):
        process = search.start(*flags)
        ranks = f"trials/{number:04}/ranks/01.json"
        wait_until(lambda: list(search.study.folder.glob(ranks)), "a rank runs")
        (job,) = cluster.jobs()
        return process, job

    cancelled, job = begun(0)
    cluster.run("scancel", job)
    _, stderr = cancelled.communicate(timeout=300)
    assert cancelled.returncode == ExitCode.FLEET_UNAVAILABLE, stderr
    text = " ".join(stderr.split())
    assert f"job {job} of Slurm has ended (CANCELLED): it was cancelled" in text
    assert "is given back" not in text
    cluster.wait_until(lambda: cluster.jobs() == [], "the job is over")

    killed, job = begun(1)
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    cluster.wait_until(lambda: cluster.state_of(job) == "COMPLETED", "its job ends with it")
    cluster.wait_until(lambda: cluster.processes() == [], "what it ran ends with it")

    code, stdout, stderr = search.run(*flags)
    assert code == 0, stderr
    assert json.loads(stdout.splitlines()[-1])["best"]["samples_per_s"] > 0
    assert "asks Slurm for nodes: sbatch -N2 -t 10" in stderr
    first, second, *others = search.study.trials()
    assert first.result.outcome.is_platform_fault
    assert second.result.outcome is Outcome.LOST
    check_all_measured(search.study, others)
    cluster.wait_until(lambda: cluster.jobs() == [], "its job is given back")
