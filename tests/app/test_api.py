"""The Python API: the words of the flags, values that show themselves, errors instead of exits."""

import inspect
import json
import pydoc
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import autotune
from autotune.app.api.calls import arguments_of
from autotune.base.errors import AutotuneError, JobError, StudyError
from autotune.cli import cli
from autotune.job import job
from autotune.job.keys import Topic
from autotune.search.base import Snapshot, Stage
from tests import record_job_keys

JOB = {"model": "tiny-llama", "seq_len": 64, "global_batch": 8, "world": 2, "space": "smoke"}
COMMANDS: Any = typer.main.get_group(cli).commands
NOT_FLAGS = {"flags", "progress", "note", "ask", "agree"}
RENAMED = {"with_ladder": "ladder"}
GATE = {"against", "within", "rounds", "fleet", "fleet_option", "trust_job"}
"""Flags of `compare` that `autotune.gate` takes, beside the folder of studies."""
NOT_OURS = {
    "search": {"dry_run", "yes"},
    "plan": {"export", "rank", "to", "launcher", "html"},
    "explain": set(),
    "estimate": {"rows", "out"},
    "check": {"quiet", "form"},
    "compare": {"as_csv", "html", "as_markdown", *GATE},
}
"""Flags that the functions do not take: questions, what methods or pandas do, and a gate."""


def test_importing_the_package_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, autotune; "
        "heavy = {'torch', 'optuna', 'pandas', 'plotly', 'pydantic', 'rich', 'typer'}; "
        "sys.exit(bool(heavy & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("name", ["check", "plan", "search"])
def test_help_shows_the_function_and_what_its_flags_are(name: str) -> None:
    shown = pydoc.render_doc(getattr(autotune, name), renderer=pydoc.plaintext)
    assert f"function {name}" in shown
    assert "PACKAGE CONTENTS" not in shown
    assert "Args:" in shown
    assert ("    seq_len: int" in shown) == (name != "check")


def test_help_of_the_package_shows_its_functions() -> None:
    shown = pydoc.render_doc(autotune, renderer=pydoc.plaintext)
    listed = shown.partition("DESCRIPTION")[2].partition("PACKAGE CONTENTS")[0]
    for name in autotune.__all__:
        sentence = str(getattr(autotune, name).__doc__).splitlines()[0]
        assert f"\n    {name}: {sentence}\n" in listed
        assert f"\n    {name}(" in shown.partition("FUNCTIONS")[2]


def test_a_caller_catches_errors_by_the_package() -> None:
    with pytest.raises(autotune.AutotuneError) as caught:
        autotune.load("results/none")
    assert isinstance(caught.value, autotune.StudyError)
    assert {"AutotuneError", "FleetError"} <= {*dir(autotune)}


@pytest.mark.cases("code")
def test_a_room_of_a_functions_name_is_imported_as_ever(code: str) -> None:
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", NOT_OURS)
def test_the_words_are_those_of_the_flags(name: str) -> None:
    function = inspect.unwrap(autotune._function(name))
    arguments = {*inspect.signature(function).parameters, *dict(arguments_of(function))}
    params = COMMANDS[name].get_params(typer.Context(COMMANDS[name]))
    typed = {param.name for param in params} - {"help", "as_json", "debug"}
    typed = {RENAMED.get(flag, flag) for flag in typed}
    assert arguments - NOT_FLAGS == typed - NOT_OURS[name]
    gate = inspect.signature(inspect.unwrap(autotune.gate)).parameters.keys()
    assert gate - NOT_FLAGS == GATE | {"results"}


def test_the_written_files_have_the_declared_keys() -> None:
    """Run `python -m tests.record_job_keys` after a change of a key."""
    assert record_job_keys.STUB.read_text(encoding="utf-8") == record_job_keys.stub()
    text = record_job_keys.PAGE.read_text(encoding="utf-8")
    assert text == record_job_keys.page(text)
    assert job.keys_of("estimate") == job.keys_of("explain"), "one type is for both"


