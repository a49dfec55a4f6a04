import json
import multiprocessing
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import contract
from autotune.base.errors import StudyError
from autotune.contract import Outcome, TrialSpec
from autotune.record.study import Study, flags_of, lost_result
from autotune.space.candidate import Candidate
from tests.search.scripted import make, ok
from tests.search.test_sampler import spec_of

FILES = {"ds_config.json": "{}"}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    study = Study(tmp_path, "a")
    study.trials_folder.mkdir(parents=True)
    return study


def a_spec(number: int) -> TrialSpec:
    return spec_of(make(), number, zero__stage=1, micro_batch=2)


def test_what_is_written_is_read(study: Study):
    spec = a_spec(0)
    folder = study.write_spec(spec, FILES)
    assert (folder / "config" / "ds_config.json").read_text() == "{}"
    assert study.trials()[0].result is None
    result = replace(ok(spec, 100.0), loss_first=1.5)
    study.write_result(folder, result)
    trial = study.trials()[0]
    assert (trial.spec, trial.result, trial.problem) == (spec, result, "")


def test_numbers_go_past_four_digits(study: Study):
    for number in (9999, 10000):
        study.write_spec(a_spec(number), FILES)
    assert [trial.spec.identity.number for trial in study.trials()] == [9999, 10000]
    assert study.next_number() == 10001


def test_a_folder_is_never_taken_twice(study: Study):
    study.trial_folder(3).mkdir(parents=True)
    assert study.next_number() == 4
    study.write_spec(a_spec(4), FILES)
    with pytest.raises(StudyError, match="cannot be written"):
        study.write_spec(a_spec(4), FILES)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": "1"}', "\x00\xff", "[" * 99999]
)
def test_a_damaged_spec_is_unreadable_and_a_damaged_result_missing(study: Study, text: str):
    for number in (0, 1):
        folder = study.write_spec(a_spec(number), FILES)
        study.write_result(folder, ok(a_spec(number), 1.0))
    (study.trial_folder(0) / "spec.json").write_text(text)
    (study.trial_folder(1) / "result.json").write_text(text)
    trial = study.trials()[0]
    assert (trial.spec.identity.number, trial.result) == (1, None)
    assert trial.problem
    assert [u.folder for u in study.read().unreadable] == [study.trial_folder(0)]
    assert lost_result(trial).evidence == trial.problem


@pytest.mark.parametrize("value", [" ", True, 2.5, "2"])
def test_a_spec_with_a_knob_of_another_type_is_unreadable(study: Study, value: object):
    folder = study.write_spec(a_spec(0), FILES)
    path = folder / "spec.json"
    data = json.loads(path.read_text())

    def with_knobs(knobs: dict[str, Any]) -> str:
        named = Candidate.of(knobs, world=2, global_batch=16).hash
        identity = data["identity"] | {"knobs": knobs, "candidate_hash": named}
        return json.dumps(data | {"identity": identity})

    path.write_text(with_knobs({"micro_batch": 2, "zero.stage": value}))
    assert study.trials() == ()
    (unreadable,) = study.read().unreadable
    assert "zero.stage" in unreadable.problem
    path.write_text(with_knobs({"micro_batch": 2, "a knob of a later version": value}))
    assert len(study.trials()) == 1


def test_no_study_begins_where_one_was_moved_away(study: Study):
    study.write_spec(a_spec(0), FILES)
    study.folder.rename(study.root / "moved")
    with pytest.raises(StudyError, match="cannot be written"):
        study.write_spec(a_spec(1), FILES)
    assert [path.name for path in study.root.iterdir()] == ["moved"]


def test_a_copied_folder_is_not_a_trial(study: Study):
    study.write_spec(a_spec(0), FILES)
    study.trial_folder(0).rename(study.trial_folder(7))
    assert study.trials() == ()
    assert "trial 0" in study.read().unreadable[0].problem


