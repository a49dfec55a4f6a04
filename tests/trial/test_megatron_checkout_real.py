"""Trials of a checkout of Megatron-LM: its own script, unchanged, on two CPU ranks.

The checkout is the folder that the environment variable MEGATRON_PATH names.
"""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.contract import Outcome, Role, TrialResult
from autotune.engines.base import bind_engine
from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.export.door import export_handout, handout_of
from autotune.fleet.reports import read_reports
from autotune.fleet.transports.local import local_fleet
from autotune.job.job import make_job
from autotune.record.study import Study
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from autotune.trial.megatron_log import read_log
from tests.trials import CPU, QUICK

CHECKOUT = os.environ.get("MEGATRON_PATH", "")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not CHECKOUT, reason="MEGATRON_PATH names no checkout of Megatron-LM"),
]

JOB = {
    "engine": "megatron",
    "model": "tiny-llama",
    "seq_len": 64,
    "global_batch": 8,
    "precision": "fp32",
    "megatron_path": CHECKOUT,
}
PLAIN = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | {"micro_batch": 2}


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Iterator[Study]:
    study = Study(tmp_path_factory.mktemp("results"), "checkout")
    study.lock()
    yield study
    study.unlock()


def run(
    study: Study,
    *,
    world: int = 2,
    diagnoses: bool = False,
    model: str = str(JOB["model"]),
    **knobs,
) -> TrialResult:
    """One trial of a layout."""
    job = make_job({**JOB, "model": model, "world": world}, where="test")
    environment = dataclasses.replace(CPU, n_devices=world)
    engine = bind_engine(job, environment)
    candidate = Candidate.of({**PLAIN, **knobs}, world=world, global_batch=8)
    assert not engine.judge(candidate)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study=study.name,
        number=study.next_number(),
        job=job,
        engine=engine,
        environment=environment,
    )
    measure = dataclasses.replace(QUICK, diagnoses=diagnoses, timeout_s=240.0)
    spec = dataclasses.replace(spec, measure=measure)
    folder = study.write_spec(spec, engine.files(candidate))
    fleet = local_fleet(environment, world=world)
    try:
        result = fleet.submit(spec, folder).wait()
    finally:
        fleet.close()
    study.take_result(folder, spec, result)
    assert result.outcome is Outcome.OK, (result.evidence, folder)
    return result


def last_folder(study: Study) -> Path:
    return sorted(study.trials_folder.iterdir())[-1]


def losses(study: Study, **knobs) -> list[float]:
    return run(study, **knobs).losses[:8]


@pytest.fixture(scope="module")
def alone(study) -> list[float]:
    """Losses of the model on one rank: eight steps."""
    return losses(study, world=1)


def test_a_trial_sees_what_it_sees_of_the_built_in_workload(study, alone):
    result = run(study, diagnoses=True, distributed_optimizer=True)
    assert result.losses[:8] == pytest.approx(alone, abs=2e-4)
    assert len(result.step_times_s) >= 6
    assert result.peak_memory_bytes > 4 * 4 * 4_212_992
    assert result.own_log is None or not result.own_log.disagreement
    assert result.own_log.n_steps == len(result.step_times_s) - 1
    assert result.versions["megatron-core"] == release(Path(CHECKOUT))
    assert result.diagnosis.problem == ""
    split = result.diagnosis.split
    assert min(split.forward_s, split.backward_s, split.optimizer_s, split.communication_s) > 0
    assert {"reduce_scatter_tensor", "all_gather_into_tensor"} <= {
        call.name for call in result.diagnosis.collectives
    }
    reports = read_reports(last_folder(study), 2)
    assert reports[0].losses == reports[1].losses


@pytest.mark.parametrize(
    "knobs",
    [
        {"tp": 2},
        {"tp": 2, "sequence_parallel": True, "recompute": "selective"},
        {"pp": 2, "recompute": "full"},
        {"pp": 2, "vp": 2},
    ],
    ids=str,
)
def test_layouts_train_with_the_losses_of_one_rank(study, alone, knobs):
    assert losses(study, **knobs) == pytest.approx(alone, abs=2e-4)


