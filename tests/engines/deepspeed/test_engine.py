"""Rendered configurations, against frozen ones."""

import json
from pathlib import Path

import pytest

from autotune.base.errors import RenderError
from autotune.base.nested import look_up
from autotune.base.templates import canonical_json
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from tests import snapshots
from tests.cases import data_beside
from tests.counting import calls_of
from tests.jobs import CPU, canonical_candidate, raw_candidate, tiny_job

DATA = data_beside(__file__)

CASES = DATA["CASES"]


@pytest.mark.parametrize("name", CASES)
def test_rendered_configuration_is_the_golden_one(tmp_path, name):
    knobs, changes = CASES[name]
    job = tiny_job(tmp_path, **changes)
    files = DeepSpeedEngine(job, CPU).files(canonical_candidate(job, **knobs))
    assert set(files) == {"ds_config.json"}
    snapshots.check(f"render/{name}.json", files["ds_config.json"])


def test_the_file_is_what_the_rules_judge(tmp_path):
    job = tiny_job(tmp_path)
    engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, zero__stage=2)
    setup = engine.setup(candidate)
    assert canonical_json(setup.ds_config) == engine.files(candidate)["ds_config.json"]
    assert (setup.world, setup.tp, setup.global_batch, setup.stage) == (2, 1, 8, 2)


def test_the_batch_is_exact_and_left_to_the_reader_under_tp(tmp_path):
    job = tiny_job(tmp_path, world=4)
    engine = DeepSpeedEngine(job, CPU)
    whole = engine.setup(canonical_candidate(job, micro_batch=2)).ds_config
    assert (whole["train_batch_size"], whole["gradient_accumulation_steps"]) == (8, 1)
    split = engine.setup(canonical_candidate(job, micro_batch=2, tp=2)).ds_config
    assert "train_batch_size" not in split
    assert split["gradient_accumulation_steps"] == 2
    assert split["tensor_parallel"] == {"autotp_size": 2}


def test_expected_is_frozen_for_each_rendered_configuration(tmp_path):
    """With TP the parameters of one rank are not known beforehand."""
    found = {}
    for name, (knobs, changes) in CASES.items():
        job = tiny_job(tmp_path, **changes)
        found[name] = DeepSpeedEngine(job, CPU).expected(canonical_candidate(job, **knobs))
    snapshots.check("render/expected.json", json.dumps(found, indent=1, sort_keys=True) + "\n")


def test_a_template_that_ignores_a_knob_is_refused(tmp_path):
    folder = tmp_path / "mine" / "deepspeed"
    folder.mkdir(parents=True)
    (folder / "ds_config.json.j2").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": '
        '{{ grad_accum | tojson }}, "zero_optimization": {"stage": 1, "reduce_bucket_size": 7}}'
    )
    job = tiny_job(tmp_path, templates=str(tmp_path / "mine"))
    engine = DeepSpeedEngine(job, CPU)
    obeyed = {"zero.stage": 1, "micro_batch": 1, "reduce_bucket_size": 7}
    assert engine.setup(raw_candidate(job, obeyed)).stage == 1
    with pytest.raises(RenderError, match="reduce_bucket_size came out as 7 where the knob"):
        engine.setup(raw_candidate(job, {**obeyed, "reduce_bucket_size": 8}))
    with pytest.raises(RenderError, match=r"stage came out as 1 where the knob zero\.stage is 2"):
        engine.setup(raw_candidate(job, {**obeyed, "zero.stage": 2}))


def test_a_template_that_writes_auto_is_refused(tmp_path):
    folder = tmp_path / "mine" / "deepspeed"
    folder.mkdir(parents=True)
    (folder / "ds_config.json.j2").write_text('{"zero_optimization": {"stage": "auto"}}')
    job = tiny_job(tmp_path, templates=str(tmp_path / "mine"))
    with pytest.raises(RenderError, match=r'zero_optimization\.stage is "auto"'):
        DeepSpeedEngine(job, CPU).setup(canonical_candidate(job))


def test_rendering_again_is_little_work(tmp_path):
    job = tiny_job(tmp_path)
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, zero__stage=3)
    engine.setup(candidate)
    assert calls_of(lambda: engine.setup(candidate)) < 4000  # 1,400 today


