"""Real trials on this machine's cores: every way of ending is told apart, nothing is left over."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from autotune.contract import Outcome, Phase, Start, TrialResult
from autotune.fleet.node.processes import processes_of
from autotune.fleet.reports import read_reports
from autotune.fleet.transports.local import local_fleet, other_agents
from tests.captured import captured
from tests.jobs import TINY
from tests.trials import CPU, QUICK, ds_config, files, spec, wait_until

pytestmark = pytest.mark.real
THOROUGH = pytest.mark.thorough
ASKS = (
    *(sys.executable, "-c"),
    f"from {other_agents.__module__} import other_agents; print(*other_agents())",
)


@pytest.fixture(scope="module")
def fleet():
    fleet = local_fleet(CPU, world=2)
    yield fleet
    fleet.close()


def segments(port: int | str) -> list[Path]:
    return list(Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"))


def submit(fleet, study, trial_spec, config=None):
    folder = study.write_spec(trial_spec, files(config or ds_config()))
    return fleet.submit(trial_spec, folder)


def run(fleet, study, trial_spec, config=None) -> TrialResult:
    return submit(fleet, study, trial_spec, config).wait()


def sees_what_it_ran(result: TrialResult) -> None:
    """Stage 1 of a model of 2,112 parameters in bf16, over two ranks."""
    diagnosis = result.diagnosis
    assert diagnosis.problem == ""
    split = diagnosis.split
    parts = (split.forward_s, split.backward_s, split.optimizer_s, split.communication_s)
    assert min(parts) > 0
    assert sum(parts) + split.data_s == pytest.approx(split.step_s)
    sent = {(c.name, c.message_bytes): c.calls for c in diagnosis.collectives}
    assert sent["all_reduce", 2 * 2112] == 1, "the gradients, in bf16"
    assert sent["all_gather_into_tensor", 2112] == 1, "half of the parameters, in bf16"


@pytest.mark.parametrize(
    "factory", [pytest.param("raises_when_watched", marks=THOROUGH), "is_killed_when_watched"]
)
def test_a_pass_that_fails_costs_the_trial_nothing(fleet, study, factory):
    result = run(fleet, study, spec(factory=factory, diagnoses=True, start=Start.WARM))
    assert (result.outcome, result.evidence) == (Outcome.OK, "")
    assert len(result.step_times_s) >= 6
    assert result.peak_memory_bytes > 0
    problems = {"raises": "does not like to be watched", "is_killed": "rank 1 did not finish it"}
    assert problems[factory.removesuffix("_when_watched")] in result.diagnosis.problem


@pytest.mark.parametrize("start", [pytest.param(Start.COLD, marks=THOROUGH), Start.WARM])
def test_gloos_interfaces_arrive_and_make_its_threads(fleet, study, start):
    """Each entry is a device with two threads, and a trial that has not got them is `invalid`."""
    expected = {"gloo_devices": 2, "gloo_threads": 4}
    interfaces = {"GLOO_SOCKET_IFNAME": "lo,lo"}
    result = run(fleet, study, spec(expected=expected, environment=interfaces, start=start))
    assert result.outcome is Outcome.OK, result.evidence
    assert result.read_back.items() >= expected.items()
    assert result.environment["GLOO_SOCKET_IFNAME"] == "lo,lo"


@pytest.mark.thorough
def test_gloos_own_interface_has_half_as_many_threads(fleet, study):
    result = run(fleet, study, spec(1, expected={"gloo_threads": 4}))
    assert result.outcome is Outcome.INVALID
    assert "gloo_threads: asked 4, the engine runs 2" in result.evidence


@pytest.fixture
def fleet_with_variables(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_do_not_tell")
    monkeypatch.setenv("NCCL_API_KEY", "do-not-tell-either")
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    with contextlib.closing(local_fleet(CPU, world=2)) as made:
        yield made


def test_a_good_trial_measures_and_reads_back(fleet_with_variables, study):
    fleet = fleet_with_variables
    expected = {"stage": 1, "micro_batch": 2, "dp": 2}
    trial = submit(fleet, study, spec(expected=expected, diagnoses=True))
    wait_until(lambda: not trial.poll() and trial.port and segments(trial.port), "none is shared")
    result = trial.wait()

    assert result.outcome is Outcome.OK, result.evidence
    assert segments(trial.port) == [], "the trial left shared memory"
    assert 6 <= len(result.step_times_s) <= 8
    assert result.samples_per_s == pytest.approx(4 / result.step_time_s)
    assert result.samples_per_s_low <= result.samples_per_s <= result.samples_per_s_high
    assert result.read_back["stage"] == 1
    assert 0 < result.peak_memory_bytes == result.memory_bytes["private_data"]
    assert set(result.phases_s) == {str(phase) for phase in Phase}
    assert result.loss_first > 0
    assert result.use.cpu_utilization > 0
    sees_what_it_ran(result)
    assert result.environment["NCCL_DEBUG"] == "WARN"
    assert "do_not_tell" not in str(result)
    assert "do-not-tell" not in str(result)
    assert sum(result.phases_s.values()) == pytest.approx(result.wall_s, rel=0.05)
    for report in read_reports(study.trial_folder(0), 2):
        seen = report.surroundings
        assert seen is not None, "it was bound to a core, and watched what else ran there"
        assert report.cpu_s > 0
        assert seen.elapsed_s > 0.5 * sum(result.step_times_s)


@pytest.mark.thorough
def test_a_clearly_losing_trial_stops_early_on_all_ranks(fleet, study):
    patient = dataclasses.replace(
        QUICK, target_half_width=1e-9, budget_s=60.0, max_steps=5000, losing_step_time_s=1e-6
    )
    result = run(fleet, study, spec(measure=dataclasses.replace(patient, diagnoses=True)))
    assert result.outcome is Outcome.STOPPED_EARLY, result.evidence
    assert len(result.step_times_s) == 3
    assert result.diagnosis is None
    assert result.samples_per_s == pytest.approx(4 / result.step_time_s)
    assert "cannot come near the best so far" in result.evidence


def test_a_pipeline_is_measured_and_its_loss_is_seen_on_every_stage(fleet, study):
    layout = {"pp": 2, "dp": 1, "grad_accum": 2, "start": Start.WARM}
    layout["model"] = {"config": TINY, "vocab": TINY["vocab_size"]}
    expected = {"stage": 1, "pp": 2, "dp": 1, "tp": 1, "grad_accum": 2, "recompute_interval": 0}
    config = ds_config(gradient_accumulation_steps=2)
    good = run(fleet, study, spec(**layout, expected=expected), config)
    assert good.outcome is Outcome.OK, good.evidence
    assert good.start is Start.WARM
    assert 6 <= len(good.step_times_s) <= 8
    assert good.samples_per_s == pytest.approx(4 / good.step_time_s)
    assert 4 < good.loss_first < 8  # ln 256 = 5.5; rank 0 holds the first stage
    config["optimizer"] = {"type": "SGD", "params": {"lr": 1e30}}
    config["zero_allow_untested_optimizer"] = True
    bad = run(fleet, study, spec(1, **layout), config)
    assert bad.outcome is Outcome.NONFINITE, bad.evidence
    assert "loss" in bad.evidence


@pytest.mark.parametrize(
    ("factory", "start", "outcome", "evidence"),
    [
        pytest.param("is_killed", Start.COLD, Outcome.CRASH, "SIGKILL", marks=THOROUGH),
        ("is_killed", Start.WARM, Outcome.CRASH, "SIGKILL"),
        pytest.param("hangs", Start.COLD, Outcome.TIMEOUT, "not done after", marks=THOROUGH),
        # `tests/chaos` hangs a warm one in every run.
        pytest.param("hangs", Start.WARM, Outcome.TIMEOUT, "not done after", marks=THOROUGH),
        ("turns_nan", Start.WARM, Outcome.NONFINITE, "in optimizer step 4"),
        ("raises", Start.WARM, Outcome.INVALID, "this model cannot be trained so"),
        pytest.param("hoards", Start.COLD, Outcome.OOM, "can't allocate memory", marks=THOROUGH),
        ("hoards", Start.WARM, Outcome.OOM, "can't allocate memory"),
        ("does_not_exist", Start.WARM, Outcome.INVALID, "does_not_exist"),
    ],
)
def test_an_ending_is_told_by_its_cause(fleet, study, factory, start, outcome, evidence):
    limits = {
        "hangs": {"timeout_s": 12.0 if start is Start.COLD else 9.0},
        "hoards": {"memory_limit_bytes": 200 * 2**20},
    }
    result = run(fleet, study, spec(factory=factory, start=start, **limits.get(factory, {})))

    assert result.outcome is outcome, (result.evidence, result.evidence_source)
    assert result.start == start
    assert evidence in result.evidence
    if factory == "hangs":
        assert "at faulty_models.py:" in result.evidence
        stacks = study.trial_folder(0) / "ranks" / "01.stacks"
        assert "faulty_models.py" in stacks.read_text(), "the stacks of the hung ranks are kept"
    if factory == "hoards":
        assert 0.5 < result.peak_memory_bytes / (200 * 2**20) <= 1.01


def test_a_cancelled_trial_ends_at_once_and_frees_its_gang(fleet, study):
    trial_spec = spec(factory="hangs")
    handle = fleet.submit(trial_spec, study.write_spec(trial_spec, files(ds_config())))
    waiting = fleet.submit(spec(1), study.write_spec(spec(1), files(ds_config())))
    wait_until(lambda: handle.poll() or processes_of(handle.folder), "it runs")
    assert processes_of(waiting.folder) == []
    waiting.cancel()
    assert waiting.wait().outcome is Outcome.CANCELLED
    handle.cancel()

    assert handle.wait().outcome is Outcome.CANCELLED
    assert processes_of(study.folder) == []
    at_once = fleet.submit(spec(2), study.write_spec(spec(2), files(ds_config())))
    at_once.cancel()
    assert at_once.wait().outcome is Outcome.CANCELLED


@pytest.mark.parametrize("start", [pytest.param(Start.COLD, marks=THOROUGH), Start.WARM])
def test_nothing_outlives_a_killed_coordinator(study, start):
    script = Path(__file__).with_name("lone_coordinator.py")
    coordinator = subprocess.Popen([sys.executable, str(script), str(study.root), start])
    wait_until(lambda: len(processes_of(study.folder)) >= 3, "launcher and two ranks are up")
    listeners = set()
    for process in processes_of(study.folder):
        with contextlib.suppress(psutil.NoSuchProcess):  # imports start short-lived ones
            connections = process.net_connections(kind="tcp")
            listeners |= {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN}
    assert listeners <= {"127.0.0.1", "::ffff:127.0.0.1"}, "listens beyond loopback"
    shared: set[Path] = set()

    def has_shared_memory() -> bool:
        for process in processes_of(study.folder):
            with contextlib.suppress(psutil.NoSuchProcess):
                mapped = (Path(mapped_file.path) for mapped_file in process.memory_maps())
                shared.update(path for path in mapped if path in segments("*"))
        return len(shared) == 2

    wait_until(has_shared_memory, "each rank has a segment")
    started = psutil.Process(coordinator.pid).children(recursive=True)
    agents = {process.pid for process in started}
    seen = captured(ASKS, check=True).stdout
    assert agents & set(map(int, seen.split())), "another process sees its agent"
    assert not agents & set(other_agents()), "to whoever started it, it is none of others"
    os.kill(coordinator.pid, signal.SIGKILL)
    coordinator.wait()
    wait_until(lambda: processes_of(study.folder) == [], "its trial ends with it")
    wait_until(lambda: not any(map(psutil.Process.is_running, started)), "so does a template")
    assert not [path for path in shared if path.exists()], "so does its memory"
