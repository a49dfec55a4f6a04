"""What is wrong with a job is said with its key, its value and its place."""

from pathlib import Path
from typing import Any

import pytest

from autotune.base.errors import JobError
from autotune.job.job import JobFile, default_study_name, make_job, read_job_file, resolve_paths

SOUND: dict[str, Any] = {"model": "tiny-gpt2", "seq_len": 64, "global_batch": 8, "world": 2}


def complaint(flags: tuple[str, ...] = (), **changes: Any) -> JobError:
    with pytest.raises(JobError) as caught:
        make_job({**SOUND, **changes}, where="job.yaml", flags=flags)
    return caught.value


@pytest.mark.cases("key", "value")
def test_a_size_or_duration_names_its_file(key: str, value: Any) -> None:
    assert complaint(**{key: value}).message.startswith(f"job.yaml: {key}: {value!r} is not")
    flag = f"--{key.replace('_', '-')}"
    assert complaint((key,), **{key: value}).message.startswith(f"{flag}: {value!r} is not")


def test_each_value_is_named_with_its_own_place() -> None:
    error = complaint(("world",), world=0, seed=-1)
    places = [line.partition(":")[0] for line in error.message.splitlines()]
    assert places == ["--world", "job.yaml"]
    assert "lists them" not in error.hint


@pytest.mark.cases("flags", "changes", "message", "hint")
def test_what_is_wrong_is_said_with_its_key(flags, changes, message, hint) -> None:
    error = complaint(tuple(flags), **changes)
    assert error.message.startswith(message)
    assert hint in error.hint


def test_what_is_allowed_is_said_once() -> None:
    error = complaint(("precision",), precision="int8")
    assert f"{error.message} {error.hint}".count("bf16") == 1
    assert "))" not in complaint(("head_room",), head_room=20).hint


def test_a_missing_key_names_its_flag() -> None:
    with pytest.raises(JobError, match="world is missing") as caught:
        make_job({key: SOUND[key] for key in ("model", "seq_len", "global_batch")}, where="x")
    assert "give --world (accelerators of the real run; " in caught.value.hint
    with pytest.raises(JobError, match="'lama-3-8b' is no preset"):
        make_job({"model": "lama-3-8b"}, where="")


@pytest.mark.cases("model", "stem")
def test_the_default_name_of_a_study_may_be_given_as_one(model: str, stem: str) -> None:
    file = JobFile.model_validate({**SOUND, "model": model})
    name = default_study_name(file)
    assert name.startswith(f"{stem}-s64-b8-w2-")
    assert JobFile.model_validate({**SOUND, "study": name}).study == name


def test_paths_in_a_job_are_relative_to_its_folder(tmp_path, monkeypatch) -> None:
    project = tmp_path / "project"
    for name in ("mymodel", "tiny-gpt2"):
        (project / name).mkdir(parents=True)
    for name in ("mine", "zero", "base"):
        (project / name).touch()
    file = project / "job.yaml"
    file.write_text("model: mymodel\nspace: mine\nbase_config: base\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    expected = {"model": "mymodel", "space": "mine", "base_config": "base"}
    assert read_job_file(file) == {k: str(project / v) for k, v in expected.items()}

    # What is shipped comes before what is there; what is not there may be a factory.
    for model, space in (("tiny-gpt2", "zero"), ("pkg.mod:build", "other"), ("", ""), (3, None)):
        keys = {"model": model, "space": space}
        assert resolve_paths(keys, project) == keys


def test_a_job_file_that_is_nested_too_deep_is_refused_before_anything_walks_it(tmp_path) -> None:
    path = tmp_path / "job.yaml"
    params = "{a: " * 300 + "1" + "}" * 300
    path.write_text(f"optimizer: {{type: AdamW, params: {params}}}\n")
    with pytest.raises(JobError, match=r"job\.yaml: .* deeper than 50 levels"):
        read_job_file(path)


@pytest.mark.parametrize(
    ("text", "read"),
    [("010", 10), ("0o20", 16), ("1e3", 1000), ("0x40", 64), ("'64'", 64), ("64.0", 64)],
)
def test_a_number_of_a_job_is_one_of_yaml_1_2(tmp_path: Path, text: str, read: int) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(f"model: tiny-gpt2\nseq_len: {text}\nglobal_batch: 8\nworld: 2\n")
    assert make_job(read_job_file(path), where=str(path)).seq_len == read


@pytest.mark.cases("key", "text", "said")
def test_what_only_yaml_1_1_knows_is_refused(tmp_path, key, text, said) -> None:
    path = tmp_path / "job.yaml"
    sound = "".join(f"{name}: {value}\n" for name, value in SOUND.items() if name != key)
    path.write_text(f"{sound}{key}: {text}\n", encoding="utf-8")
    with pytest.raises(JobError, match=said):
        make_job(read_job_file(path), where=str(path))
