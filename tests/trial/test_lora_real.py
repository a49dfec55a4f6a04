"""LoRA and drawn lengths on real ranks: only adapters are trained, tokens are counted right."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from autotune.contract import Outcome, to_dict
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.fleet.transports.local import local_fleet
from autotune.job.job import Job
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.search.trial_spec import Role, Run, make_spec
from autotune.trial.scripts.lengths import batch_lengths
from tests.driven_ranks import train_cases
from tests.jobs import CPU, canonical_candidate, tiny_job
from tests.trials import QUICK, changed, files

pytestmark = pytest.mark.real

STAGES = (0, 1, 2, 3)
LORA = {"method": "lora", "rank": 4}
FAST = {"type": "AdamW", "params": {"lr": 1e-2}}
SMALL = {"reduce_bucket_size": 10_000, "stage3__prefetch_bucket_size": 10_000}
"""Buckets of the default size reserve gigabytes."""


def make_case(job: Job, stage: int) -> dict[str, Any]:
    engine = DeepSpeedEngine(job, CPU)
    knobs = SMALL if stage == 3 else {"reduce_bucket_size": 10_000} if stage else {}
    candidate = canonical_candidate(job, zero__stage=stage, micro_batch=2, **knobs)
    spec = make_spec(
        Run(candidate=candidate, role=Role.SEARCH),
        study="lora",
        number=stage,
        job=job,
        engine=engine,
        environment=CPU,
    )
    return {"spec": to_dict(spec), "ds_config": dict(engine.setup(candidate).ds_config)}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each stage did, in one set of ranks."""
    folder = tmp_path_factory.mktemp("lora")
    # Made once: to count the adapters a process builds the model.
    job = tiny_job(folder, global_batch=4, finetune=LORA, optimizer=FAST)
    cases = [make_case(job, stage) for stage in STAGES]
    answers = train_cases("tests.trial.lora_driver", cases, folder)
    for rank in itertools.chain(*answers):
        assert "error" not in rank, rank["error"]
    return [first for first, *_ in answers]


def test_only_adapters_are_trained_and_all_of_them(results: list[dict[str, Any]]) -> None:
    for stage, result in zip(STAGES, results, strict=True):
        adapters = [name for name in result["names"] if "lora_" in name]
        assert len(adapters) == 3 * 7 * 2, stage  # layers, linear layers of each, A and B
        assert result["changed"] == adapters, stage
        assert result["losses"][-1] < result["losses"][0], stage


def test_the_engine_has_what_was_counted(results: list[dict[str, Any]]) -> None:
    for stage, result in zip(STAGES, results, strict=True):
        assert result["differences"] == [], stage
        assert result["read_back"]["stage"] == stage
        assert result["read_back"]["n_params_frozen"] > 10 * result["read_back"]["n_params"]


@pytest.mark.thorough
def test_a_trial_of_both_counts_its_tokens(tmp_path: Path) -> None:
    job = tiny_job(
        tmp_path,
        global_batch=8,
        finetune=LORA,
        lengths={"histogram": {4: 0.5, 9: 0.375, 16: 0.125, 13: 0.001}, "pad_to_multiple": 4},
    )
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, zero__stage=3, micro_batch=4, **SMALL)
    study = Study(tmp_path / "results", "lengths")
    study.trials_folder.mkdir(parents=True)
    run = Run(candidate=candidate, role=Role.SEARCH)
    spec = make_spec(run, study="lengths", number=0, job=job, engine=engine, environment=CPU)
    spec = changed(spec, measure=QUICK)
    fleet = local_fleet(CPU, world=2)
    try:
        folder = study.write_spec(spec, files(dict(engine.setup(candidate).ds_config)))
        result = fleet.submit(spec, folder).wait()
        study.write_result(folder, result)
    finally:
        fleet.close()
        study.unlock()

    assert result.outcome is Outcome.OK, (result.evidence, result.evidence_source)
    drawn = batch_lengths(spec.workload.lengths, 8)
    assert sorted(drawn) == [4, 4, 4, 4, 9, 9, 9, 16]
    assert result.tokens_per_step == sum(drawn) == 59
    # Two micro-batches of four: one is 16 wide, the other at least 4 and at most 12.
    assert 4 * (16 + 4) <= result.padded_tokens_per_step <= 4 * (16 + 12)
    assert result.read_back["n_params"] == job.model.shape.n_params
    row = load_table(study.folder).iloc[0]
    assert row["lengths"] == "histogram"
    assert json.loads(row["finetune"])["lora"]["rank"] == 4
    assert row["tokens_per_s"] == pytest.approx(row["samples_per_s"] * 59 / 8)
