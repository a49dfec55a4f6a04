import dataclasses
from dataclasses import replace

import pytest

from autotune.base.errors import StudyError
from autotune.contract import Outcome
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.record import tried
from autotune.record.study import Study
from autotune.record.tried import RecordedRun, is_tried, never_run, recorded
from autotune.report.knobs_page import tried_on
from tests.record_tried import run_of_study
from tests.report.samples import CONTEXT
from tests.search.scripted import fault, ok
from tests.trials import spec

VERSIONS = {"python": "3.11.2", "deepspeed": "0.19.8"}


def run(accelerator="cpu", ranks=2, nodes=1, **trained):
    return RecordedRun(
        date="2026-11-21",
        accelerator=accelerator,
        device_name="a device",
        ranks=ranks,
        nodes=nodes,
        versions=VERSIONS,
        trained={name.replace("__", "."): values for name, values in trained.items()},
    )


def write_trial(study, knobs, outcome=Outcome.OK, differences=()):
    made = spec(study.next_number(), knobs=knobs)
    folder = study.write_spec(made, {})
    study.write_result(
        folder,
        dataclasses.replace(
            ok(made, 100.0) if outcome.is_measured else fault(made, outcome),
            wall_s=60.0,
            phases_s={"spawn": 50.0, "measured": 2.0},
            differences=list(differences),
            versions=VERSIONS,
            devices=["localhost:0", "localhost:1"],
        ),
    )
    return made


def test_a_choice_is_tried_value_by_value_and_on_its_own_kind_of_hardware():
    runs = [run(zero__stage=[0, 1])]
    assert is_tried(KNOBS["zero.stage"], 1, "cpu", runs)
    assert not is_tried(KNOBS["zero.stage"], 2, "cpu", runs)
    assert not is_tried(KNOBS["zero.stage"], 1, "cuda", runs)


def test_one_size_that_is_not_the_default_stands_for_all():
    bucket = KNOBS["reduce_bucket_size"]
    assert is_tried(bucket, 7, "cpu", [run(reduce_bucket_size=[1000])])
    assert not is_tried(bucket, 7, "cpu", [run(reduce_bucket_size=[bucket.default])])
    assert not is_tried(KNOBS["tp"], 2, "cuda", [run("cuda", ranks=1, tp=[1])])


def test_one_value_of_a_pattern_stands_for_all():
    runs = [run(recompute=["none", "every_2"])]
    assert is_tried(KNOBS["recompute"], "every_4", "cpu", runs)
    assert not is_tried(KNOBS["recompute"], "full", "cpu", runs)


def test_a_warning_names_what_was_not_tried(monkeypatch):
    monkeypatch.setattr(tried, "recorded", lambda _: (run(zero__stage=[0, 3]),))
    settings = {"zero.stage": 3, "zeropp.quantized_weights": True}
    assert tried.warning({"zero.stage": 3}, CONTEXT) == ""
    assert "=true: no run of autotune's own" in tried.warning(settings, CONTEXT)
    on_gpu = tried.warning(settings, replace(CONTEXT, accelerator="cuda"))
    assert on_gpu.startswith("zero.stage=3, zeropp.quantized_weights=true: ")
    assert "on a GPU" in on_gpu


def test_the_page_says_what_is_missing():
    attention = KNOBS["attention"]
    assert tried_on(attention, []) == "**nothing yet**"
    on_cpu = run(attention=["eager", "sdpa"])
    assert tried_on(attention, [on_cpu]) == (
        "2 CPU ranks (eager, sdpa); **never: flash_attention_2, flex_attention**; "
        "**never on a GPU**"
    )
    default = run("cuda", ranks=1, attention=["default"])
    assert tried_on(attention, [default]).endswith("; **on a GPU the default alone**")
    on_gpu = run("cuda", ranks=1, attention=["flash_attention_2", "flex_attention"])
    assert tried_on(attention, [on_cpu, on_gpu]) == (
        "2 CPU ranks (eager, sdpa); 1 GPU (flash_attention_2, flex_attention)"
    )


def test_a_knob_that_acts_nowhere_waits_for_nothing():
    assert never_run(KNOBS["allgather_bucket_size"], []) == []
    assert never_run(KNOBS["offload.super"], []) == [True]


def test_what_needs_a_gpu_is_not_claimed_from_cpu_ranks():
    for record in recorded():
        for name in record.trained.keys() & KNOBS.keys():  # a record outlives a knob
            knob = KNOBS[name]
            for value in record.trained[name]:
                assert knob.check(value, where="record") == value
                assert record.accelerator == "cuda" or value not in knob.needs_cuda
    assert recorded(), "results/recorded/knobs-*.json"


def test_a_study_is_evidence_of_its_measured_trials_alone(tmp_path):
    study = Study(tmp_path, "one")
    study.lock()
    good = write_trial(study, {"zero.stage": 1})
    write_trial(study, {"zero.stage": 2}, outcome=Outcome.OOM)
    write_trial(study, {"zero.stage": 3}, differences=["stage: asked 3, the engine has 0"])
    made = run_of_study(study.folder)
    assert made.trained == {"zero.stage": [1], "micro_batch": [2]}
    assert (made.ranks, made.nodes) == (good.layout.world, 1)


def test_a_folder_without_measured_trials_is_refused(tmp_path):
    with pytest.raises(StudyError, match="no trial there was measured"):
        run_of_study(tmp_path / "none")
