"""What trials taught is kept for the next study, and counts for less where things have changed."""

import dataclasses
import inspect
import os
from pathlib import Path

import numpy as np
import pytest

from autotune.app.run import search
from autotune.base.errors import StudyError
from autotune.base.private import KNOWLEDGE_ENV, user_cache
from autotune.cost import knowledge
from autotune.cost.constants import load_constants
from autotune.cost.forecast import SeenErrors, Shot, forecast
from autotune.cost.knowledge import (
    Lesson,
    Situation,
    choose_lessons,
    columns_of,
    default_file,
    keep_lessons,
    read_lessons,
    recall_lessons,
    study_name,
)
from autotune.cost.plans import Plans
from autotune.cost.table import rows_to_plans
from autotune.devices.accelerators import shipped_accelerators
from tests.replay.tables import sweep

HERE = Situation(device="A100", engine="deepspeed 0.19.8", torch="2.13.0", family="llama")


def plans() -> Plans:
    rows = [{name: str(value) for name, value in row.items()} for row in sweep()]
    read = rows_to_plans(rows, shipped_accelerators()).plans
    assert read is not None
    return read


def lessons(study: str = "one", *, ratio: float = 1.5, **changes: str) -> list[Lesson]:
    """A study in which every step took `ratio` times what the model says."""
    its = plans()
    seconds = forecast(its).seconds * ratio
    return [
        Lesson(
            situation=dataclasses.replace(HERE, **changes),
            study=study,
            plan=columns_of(its, row),
            seconds=float(seconds[row]) if row else None,
            peak_bytes=2e9 if row else None,
            is_out_of_memory=not row,
            limit_bytes=80e9,
        )
        for row in range(4)
    ]


def recalled(*kept: Lesson, study: str = "now") -> SeenErrors:
    found = recall_lessons(kept, situation=HERE, study=study, constants=load_constants())
    assert found is not None
    return found


def test_lessons_are_read_as_they_were_kept(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "knowledge.json"
    assert read_lessons(file) == ()
    keep_lessons(file, "one", lessons("one"))
    keep_lessons(file, "two", lessons("two"))
    assert list(read_lessons(file)) == [*lessons("one"), *lessons("two")]


def test_a_study_that_goes_on_replaces_its_lessons(tmp_path: Path) -> None:
    file = tmp_path / "knowledge.json"
    keep_lessons(file, "one", lessons("one"))
    keep_lessons(file, "two", lessons("two"))
    keep_lessons(file, "one", lessons("one")[:1])
    assert [lesson.study for lesson in read_lessons(file)] == ["two"] * 4 + ["one"]


def test_the_oldest_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MOST_KEPT", 6)
    file = tmp_path / "knowledge.json"
    keep_lessons(file, "one", lessons("one"))
    keep_lessons(file, "two", lessons("two"))
    assert [lesson.study for lesson in read_lessons(file)] == ["one"] * 2 + ["two"] * 4


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"schema_version": 2, "lessons": []}', '{"lessons": [{"study": 1}]}']
)
def test_a_file_that_is_no_file_of_lessons_is_left_alone(tmp_path: Path, text: str) -> None:
    file = tmp_path / "knowledge.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(StudyError, match=r"knowledge\.json: "):
        keep_lessons(file, "one", lessons())
    assert file.read_text(encoding="utf-8") == text


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StudyError, match="cannot be written"):
        keep_lessons(tmp_path / "file" / "knowledge.json", "one", lessons())


def test_ratios_are_those_of_the_model_of_today() -> None:
    found = recalled(*lessons(ratio=1.5))
    assert found.times.log_ratio == pytest.approx(np.full(3, np.log(1.5)))
    assert (found.times.study == 1).all()
    assert found.peaks.side.tolist() == [1.0, 0.0, 0.0, 0.0] or found.peaks.side.sum() == 1.0


def test_the_more_has_changed_the_less_a_lesson_counts() -> None:
    same = recalled(*lessons()).times.kinship[0]
    newer = recalled(*lessons(engine="deepspeed 0.17.0")).times.kinship[0]
    other = recalled(*lessons(engine="deepspeed 0.17.0", device="H100")).times.kinship[0]
    assert 1 > same > newer > other > 0