@pytest.mark.parametrize("names_checkout", [True, False], ids=["named", "built-in"])
def test_what_is_handed_out_starts_the_checkout_and_is_soaked(tmp_path, names_checkout):
    path = {} if names_checkout else {"megatron_path": None}
    job = make_job({**JOB, **path, "world": 2}, where="test")
    engine = bind_engine(job, CPU)
    candidate = Candidate.of({**PLAIN, "tp": 2}, world=2, global_batch=8)
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    minor = ".".join(release(Path(CHECKOUT)).split(".")[:2])
    export_handout(handout, tmp_path, to=f"megatron@{minor}")
    environment = {**os.environ, "PYTHON": sys.executable, "TRAIN_ITERS": "2"}
    if names_checkout:
        del environment["MEGATRON_PATH"]  # the export knows it
    done = subprocess.run(
        ["bash", str(tmp_path / "launch.sh")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert [entry.iteration for entry in read_log(done.stdout.splitlines())] == [1, 2]
    soak = ("soak", "--from", str(tmp_path), "--minutes", "0.1", "--json")
    soaked = subprocess.run(
        [sys.executable, "-m", "autotune", *soak],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    # Whether memory grows takes more samples than a slow machine has in six seconds.
    checkpoint = json.loads((tmp_path / "soak.json").read_text())["checkpoint"]
    assert checkpoint["load_s"] > 0, soaked.stdout + soaked.stderr[-3000:]
    assert checkpoint["loss_deviation"] <= checkpoint["loss_tolerance"]


def test_a_word_that_its_parser_does_not_know_is_refused_by_name():
    job = make_job({**JOB, "world": 2, "megatron_arguments": "--no-such-flag 3"}, where="test")
    engine = bind_engine(job, CPU)
    with pytest.raises(JobError, match="unrecognized arguments: --no-such-flag 3"):
        engine.check_here(engine.layouts())


def test_a_command_is_diagnosed_and_its_changes_are_its_own_arguments(tmp_path):
    arguments = (
        "--num-layers 2 --hidden-size 64 --ffn-hidden-size 192 --num-attention-heads 4 "
        "--seq-length 64 --max-position-embeddings 64 --position-embedding-type rope "
        "--normalization RMSNorm --swiglu --disable-bias-linear --lr 1e-3 --train-iters 10 "
        "--untie-embeddings-and-output-weights --micro-batch-size 1 --global-batch-size 8 "
        "--attention-dropout 0 --hidden-dropout 0 --mock-data --tokenizer-type NullTokenizer "
        "--vocab-size 255 --tensor-model-parallel-size 2 --recompute-granularity full "
        "--recompute-method uniform --recompute-num-layers 1"
    )
    done = subprocess.run(
        [
            *(sys.executable, "-m", "autotune", "diagnose", "--json", "--"),
            *("torchrun", "--nproc-per-node", "2", f"{CHECKOUT}/pretrain_gpt.py"),
            *arguments.split(),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["changes"]
    for change in report["changes"]:
        assert change["edits"], change
    edits = {line for change in report["changes"] for line in change["edits"]}
    assert all(line.split()[0] in ("add", "remove", "set") for line in edits)
    assert any("--" in line for line in edits)


def release(checkout: Path) -> str:
    """The release that a checkout says it is."""
    facts: dict[str, object] = {}
    exec((checkout / "megatron/core/package_info.py").read_text(), facts)
    return str(facts["__version__"])


@pytest.mark.parametrize("model", ["tiny-qwen3-moe", "tiny-deepseek-v3", "tiny-gpt-oss"])
def test_a_mixture_trains_on_two_ranks_as_on_one(study, model):
    """Experts on two ranks; DeepSeek's layer that predicts further tokens is read back, too."""
    result = run(study, model=model, ep=2, distributed_optimizer=True)
    alone = losses(study, model=model, world=1)
    assert result.losses[:8] == pytest.approx(alone, abs=1e-5)
    assert result.read_back["n_mtp_layers"] == (model == "tiny-deepseek-v3")
