"""The search with the real engine, space and rules; only the fleet is scripted."""

import json

from autotune.contract import Role
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.planning.lattice import build_lattice
from autotune.record.study import Study
from autotune.space.space_file import load_space
from tests.search.scripted import ENVIRONMENT, ScriptedFleet, make, realistic, search


def test_what_is_run_is_legal_and_rendered(study: Study):
    job, fleet = make(space="zero", trials=12), ScriptedFleet(realistic)
    engine = DeepSpeedEngine(job, ENVIRONMENT)
    lattice = build_lattice(load_space("zero", KNOBS), engine)
    result = search(study, job, fleet=fleet, engine=engine, lattice=lattice)
    legal = {candidate.hash for candidate in lattice.candidates}
    assert {spec.identity.candidate_hash for spec in fleet.ran(Role.SEARCH)} <= legal
    for spec in fleet.specs:
        path = study.trial_folder(spec.identity.number) / "config" / "ds_config.json"
        written = json.loads(path.read_text())
        assert written["train_micro_batch_size_per_gpu"] == spec.layout.micro_batch
        assert written["gradient_accumulation_steps"] == spec.layout.grad_accum
        assert (
            spec.layout.micro_batch * spec.layout.grad_accum * spec.layout.dp == job.global_batch
        )
        assert spec.engine.expected["stage"] == spec.identity.knobs["zero.stage"]
    # A rung of the ladder that lies in the space is the same candidate there.
    assert fleet.ran(Role.BASELINE)[0].identity.candidate_hash in legal
    assert result.speedup.ratio > 1


def test_a_users_own_baseline_keeps_the_keys_that_no_knob_knows(study: Study):
    own = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "zero_optimization": {"stage": 1, "round_robin_gradients": True},
    }
    path = study.folder / "mine.json"
    path.write_text(json.dumps(own))
    job = make(space="smoke", trials=2, baseline=str(path))
    engine = DeepSpeedEngine(job, ENVIRONMENT)
    fleet = ScriptedFleet(realistic)
    result = search(
        study,
        job,
        fleet=fleet,
        engine=engine,
        lattice=build_lattice(load_space("smoke", KNOBS), engine),
    )
    assert len(fleet.ran(Role.BASELINE)) == 1
    assert result.baseline is not None
    written = json.loads(result.config_of(result.baseline).read_text())
    assert written["zero_optimization"]["round_robin_gradients"] is True