def test_a_digest_stands_for_all_that_is_rendered_besides_the_candidate(tmp_path):
    base = tmp_path / "base.json"

    def digest(text="", **changes):
        base.write_text(text)
        return DeepSpeedEngine(tiny_job(tmp_path, **changes), CPU).rendering_digest

    plain = digest()
    assert plain
    assert digest(trials=7, seed=5) == plain
    assert digest(optimizer={"type": "SGD", "params": {"lr": 0.5}}) != plain
    assert digest(precision="fp32") != plain
    clipped = digest('{"gradient_clipping": 0.5}', base_config=str(base))
    assert len({plain, clipped, digest('{"gradient_clipping": 0.7}', base_config=str(base))}) == 3
    assert digest(templates=str(tmp_path)) == "", "a template of the user's may read anything"


def base_job(tmp_path: Path, config: dict, **changes):
    file = tmp_path / "base.json"
    file.write_text(json.dumps(config))
    return tiny_job(tmp_path, base_config=str(file), **changes)


@pytest.mark.cases("base", "changes", "knobs", "written", "gives_way")
def test_a_base_lies_under_the_knobs_and_what_gives_way_is_said(
    tmp_path, base, changes, knobs, written, gives_way
):
    job = base_job(tmp_path, base, **changes)
    engine, candidate = DeepSpeedEngine(job, CPU), raw_candidate(job, {"micro_batch": 1, **knobs})
    (text,) = engine.files(candidate).values()
    assert "s3cret" not in text
    assert {key: look_up(json.loads(text), key) for key in written} == written
    told = {key: list(note) for key, note in engine.overridden(candidate).items()}
    assert told == gives_way


def test_the_knobs_of_a_base_are_offered_to_the_space(tmp_path):
    job = base_job(
        tmp_path,
        {"zero_optimization": {"stage": 2, "reduce_bucket_size": 5e3, "prefetch_bucket_size": 7}},
    )
    assert DeepSpeedEngine(job, CPU).context.base == {
        "zero.stage": 2,
        "reduce_bucket_size": 5000,
        "stage3.prefetch_bucket_size": 7,
    }
    assert DeepSpeedEngine(tiny_job(tmp_path), CPU).context.base == {}


def test_auto_is_resolved_or_dropped_and_said(tmp_path):
    job = base_job(tmp_path, DATA["AUTO"])
    engine = DeepSpeedEngine(job, CPU)
    candidate = canonical_candidate(job, zero__stage=2, micro_batch=2, reduce_bucket_size=3000)
    told = {"files": engine.files(candidate), "overridden": engine.overridden(candidate)}
    told["files"] = {name: json.loads(text) for name, text in told["files"].items()}
    snapshots.check("render/auto.json", json.dumps(told, indent=1, sort_keys=True) + "\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not valid JSON"),
        ("[1]", "holds a list, not an object"),
        ('{"a":' * 60 + "1" + "}" * 60, "deeper than 50 levels"),
        ('{"a":' * 100_000, "deeper than 50 levels"),
        ('{"zero_optimization": 3}', "zero_optimization is 3, not a section"),
    ],
)
def test_a_base_that_is_no_configuration_is_refused(tmp_path, text, said):
    (tmp_path / "base.json").write_text(text)
    job = tiny_job(tmp_path, base_config=str(tmp_path / "base.json"))
    with pytest.raises(RenderError) as caught:
        DeepSpeedEngine(job, CPU)
    assert str(tmp_path / "base.json") in caught.value.message
    assert said in caught.value.message


def test_a_base_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(RenderError, match="cannot be read"):
        DeepSpeedEngine(tiny_job(tmp_path, base_config=str(tmp_path / "absent.json")), CPU)


@pytest.mark.cases("knobs", "optimizer", "is_so")
def test_what_compiles_at_its_start_does_not_start_warm(tmp_path, knobs, optimizer, is_so):
    job = tiny_job(tmp_path, optimizer=optimizer)
    ranks = DeepSpeedEngine(job, CPU).ranks(canonical_candidate(job, **knobs))
    assert ranks.may_start_warm is is_so
