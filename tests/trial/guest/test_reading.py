"""Which files a configuration came from, and what a script reads in their place."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from autotune.trial.guest import reading
from autotune.trial.guest.reading import sources_of
from tests.captured import captured

HANDED = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 500},
}


def found_in(folder: Path, monkeypatch: pytest.MonkeyPatch, **texts: str) -> list[dict[str, Any]]:
    """Sources of `HANDED` after files were read; `__` in a name stands for its dot."""
    paths = {str(folder / name.replace("__", ".")): text for name, text in texts.items()}
    for path, text in paths.items():
        Path(path).write_text(text)
    monkeypatch.setattr(reading, "_read", dict.fromkeys(paths))
    found = sources_of(HANDED)
    return [{**one, "file": Path(one["file"]).name} for one in found]


def test_the_section_that_holds_the_most_of_it_is_its_source(tmp_path, monkeypatch):
    mine = {"seed": 2, "eval": {"train_micro_batch_size_per_gpu": 2}, "model": {"ds": HANDED}}
    (one,) = found_in(tmp_path, monkeypatch, mine__json=json.dumps(mine))
    assert (one["file"], one["at"], one["other"]) == ("mine.json", ["model", "ds"], [])
    assert "zero_optimization.stage" in one["same"]
    assert one["is_whole"]


def test_a_value_that_the_code_has_changed_is_none_of_the_file(tmp_path, monkeypatch):
    text = "optimizer: {params: {lr: 1e-5}}\nzero_optimization: {stage: 3}\n"
    (one,) = found_in(tmp_path, monkeypatch, mine__yaml=text)
    assert one["same"] == ["optimizer.params.lr"], "text to YAML 1.1"
    assert one["other"] == ["zero_optimization.stage"]
    assert not one["is_whole"]


def test_what_holds_other_settings_or_no_mapping_is_no_source(tmp_path, monkeypatch):
    model = json.dumps({"layers": 2, "optimizer": {"type": "AdamW"}})
    sources = found_in(
        tmp_path, monkeypatch, model__json=model, list__json="[1, 2]", broken__yaml="a: [\n"
    )
    assert not sources


@pytest.mark.parametrize(
    ("path", "is_read"),
    [("src/app/run.yaml", True), ("lib/python3.12/site-packages/some/run.yaml", False)],
)
def test_a_project_may_lie_below_python_s_own_folder(tmp_path, monkeypatch, path, is_read):
    monkeypatch.setattr(reading.sys, "prefix", str(tmp_path))
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).touch()
    assert reading._is_settings(str(tmp_path / path)) == is_read


TOML = """# ours
day = 1979-05-27
[ds]
zero_optimization.stage = 1  # sharded
names = ["a\\"b", {q = "é"}]
[ds.optimizer.params]
lr = 1e-5
clip = inf
"\U0001f600" = "\\u007f"
[empty]
[x."y z"]
[[data]]
w = 0.5
"""


def test_a_toml_is_copied_with_its_values(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(TOML)
    changes = [(["ds", "zero_optimization", "stage"], 2), (["b", "c"], 1)]
    copied = reading._copy(str(path), changes)
    assert copied is not None
    expected = tomllib.loads(TOML.replace("stage = 1", "stage = 2")) | {"b": {"c": 1}}
    assert tomllib.loads(Path(copied).read_text()) == expected


READS = """
import json, os, sys
from pathlib import Path
from autotune.trial.guest.reading import _READ_ENV, settings_read, stop_watching, watch_reading
ours, theirs, spec, group = sys.argv[1:]
changes = [(["zero_optimization", "stage"], 2), (["a"], None), (["b", "c"], 1)]
watch_reading({ours: changes, group: [(["a"], 2)]}, str(Path(spec).parent))
open(spec).close()
with open(ours) as file:
    by_open = json.load(file)
by_path = json.loads(Path(ours).read_text())
other = json.loads(open(theirs, "rb").read())
open(theirs, "a").close()
stop_watching()
open(ours + ".yaml", "w").write("a: 1")
open(ours + ".yaml").close()
grouped = open(group).read()
handed_on = os.environ[_READ_ENV]
print(json.dumps([by_open, by_path, other, settings_read(), grouped, handed_on]))
"""


def test_a_script_reads_its_files_with_the_edits_and_the_files_stay(tmp_path: Path) -> None:
    ours, untouched = tmp_path / "ours.json", tmp_path / "theirs.json"
    text = json.dumps({"zero_optimization": {"stage": 1}, "a": 3, "mine": [1]})
    ours.write_text(text)
    untouched.write_text('{"kept": true}')
    spec = tmp_path / "trial" / "spec.json"
    spec.parent.mkdir()
    spec.write_text("{}")
    group = tmp_path / "group.yaml"
    group.write_text("# @package _global_\na: 1  # one\n")
    ran = captured(
        [sys.executable, "-c", READS, str(ours), str(untouched), str(spec), str(group)],
        check=True,
        env={
            "TMPDIR": str(tmp_path),
            "PYTHONPATH": ":".join(sys.path),
            reading._READ_ENV: json.dumps(["/read/by/its/launcher.yaml"]),
        },
    )
    by_open, by_path, other, read, grouped, handed_on = json.loads(ran.stdout)
    edited = {"zero_optimization": {"stage": 2}, "mine": [1], "b": {"c": 1}}
    assert by_open == by_path == edited
    assert other == {"kept": True}
    assert ours.read_text() == text
    assert grouped == "# @package _global_\na: 2\n", "Hydra reads that comment"
    assert read[:2] == ["/read/by/its/launcher.yaml", str(ours)]
    assert json.loads(handed_on) == read, "to the processes below"
    assert str(untouched) in read
    assert f"{ours}.yaml" not in read, "after the engine was made"
    assert str(spec) not in read, "the trial's own"
