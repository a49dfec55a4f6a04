"""Where trials ran is known where `study.json` is lost."""

from autotune.record.study import Study
from tests.search.scripted import ENVIRONMENT, Notebook, make, search


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
