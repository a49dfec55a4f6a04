"""The convergence guard on real trials: sums in another order alone, and a lossy setting."""

import dataclasses

import pytest

from autotune.contract import Outcome, Role, Start, TrialSpec
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.fleet.transports.local import local_fleet
from autotune.record.guard import Convergence, guard
from autotune.record.study import Study, Trial
from autotune.search.trial_spec import CONFIRM_MEASURE, Run, make_spec
from tests.jobs import CPU, canonical_candidate, tiny_job

pytestmark = pytest.mark.real

STEPS = 20
MEASURE = dataclasses.replace(CONFIRM_MEASURE, min_steps=18, max_steps=18, timeout_s=240.0)
BUCKET = 20_000
"""Elements; buckets of the default size reserve gigabytes."""


@pytest.fixture(scope="module")
def fleet():
    fleet = local_fleet(CPU, world=2)
    yield fleet
    fleet.close()


def ran(fleet, study: Study, trial_spec: TrialSpec, config: dict[str, str]) -> Trial:
    trial_spec = dataclasses.replace(
        trial_spec,
        measure=dataclasses.replace(MEASURE, start=Start.WARM),
        identity=dataclasses.replace(trial_spec.identity, number=study.next_number()),
    )
    folder = study.write_spec(trial_spec, config)
    result = fleet.submit(trial_spec, folder).wait()
    assert result.outcome is Outcome.OK, result.evidence
    assert len(result.losses) == STEPS
    return Trial(folder=folder, spec=trial_spec, result=result)


def test_rounding_passes_and_a_lossy_setting_that_loses_the_course_fails(fleet, study, tmp_path):
    job = tiny_job(tmp_path, optimizer={"type": "AdamW", "params": {"lr": 1e-3}})
    engine = DeepSpeedEngine(job, CPU)

    def run(confirm_round: int, *, breaks: tuple[str, ...] = (), **knobs) -> Trial:
        candidate = canonical_candidate(job, reduce_bucket_size=BUCKET, **knobs)
        assert tuple(found.rule for found in engine.judge(candidate)) == breaks
        asked = Run(candidate=candidate, role=Role.CONFIRM, confirm_round=confirm_round)
        trial_spec = make_spec(
            asked, study=study.name, number=0, job=job, engine=engine, environment=CPU
        )
        return ran(fleet, study, trial_spec, engine.files(candidate))

    base = [run(n, zero__stage=1, micro_batch=1) for n in range(3)]
    repeats = {tuple(t.result.losses) for t in base}
    assert len(repeats) > 1, "another order of the samples rounds otherwise"
    # `tests/trial/test_split_real.py` has the losses of other stages and of tensor parallelism.
    said = guard([run(0, zero__stage=2, micro_batch=1, precision="bf16")], base, STEPS)
    assert said.verdict is Convergence.PASS, said.why
    assert said.deviation < 0.01 * (said.baseline_losses[0] - said.baseline_losses[-1])
    lossy = run(
        0,
        breaks=("zenflow.weights",),
        zero__stage=2,
        micro_batch=1,
        offload__optimizer="cpu",
        zenflow="sequential",
        zenflow__topk_ratio=0.05,
        zenflow__select_interval=4,
    )
    said = guard([lossy], base, STEPS)
    assert said.verdict is Convergence.FAIL, said.why
    # It updates within a step, and begins with transposed weights.
    assert "already the first losses" in said.why
