"""Where trials ran is known where `study.json` is lost."""

from typing import Any

from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.record.study import Study
from autotune.search.session import RecordedPlace, Session
from autotune.search.study_facts import environments_of
from tests.search.scripted import ENVIRONMENT, Notebook, ScriptedEngine, make, search


def task(study: Study, job: Job, environment: Environment = ENVIRONMENT) -> Session:
    place = RecordedPlace(environment, {})
    return Session(job=job, place=place, engine=ScriptedEngine(job), study=study)


def listed(study: Study, notebook: Notebook, **job: Any) -> list[dict[str, Any]]:
    return environments_of(task(study, make(**job)), notebook.on_note)


def test_a_lost_study_json_is_written_anew_for_all_trials(study: Study):
    search(study, make(trials=3))
    sound = study.state_file.read_text()
    study.state_file.write_text(sound[:100])
    notes = Notebook()
    search(study, make(trials=3), observer=notes)
    facts = study.facts()
    for trial in study.trials():
        assert facts.environment_at(trial.spec.identity.number) == ENVIRONMENT
    assert any("does not say where the trials ran" in note for note in notes.notes)
    again = Notebook()
    search(study, make(trials=3), observer=again)
    assert not any("where the trials ran" in note for note in again.notes), "said once"


def test_a_new_study_has_nothing_to_ask(study: Study):
    notes = Notebook()
    (only,) = listed(study, notes)
    assert only["since_trial"] == 0
    assert notes.notes == []