class WithToy(job.JobFile):
    """A job with one more key."""

    toy_share: float = job.key("Share of toys.", Topic.SEARCH, job.EVERY, default=0.5, ge=0, le=1)


def test_a_key_that_is_declared_once_is_at_every_border(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "JobFile", WithToy)
    sound = {**JOB, "toy_share": 0.25}
    assert job.make_job(sound, where="job.yaml").world == 2
    for command in ("search", "plan", "explain", "estimate", "render"):
        shown = CliRunner().invoke(cli, [command, "--help"]).output
        section = shown.partition("\nSearch:\n")[2].partition("\n\n")[0]
        assert re.search(r"--toy-share <float> +Share of toys\.", section)
    monkeypatch.setattr(autotune, "_called", {})
    assert "    toy_share: float. Share of toys. [default: 0.5]\n" in f"{autotune.plan.__doc__}\n"
    assert autotune.plan(**sound, gpu="H100").best
    assert record_job_keys.stub().count("    toy_share: float\n") == 1
    row = "| `toy_share` | number from 0 to 1 | 0.5 | Share of toys. |"
    assert row in record_job_keys.page(record_job_keys.PAGE.read_text(encoding="utf-8"))
    for spelled, call in (
        ("job.yaml: toy_share: 2 ", partial(job.make_job, where="job.yaml")),
        ("--toy-share: 2 ", partial(job.make_job, where="")),
        ("toy_share: 2 ", lambda keys: autotune.plan(**keys)),
    ):
        with pytest.raises(JobError) as caught:
            call({**sound, "toy_share": 2})
        assert str(caught.value).startswith(spelled)
        word = spelled.split()[-2].rstrip(":")
        assert f"give {word} (share of toys) a number from 0 to 1" in caught.value.hint


@pytest.mark.cases("changed", "said")
def test_an_error_names_the_argument_and_no_flag(changed: dict[str, object], said: str) -> None:
    given: dict[str, Any] = {**JOB, **changed}
    given = {name: value for name, value in given.items() if value is not None}
    with pytest.raises(JobError) as caught:
        autotune.plan(**given)
    assert said in str(caught.value)
    assert "--" not in str(caught.value)
    assert "command line" not in str(caught.value)


@pytest.mark.cases("changed", "message")
def test_a_search_names_its_arguments_and_no_flag(tmp_path, changed, message):
    with pytest.raises(AutotuneError) as caught:
        autotune.search(**JOB, results=tmp_path, **changed)
    assert message in str(caught.value)
    assert "--" not in str(caught.value)


def test_a_search_returns_a_value_and_tells_how_it_goes(tmp_path, capsys):
    seen: list[Snapshot] = []
    found = autotune.search(
        **JOB, trials=2, fleet="simulate:2xH100", results=tmp_path, study="s", no_knowledge=True,
        progress=seen.append,
    )  # fmt: skip
    assert seen[-1].stage is Stage.DONE
    assert found.folder == tmp_path / "s"
    assert found.best is not None
    assert sum(found.as_dict()["counts"].values()) == len(found.table)
    assert "change of the baseline" in str(found)
    assert found._repr_html_().startswith("<pre")
    assert len(autotune.load("s", results=tmp_path)) == len(found.table)
    with pytest.raises(StudyError, match="at least two"):
        autotune.compare("s", results=tmp_path)
    other: dict[str, Any] = {**JOB, "seq_len": 32}
    assert capsys.readouterr().err == ""
    autotune.search(
        **other, trials=2, fleet="simulate:2xH100", results=tmp_path, study="t", no_knowledge=True,
        progress=True,
    )  # fmt: skip
    assert "trial 0 started: " in capsys.readouterr().err
    both = str(autotune.compare(["s", "t"], results=tmp_path))
    assert "warning: seq_len differs (s 64, t 32): samples/s are not of the same work" in both


