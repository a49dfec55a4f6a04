"""A damaged study.json: table, status, report and export answer, or say what is damaged."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.app.exports import _environment, find_chosen
from autotune.app.studies import state_of
from autotune.base.errors import AutotuneError, StudyError
from autotune.record.answer import answer_of
from autotune.record.facts import Facts
from autotune.record.study import Study
from autotune.record.table import load_table
from autotune.report.story import read_story
from tests.report.test_terminal import finished, shown

WRONG: tuple[Any, ...] = (None, 7, "text", [], [3], {}, {"name": 3}, True, [[{}]])


def places(data: Any) -> Iterator[tuple[str | int, ...]]:
    """Every path into a JSON value, two levels below a key of the top."""
    if isinstance(data, (dict, list)):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        for key, value in items:
            yield (key,)
            yield from ((key, *rest) for rest in places(value) if len(rest) < 4)


def damaged(facts: Any, place: tuple[str | int, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(facts))
    inner = copy
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return copy


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return finished(tmp_path_factory.mktemp("damaged"))


def test_sound_facts_are_read(study: Study) -> None:
    facts = study.facts()
    assert None not in (facts.model, facts.environment, facts.context)
    assert facts.environment_at(0) == facts.environment
    told = json.loads(json.dumps(answer_of(study).to_dict()))
    assert told == study.read_state()["answer"], "from the loop to the disk and back"
    assert (told["study"], told["proven_gain"]) == (study.name, True)
    assert told["handed_out"] == told["best"]["trial"] != told["baseline"]["trial"]
    assert sum(told["counts"].values()) == len(study.trials())
    assert "Unfinished" not in shown(read_story(study))


def test_no_damage_ends_in_a_traceback(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = study.read_state()
    tops = [(key,) for key in sound]
    # `tests/chaos/test_fuzz.py` breaks it at any place.
    deep = [place for place in places(sound) if len(place) > 1][::14]
    cases = [*itertools.product(tops, (7, [3], ...)), *zip(deep, itertools.cycle((*WRONG, ...)))]
    recorded = study.read()
    trials = recorded.trials
    monkeypatch.setattr(Study, "read", lambda _: recorded)
    for place, value in cases:
        if place == ("context", "engine"):
            continue  # a name of no engine here may be one that is not installed: it is named
        facts = damaged(sound, place, value)
        monkeypatch.setattr(Study, "read_state", lambda _, facts=facts: facts)
        assert len(load_table(study.folder)) == len(trials), (place, value)
        state = state_of(study)
        assert state.n_trials + state.n_left_out == len(trials)
        with contextlib.suppress(AutotuneError):
            _environment(Facts.of(facts), 0)
        with contextlib.suppress(AutotuneError):
            shown(read_story(study))


def test_a_file_that_is_damaged_all_over_is_named(study: Study, tmp_path: Path) -> None:
    other = Study(tmp_path, "other")
    other.folder.mkdir()
    other.state_file.write_text('{"answer": [], "context": 3}', encoding="utf-8")
    with pytest.raises(AutotuneError, match=r"study\.json: missing, damaged"):
        read_story(other)
    assert state_of(other).stop_reason is None


@pytest.mark.parametrize("name", ["spec.json", "result.json"])
def test_a_field_of_another_type_is_damage(name: str, tmp_path: Path) -> None:
    study = finished(tmp_path, trials=1)
    path = study.trial_folder(0) / name
    sound = json.loads(path.read_text(encoding="utf-8"))
    n_trials = len(study.trials())

    def is_damage(key: str, value: Any) -> bool:
        path.write_text(json.dumps({**sound, key: value}), encoding="utf-8")
        read = study.read()
        return bool(read.unreadable) or any(trial.problem for trial in read.trials)

    for key in sound:
        values = ({"name": [3]}, [7], "0", None, 0.5, True)
        assert any(is_damage(key, value) for value in values), f"{key} takes anything"
    for key, value in (("number", "0"), ("candidate_hash", 7), ("role", {}), ("step_time_s", "x")):
        if key in sound:
            path.write_text(json.dumps({**sound, key: value}), encoding="utf-8")
            assert f"{key}: " in load_table(study.folder)["problem"][0]
            assert len(load_table(study.folder)) == n_trials
            state_of(study)
            shown(read_story(study))


def test_a_best_whose_record_is_gone_or_damaged_is_said(tmp_path: Path) -> None:
    study = finished(tmp_path)
    best = read_story(study).best_trial
    assert best is not None
    spec = study.trial_folder(best) / "spec.json"
    spec.write_text("{")
    report = read_story(study)
    assert set(report.damaged) == {best}
    text = " ".join(shown(report).split())
    assert f"damaged trial {best}: " in text
    assert f"the record of trial {best} is gone: search again for the best" in text
    assert "autotune export" not in text  # it would be refused
    with pytest.raises(StudyError, match=f"no trial {best}, or its record is damaged"):
        find_chosen(study, trial=None)


def test_where_nobody_knows_where_a_trial_ran_a_new_study_is_offered(study: Study) -> None:
    facts = study.read_state()
    with pytest.raises(StudyError, match="run the same search again"):
        _environment(Facts(), 0)
    with pytest.raises(StudyError, match="--fresh"):
        _environment(Facts.of({**facts, "environments": [{"since_trial": 0}]}), 0)
