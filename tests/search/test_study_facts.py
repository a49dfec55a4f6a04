"""Where trials ran is told by the trials where `study.json` is lost."""

from dataclasses import replace
from typing import Any

import pytest

from autotune.contract import TrialResult, TrialSpec
from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.record.facts import environment_at
from autotune.record.study import Study
from autotune.search.recorded import Task
from autotune.search.study_facts import environments_of
from tests.search.scripted import ENVIRONMENT, Notebook, ScriptedEngine, make, realistic, search


def task(study: Study, job: Job, environment: Environment = ENVIRONMENT) -> Task:
    return Task(job=job, environment=environment, engine=ScriptedEngine(job), study=study)


def listed(study: Study, notebook: Notebook, **job: Any) -> list[dict[str, Any]]:
    return environments_of(task(study, make(**job)), {}, notebook.on_note)


def test_a_lost_study_json_is_written_anew_for_all_trials(study: Study):
    search(study, make(trials=3))
    sound = study.state_file.read_text()
    study.state_file.write_text(sound[:100])
    notes = Notebook()
    search(study, make(trials=3), observer=notes)
    facts = study.read_state()
    for trial in study.trials():
        assert environment_at(facts, trial.spec.identity.number) == ENVIRONMENT
    assert any("does not say where the trials ran" in note for note in notes.notes)
    again = Notebook()
    search(study, make(trials=3), observer=again)
    assert not any("where the trials ran" in note for note in again.notes), "said once"


def test_a_new_study_has_nothing_to_ask(study: Study):
    notes = Notebook()
    (only,) = listed(study, notes)
    assert only["since_trial"] == 0
    assert notes.notes == []


def test_the_versions_are_those_that_the_trials_report(study: Study):
    def upgraded(spec: TrialSpec) -> TrialResult:
        version = "0.18.0" if spec.identity.number < 2 else ENVIRONMENT.deepspeed_version
        told = {"deepspeed": version, "torch": ENVIRONMENT.torch_version, "python": "3.12"}
        return replace(realistic(spec), versions={} if spec.identity.number == 1 else told)

    search(study, make(trials=3), upgraded)
    found = listed(study, Notebook())
    assert [(e["since_trial"], e["deepspeed_version"]) for e in found] == [
        (0, "0.18.0"),
        (2, ENVIRONMENT.deepspeed_version),
    ]


@pytest.mark.parametrize("devices", ["accelerator", "memory"])
def test_trials_on_other_devices_are_not_taken_for_these(study: Study, devices: str):
    wide: dict[str, Any] = {"memory_limit": None, "head_room": 0.1}
    search(study, make(trials=2, **wide))
    elsewhere = (
        {"accelerator": "cuda"} if devices == "accelerator" else {"device_memory_bytes": 7 * 2**20}
    )
    here = replace(ENVIRONMENT, **elsewhere)
    notes = Notebook()
    found = environments_of(task(study, make(**wide), here), {}, notes.on_note)
    assert found[0] == {"since_trial": 0}
    assert found[1]["since_trial"] == study.next_number()
    assert environment_at({"environments": found}, 0) is None
    assert environment_at({"environments": found}, study.next_number()) == here
