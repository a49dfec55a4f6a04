"""A checkout as what a trial trains: what is made of it before anything of it runs."""

import dataclasses
from pathlib import Path

import pytest

from autotune.base.errors import JobError
from autotune.contract import Measure
from autotune.engines.base import bind_engine
from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.job.job import Job, make_job
from autotune.search.trial_spec import Run, make_spec
from autotune.space.candidate import Candidate
from autotune.space.workload import workload_of
from autotune.trial.engines.megatron import as_words
from tests.cases import data_beside
from tests.checkouts import checkout_in
from tests.jobs import A100, CPU

DATA = data_beside(__file__)

JOB = DATA["JOB"]


def job_of(checkout: Path, **keys) -> Job:
    return make_job({**JOB, "megatron_path": checkout, **keys}, where="test")


def candidate_of(**knobs) -> Candidate:
    plain = {name: knob.default for name, knob in LATTICE_KNOBS.items()}
    return Candidate.of({**plain, "micro_batch": 2, **knobs}, world=2, global_batch=8)


@pytest.mark.parametrize(("minor", "vocab"), [(14, "2047"), (17, "2047"), (18, "2048")])
def test_the_vocabulary_is_the_models_whatever_the_release_adds(tmp_path, minor, vocab):
    trained = workload_of(job_of(checkout_in(tmp_path, minor)), candidate_of())
    assert trained.name == "pretrain_gpt"
    assert trained.script == str(tmp_path / "pretrain_gpt.py")
    assert trained.arguments[trained.arguments.index("--vocab-size") + 1] == vocab
    assert "--mock-data" in trained.arguments


def test_an_edited_checkout_is_another_workload(tmp_path):
    job = job_of(checkout_in(tmp_path / "a"))
    other = job_of(checkout_in(tmp_path / "b"))
    (tmp_path / "b/megatron/core/optimizer.py").write_text("step = None\n")
    digests = {workload_of(checked, candidate_of()).digest for checked in (job, other)}
    assert len(digests) == 2


def test_a_trial_runs_the_script_with_the_candidates_arguments(tmp_path):
    job = job_of(checkout_in(tmp_path))
    engine = bind_engine(job, CPU)
    run = Run(candidate=candidate_of(tp=2), role="search")
    spec = make_spec(run, study="s", number=0, job=job, engine=engine, environment=CPU)
    assert spec.measure.start == "cold", "a warm start has another Megatron imported"
    assert spec.engine.environment == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    words = as_words(spec, {"tensor_model_parallel_size": 2, "swiglu": True})
    measure = spec.measure
    steps = measure.warmup_steps + measure.max_steps
    assert words[:3] == ["--tensor-model-parallel-size", "2", "--swiglu"]
    assert words[3] == "--train-iters"
    assert int(words[4]) > steps
    endless = dataclasses.replace(spec, measure=Measure(**{**vars(measure), "max_steps": 2**31}))
    assert int(as_words(endless, {})[1]) < 100_000, "data are indexed for every step"


def test_on_gpus_it_keeps_its_kernels_and_its_workers(tmp_path):
    job = job_of(checkout_in(tmp_path), precision="bf16")
    on_gpu, on_cpu = (
        bind_engine(job, environment).files(candidate_of())["megatron_args.json"]
        for environment in (A100, CPU)
    )
    assert "num_workers" in on_cpu
    assert "num_workers" not in on_gpu
    assert "transformer_impl" not in on_gpu


@pytest.mark.cases("keys", "message")
def test_a_checkout_beside_something_else_is_refused(tmp_path, keys, message):
    with pytest.raises(JobError, match=message):
        job_of(checkout_in(tmp_path), **keys)


def test_a_folder_that_is_no_checkout_is_refused_by_its_name(tmp_path):
    with pytest.raises(JobError, match=f"{tmp_path}: has no pretrain_gpt.py"):
        workload_of(job_of(tmp_path), candidate_of())
    (tmp_path / "pretrain_gpt.py").write_text("")
    with pytest.raises(JobError, match="no checkout of Megatron-LM"):
        workload_of(job_of(tmp_path), candidate_of())


def test_words_of_the_users_own_come_last_and_bring_their_data(tmp_path):
    words = "--data-path '/data/my corpus' --tokenizer-type HuggingFaceTokenizer --lr 3e-4"
    trained = workload_of(job_of(checkout_in(tmp_path), megatron_arguments=words), candidate_of())
    assert trained.arguments[:2] == ["--data-path", "/data/my corpus"]
    assert "--mock-data" not in trained.arguments
    assert "NullTokenizer" not in trained.arguments


@pytest.mark.parametrize("word", ["--micro-batch-size", "--bf16", "--num-layers=4", "--save"])
def test_what_a_candidate_or_the_job_decides_is_no_word_of_the_users(tmp_path, word):
    job = job_of(checkout_in(tmp_path), megatron_arguments=[word, "4"])
    with pytest.raises(JobError, match=f"{word}: that is decided"):
        workload_of(job, candidate_of())


def test_words_without_a_script_are_refused():
    with pytest.raises(JobError, match="no script that takes them"):
        make_job({**JOB, "megatron_arguments": "--lr 1"}, where="test")