def test_the_lessons_that_are_used_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "MOST_USED", 6)
    kept = [*lessons("strange", device="H100"), *lessons("akin"), *lessons("now")]
    chosen = choose_lessons(kept, situation=HERE, study="now")
    assert [lesson.study for lesson in chosen] == ["strange"] * 2 + ["akin"] * 4
    assert choose_lessons(chosen, situation=HERE, study="now") == chosen
    assert recalled(*kept).n_trials == 6
    own = recall_lessons(lessons("now"), situation=HERE, study="now", constants=load_constants())
    assert own is None


def test_a_study_is_named_without_its_path(tmp_path, monkeypatch):
    name = study_name(tmp_path / "secret-customer")
    assert name.isalnum()
    assert "secret" not in name
    assert name != study_name(tmp_path / "other")
    monkeypatch.chdir(tmp_path)
    assert name == study_name(Path("secret-customer"))


def test_where_all_ran_out_of_memory_that_is_the_lesson() -> None:
    lost = [dataclasses.replace(o, seconds=None, peak_bytes=None) for o in lessons()]
    found = recalled(*(dataclasses.replace(o, is_out_of_memory=True) for o in lost))
    assert len(found.times.log_ratio) == 0
    assert found.peaks.side.tolist() == [1.0] * 4


def test_what_ran_with_its_peak_unread_is_below_the_limit() -> None:
    blind = [dataclasses.replace(o, peak_bytes=None) for o in lessons()[1:]]
    found, predicted = recalled(*blind), forecast(plans()).peak_bytes
    assert found.peaks.side.tolist() == [-1.0] * 3
    assert found.peaks.log_ratio == pytest.approx(np.log(80e9 / predicted[1:4]))


def test_a_peak_bounded_by_no_limit_teaches_nothing() -> None:
    its = dataclasses.replace(forecast(plans()), limit_bytes=None)
    shots = [Shot(seconds=1.0), Shot(is_out_of_memory=True), Shot(seconds=1.0, peak_bytes=2e9)]
    found = its.take(np.arange(3)).errors(shots)
    assert found.peaks.side.tolist() == [0.0]
    assert len(found.times.log_ratio) == 2


def test_a_lesson_of_another_release_of_the_model_is_read_as_far_as_it_goes() -> None:
    first, *others = lessons()
    stranger = dataclasses.replace(first, plan={**first.plan, "no_longer_there": 1.0})
    assert len(recalled(stranger, *others).peaks.log_ratio) == 4
    lacking = dataclasses.replace(first, plan={"n_layers": 12.0})
    found = recall_lessons([lacking], situation=HERE, study="now", constants=load_constants())
    assert found is None


def test_no_test_teaches_the_user_s_cache_and_a_search_only_the_file_that_it_is_given() -> None:
    assert user_cache() not in default_file().parents
    assert inspect.signature(search).parameters["knowledge"].default is None


def test_the_file_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(KNOWLEDGE_ENV)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_file() == tmp_path / "autotune" / "knowledge.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_file() == tmp_path / ".cache" / "autotune" / "knowledge.json"


def test_one_damaged_lesson_does_not_spoil_the_others() -> None:
    sound = lessons("a")[1]
    zeros = dataclasses.replace(sound, study="b", plan=dict.fromkeys(sound.plan, 0.0))
    empty = dataclasses.replace(sound, study="c", plan={})
    found = recalled(sound, zeros, empty)
    assert len(found.times.log_ratio) == 1
    assert np.isfinite(found.times.log_ratio).all()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of others")
def test_lessons_in_a_folder_that_another_has_prepared_are_refused(tmp_path):
    folder = tmp_path / "open" / "cache"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o1777)
    os.chown(folder, 12_345, 12_345)
    with pytest.raises(StudyError, match="belongs to user 12345"):
        keep_lessons(folder / "k.json", "mine", [])
    assert not list(folder.iterdir())


def test_a_lock_that_is_a_link_leads_nowhere(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "k.json.lock").symlink_to(victim)
    with pytest.raises(StudyError, match=r"k\.json\.lock is a link, where a lock belongs"):
        keep_lessons(tmp_path / "k.json", "mine", [])
    assert victim.read_text() == "precious"