def test_a_result_of_another_trial_is_not_taken(study: Study):
    folder = study.write_spec(a_spec(0), FILES)
    study.write_result(folder, ok(a_spec(1), 1.0))
    assert study.trials()[0].result is None
    assert "trial 1" in study.trials()[0].problem


@pytest.mark.parametrize("other", [-1, 1])
@pytest.mark.parametrize(
    ("name", "known"),
    [("spec.json", contract.SPEC_SCHEMA_VERSION), ("result.json", contract.SCHEMA_VERSION)],
)
def test_a_record_of_another_schema_is_refused_not_declared_lost(study, name, known, other):
    folder = study.write_spec(a_spec(0), FILES)
    study.write_result(folder, ok(a_spec(0), 1.0))
    data = json.loads((folder / name).read_text())
    data["schema_version"] = known + other
    (folder / name).write_text(json.dumps(data))
    with pytest.raises(
        StudyError, match=f"schema {known + other}, this autotune reads schema {known}"
    ):
        study.trials()


def test_a_damaged_result_is_kept_beside_the_new_one(study: Study):
    folder = study.write_spec(a_spec(0), FILES)
    (folder / "result.json").write_text("{")
    study.write_result(folder, lost_result(study.trials()[0]))
    assert (folder / "result.json.damaged").read_text() == "{"
    trial = study.trials()[0]
    assert trial.result.outcome is Outcome.LOST


def test_a_result_is_written_whole_or_not_at_all(study: Study, monkeypatch: pytest.MonkeyPatch):
    folder = study.write_spec(a_spec(0), FILES)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StudyError, match="No space left on device"):
        study.write_result(folder, ok(a_spec(0), 1.0))
    assert sorted(path.name for path in folder.iterdir()) == ["config", "spec.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_result_that_may_not_be_read_is_not_declared_lost(study: Study):
    folder = study.write_spec(a_spec(0), FILES)
    study.write_result(folder, ok(a_spec(0), 1.0))
    (folder / "result.json").chmod(0)
    with pytest.raises(StudyError, match="cannot be read"):
        study.trials()


def _try_lock(root: Path, answers: "multiprocessing.Queue[str]") -> None:
    try:
        Study(root, "a").lock()
        answers.put("locked")
    except StudyError as error:
        answers.put(error.message)


def ask_another_process(root: Path) -> str:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=_try_lock, args=(root, answers))
    process.start()
    answer = answers.get(timeout=60)
    process.join()
    return answer


def test_a_second_coordinator_is_refused_and_told_who_holds_it(study: Study):
    study.lock()
    assert f"process {os.getpid()}" in ask_another_process(study.root)
    with pytest.raises(StudyError, match="another search"):
        Study(study.root, "a").set_aside()
    study.unlock()
    assert ask_another_process(study.root) == "locked"


def test_a_fresh_start_keeps_the_old_study(tmp_path: Path):
    study = Study(tmp_path, "a")
    assert study.set_aside() is None
    for number in (1, 2):
        study.lock()
        study.write_spec(a_spec(0), FILES)
        study.unlock()
        aside = study.set_aside()
        assert aside == study.root / f"a.old-{number}"
        assert len(Study(study.root, aside.name).trials()) == 1
        assert study.trials() == ()


def test_state_survives_and_a_damaged_one_is_empty(study: Study):
    assert study.read_state() == {}
    study.write_state({"a": 1})
    assert study.read_state() == {"a": 1}
    study.state_file.write_text("{")
    assert study.read_state() == {}


def test_what_is_written_is_as_readable_as_its_neighbours(study: Study):
    before = os.umask(0o027)
    try:
        folder = study.write_spec(a_spec(0), FILES)
        study.write_result(folder, ok(a_spec(0), 1.0))
        study.write_state({})
        for path in (folder / "spec.json", folder / "result.json", study.state_file):
            assert path.stat().st_mode & 0o777 == 0o640, path
        study.state_file.chmod(0o664)
        study.write_state({"a": 1})
        assert study.state_file.stat().st_mode & 0o777 == 0o664, "somebody chose that"
    finally:
        os.umask(before)