def test_a_search_runs_in_a_thread(tmp_path: Path) -> None:
    call = partial(autotune.search, **JOB, trials=1, fleet="simulate:2xH100", no_knowledge=True)
    with ThreadPoolExecutor() as pool:
        assert pool.submit(call, results=tmp_path).result().best is not None


def test_predictions_are_values(tmp_path: Path) -> None:
    ranked = autotune.plan(**JOB, gpu="H100", top=2, what_if="gpu=H200")
    assert len(ranked.as_dict()["candidates"]) == len(ranked.table) == 2
    assert ranked.table["rank"].tolist() == [1, 2]
    assert [variant.flags for variant in ranked.value.variants] == ["gpu=H200"]
    assert tmp_path / "out" / "ds_config.json" in ranked.export(tmp_path / "out")
    assert "zero.stage" in str(autotune.explain("zero.stage=1", **JOB, gpu="H100"))
    first = autotune.estimate(ranked.best, **JOB, gpu="H100")
    assert first.knobs == ranked.best
    assert first.is_legal
    assert first.step_time_s == pytest.approx(ranked.table["pred_step_time_s"][0])
    assert first.samples_per_s == pytest.approx(8 / first.step_time_s)


def test_rows_of_a_frame_are_predicted() -> None:
    run = {
        "n_layers": 32,
        "hidden": 4096,
        "n_heads": 32,
        "seq_len": 4096,
        "n_gpus": 8,
        "global_batch": 64,
        "micro_batch": 1,
    }
    rows = pd.DataFrame(
        [{**run, "gpu_type": "H100", "vocab": 32000}, {**run, "gpu_type": "Foo"}], index=[10, 20]
    )
    found = autotune.estimate_rows(rows)
    assert found["gpu_type"].to_dict() == {10: "H100", 20: "Foo"}
    assert found["pred_step_time_s"].gt(0).to_dict() == {10: True, 20: False}
    assert found["reason"][10] == ""
    assert "Foo" in found["reason"][20]


def test_a_check_is_a_value(tmp_path: Path) -> None:
    file = tmp_path / "ds_config.json"
    config = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_com": True}}
    file.write_text(json.dumps(config))
    of_file, of_dict = autotune.check(file, world=2), autotune.check(config, world=2)
    for found in (of_file, of_dict):
        assert not found.passes
        assert [each["rule"] for each in found.findings] == ["schema.unknown_key"]
        assert json.loads(found.fixed[0])["zero_optimization"]["overlap_comm"]
    assert autotune.check(file, world=2, fix=True).passes
    assert "overlap_comm" in file.read_text()
    said = str(autotune.check(tmp_path / "nope.json")).lower()
    assert "no such file" in " ".join(said.split())
    for ignored in ("schema.*", ["schema.*"]):
        assert autotune.check(config, world=2, ignore=ignored).passes
    with pytest.raises(JobError, match="no file that a fix"):
        autotune.check(config, fix=True)


def test_a_check_names_the_arguments_of_a_call(tmp_path: Path) -> None:
    sizes = {"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}
    shown = " ".join(str(autotune.check(sizes, **world)) for world in ({}, {"world": 2}))
    assert "(world)" in shown
    assert "choose='batch.product=1'" in shown
    file = tmp_path / "ds_config.json"
    file.write_text(json.dumps({"train_micro_batch_size_per_gpu": "2"}))
    shown += str(autotune.check(file))
    assert "(fix=True writes it)" in shown
    assert "--" not in shown.replace("\n---", "")


def test_what_is_wrong_is_raised() -> None:
    with pytest.raises(JobError, match="such argument"):
        autotune.search(**JOB, trails=3)
    with pytest.raises(JobError, match="for each of deepspeed and megatron"):
        autotune.search(**JOB, engine="both", fleet="simulate:2xH100")
    with pytest.raises(JobError, match="no option 'colour'"):
        autotune.search(**JOB, fleet_option="colour=red")
    with pytest.raises(JobError, match="with a unit"):
        autotune.search(**JOB, budget="20")
    with pytest.raises(AttributeError, match="serach"):
        autotune.serach  # noqa: B018