def test_what_a_killed_coordinator_was_writing_is_swept_and_nothing_else(study):
    folder = study.write_spec(a_spec(0), {"ds_config.json": "{}"})
    (folder / "ranks").mkdir()
    asides = [
        study.folder / ".study.json.a1b2c3_4",
        folder / ".result.json.abcdefgh",
        folder / "ranks" / ".00.json.abcdefgh",
    ]
    kept = [study.folder / ".hidden", folder / "result.json.damaged", folder / ".probe-abcdefgh"]
    for path in (*asides, *kept):
        path.touch()
    study.sweep()
    assert not any(path.exists() for path in asides)
    assert all(path.exists() for path in kept)
    assert len(study.trials()) == 1


@pytest.mark.parametrize(
    ("said", "holder"),
    [("17", 17), ("17\n", 17), ("", None), ("-1", None), ("\u0663", None), ("9" * 60, None)],
)
def test_the_holder_is_a_process(study: Study, said: str, holder: int | None):
    (study.folder / "lock").write_text(said)
    assert study.holder() == holder


@pytest.mark.cases("name")
def test_a_folder_of_another_name_is_no_trial(study: Study, name: str):
    study.write_spec(a_spec(0), FILES)
    for each in (name, f"\udcff{name}"):
        (study.trials_folder / each).mkdir()
    recorded = study.read()
    assert (len(recorded.trials), recorded.unreadable, study.next_number()) == (1, (), 1)


def test_no_file_of_a_study_tells_a_secret(study):
    token = "hf_" + "Zq7xV2mK9pLw" * 3
    places = {"a": token, "b": [[f"--api-key={token}"]], "c": {"d": {"password": "hunter2"}}}
    folder = study.write_spec(a_spec(0), {"ds_config.json": json.dumps(places)})
    evidence = f"RuntimeError: {json.dumps(places)}"
    study.write_result(folder, replace(ok(a_spec(0), 1.0), evidence=evidence))
    study.write_state({"said": places})
    told = {path.name: path.read_text() for path in study.folder.rglob("*.json")}
    assert told.keys() >= {"ds_config.json", "spec.json", "result.json", "study.json"}
    assert not [name for name, text in told.items() if token in text or "hunter2" in text]


def test_a_lock_that_is_a_link_leads_nowhere(study):
    (study.folder / "lock").symlink_to(study.folder / "elsewhere")
    with pytest.raises(StudyError, match="lock is a link, where a lock belongs") as caught:
        study.lock()
    assert caught.value.hint
    assert not (study.folder / "elsewhere").exists()


def test_a_lock_is_not_truncated_before_it_is_held(study: Study):
    study.lock()
    (study.folder / "lock").write_text("somebody")
    with pytest.raises(StudyError, match="process unknown"):
        Study(study.root, "a").lock()
    assert (study.folder / "lock").read_text() == "somebody"
    study.unlock()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
@pytest.mark.parametrize("prepared", ["a", "a/trials"])
def test_a_study_that_another_user_prepared_is_refused_with_its_owner(tmp_path: Path, prepared):
    root = tmp_path / "results"
    (root / "a" / "trials").mkdir(parents=True)
    (root / prepared).parent.chmod(0o1777)
    os.chown(root / prepared, 12_345, 12_345)
    with pytest.raises(StudyError, match=r"belongs to user 12345.*") as caught:
        Study(root, "a").lock()
    assert "--results" in caught.value.hint
    assert not (root / "a" / "lock").exists()


def test_a_study_outside_the_default_folder_is_found_by_its_flags() -> None:
    assert flags_of(Path("results/night")) == "--study night"
    assert flags_of(Path("/data/my runs/night")) == "--study night --results '/data/my runs'"
