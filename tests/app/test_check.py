"""`check` from the command line: exit codes, what is written, what is printed."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from autotune.app.check import CheckFlags, check_file, check_files, write_fix
from autotune.base.errors import RenderError
from autotune.check.lint import CheckExit
from tests.captured import captured
from tests.check.files import AUTO, rules, write
from tests.command_line import autotune

WARNED = AUTO | {"wall_clock_breakdow": False, "_own": {"b": 1, "a": [1, 2]}}
REFUSED = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 2, "overlap_com": True},
}


def report_of(path: Path, *, accelerator: str | None = None):
    (report,) = check_file(path, CheckFlags(accelerator=accelerator, deepspeed_version="0.19.8"))
    return report


def test_an_export_is_judged_for_what_it_was_made_for(tmp_path):
    lion = {"train_batch_size": 2, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}
    path = write(tmp_path, lion)
    assert "optimizer.needs_cuda" not in rules(report_of(path))
    write(tmp_path, {"accelerator": "cpu"}, "settings.json")
    assert "optimizer.needs_cuda" in rules(report_of(path))
    assert "optimizer.needs_cuda" not in rules(report_of(path, accelerator="cuda"))
    write(tmp_path, {"accelerator": ["cpu"]}, "settings.json")
    assert "optimizer.needs_cuda" not in rules(report_of(path)), "somebody else's settings"


def test_standard_input_and_formats(tmp_path):
    done = captured(
        [sys.executable, "-m", "autotune", "check", "-", "--format", "github"],
        cwd=tmp_path,
        input=json.dumps(REFUSED, indent=2),
        timeout=120,
    )
    assert done.returncode == CheckExit.FAILS
    assert done.stdout.startswith("::error file=-,line=5,col=5,title=schema.unknown_key::")
    path = write(tmp_path, REFUSED)
    done = autotune("check", path.name, "--format", "sarif", folder=tmp_path)
    assert json.loads(done.stdout)["runs"][0]["results"][0]["ruleId"] == "schema.unknown_key"
    write(tmp_path, REFUSED, "other.json")
    answer = json.loads(autotune("check", ".", "--json", folder=tmp_path).stdout)
    assert [one["file"] for one in answer] == ["ds_config.json", "other.json"]


def test_a_fix_keeps_what_it_does_not_change(tmp_path):
    path = write(tmp_path, WARNED)
    path.chmod(0o640)
    before = path.read_text(encoding="utf-8")
    write_fix(report_of(path))
    assert path.read_text(encoding="utf-8") == before.replace("_breakdow", "_breakdown")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == [path.name]


def test_a_link_stays_one(tmp_path):
    path = write(tmp_path, WARNED)
    (tmp_path / "link.json").symlink_to(path.name)
    write_fix(report_of(tmp_path / "link.json"))
    assert (tmp_path / "link.json").is_symlink()
    assert json.loads(path.read_text(encoding="utf-8"))["wall_clock_breakdown"] is False


def test_a_fix_that_cannot_be_written_leaves_the_file(tmp_path, monkeypatch):
    path = write(tmp_path, WARNED)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RenderError, match="No space left"):
        write_fix(report_of(path))
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_nothing_to_fix_writes_nothing(tmp_path):
    path = write(tmp_path, AUTO)
    before = path.stat().st_mtime_ns
    write_fix(report_of(path))
    assert path.stat().st_mtime_ns == before


@pytest.mark.parametrize("has_fp16", [True, False])
def test_fp16_on_this_machines_processor(tmp_path, monkeypatch, has_fp16):
    monkeypatch.setattr("autotune.devices.hardware.cpu_has_fp16", lambda: has_fp16)
    path = write(tmp_path, {"train_batch_size": 1, "fp16": {"enabled": True}})
    found = {where: rules(report_of(path, accelerator=where)) for where in ("cpu", "cuda")}
    assert found == {"cpu": [] if has_fp16 else ["precision.unsupported"], "cuda": []}


@pytest.mark.cases("files", "steps")
def test_what_of_some_files_is_judged(tmp_path, files, steps):
    """Each step: which are named, or the folder, and with which flags."""
    for step in ({"files": files}, *steps):
        for name, content in step.get("files", {}).items():
            write(tmp_path, content, name)
        if "found" not in step:
            continue
        names = [str(tmp_path / name) for name in step.get("given", [""])]
        does_fix = step.get("fix", False)
        run = check_files(names, CheckFlags(**step.get("flags", {})), fix=does_fix)
        assert found_in(run, fixed=does_fix) == step["found"]
        assert run.exit_code(fixed=does_fix, strict=False) == step["code"]
        told = " ".join(one.error.message for one in (*run.unread, *run.not_followed))
        told += " ".join(f.violation.message for one in run.reports for f in one.found)
        assert all(words in told for words in step.get("says", []))
        for name, text in step.get("left", {}).items():
            assert (tmp_path / name).read_text() == text


def found_in(run, *, fixed):
    """What became of each file, with the world and what is wrong where it was judged."""
    found = {}
    for one in run.reports:
        wrong = [f"{f.place.line}:{f.place.column} {f.violation.rule}" for f in one.found]
        is_written = ["written"] if one.is_written(fixed=fixed) else []
        found.setdefault(one.source.path.name, []).append([one.world, *wrong, *is_written])
    for fate in ("others", "unread", "not_followed"):
        for one in getattr(run, fate):
            found[getattr(one, "path", one).name] = fate
    return found


def test_a_large_file_of_data_in_a_folder_is_no_configuration(tmp_path):
    write(tmp_path, '{"zero_optimization": "' + "x" * (5 * 2**20) + '"}', "large.json")
    run = check_files([str(tmp_path)], CheckFlags())
    assert ([path.name for path in run.others], run.unread) == (["large.json"], [])


def test_a_file_that_cannot_be_read_is_listed_with_the_others(tmp_path):
    good = write(tmp_path, {"train_batch_size": 2, "zero_optimization": {"stage": 1}})
    bad = write(tmp_path, "{", "broken.json")
    done = autotune("check", str(good), str(bad), "--format", "json", folder=tmp_path)
    first, last = json.loads(done.stdout)
    assert first["file"] == str(good)
    assert last["file"] == str(bad)
    assert "not valid JSON" in last["error"]
    assert last["fix"]
    assert done.returncode == CheckExit.UNREADABLE


_TUNED = ("--model", "gpt2", "--seq-len", "1024", "--gpu", "H100", "--world", "16")
_NOT_READ = ("README.md", "autotune_export.json", "prediction.json", "settings.json", "hostfile")
_NOT_CONFIGURATIONS = (".py", ".md")


@pytest.mark.cases("engine", "target", "launcher")
def test_every_file_of_an_export_is_judged(tmp_path, engine, target, launcher):
    chosen = [
        "--set",
        "micro_batch=4",
        "--set",
        "tp=2" if engine == "megatron" else "zero.stage=3",
    ]
    done = autotune(
        *("render", *_TUNED, "--per-node", "8", "--global-batch", "128", "--engine", engine),
        *(
            "--to",
            target,
            *(("--launcher", launcher) if launcher else ()),
            "--out",
            "out",
            *chosen,
        ),
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    files = [
        one
        for one in (tmp_path / "out").iterdir()
        if one.is_file() and one.name not in _NOT_READ and one.suffix not in _NOT_CONFIGURATIONS
    ]
    for one in files:
        run = check_files([str(one)], CheckFlags())
        assert not run.unread, run.unread[0]
        assert run.exit_code(fixed=False, strict=True) == CheckExit.PASSES, one
    assert check_files([str(tmp_path / "out")], CheckFlags()).reports


def test_degrees_alone_are_no_whole_training(tmp_path):
    degrees = {"tensor_model_parallel_size": 2}
    whole = {}
    for name, data in {
        "metadata.json": degrees,
        "megatron_args.json": degrees,
        "layout.json": degrees | {"num_layers": 2},
    }.items():
        write(tmp_path, data, name)
        (report,) = check_files([str(tmp_path / name)], CheckFlags()).reports
        whole[name] = any("--micro-batch-size" in one.violation.message for one in report.found)
    assert whole == {"metadata.json": False, "megatron_args.json": True, "layout.json": True}


def test_settings_that_only_hjson_reads_are_read_and_do_not_end_a_folder(tmp_path):
    pytest.importorskip("hjson")
    text = """{ // tensor_model_parallel_size: 1
  # a, tensor_model_parallel_size: 1
  "nodes": 1, // of 8
  "tensor_model_parallel_size": 3,
}"""
    write(tmp_path, text, "layout.json")
    write(tmp_path, '{"tensor_model_parallel_size": 3', "open.json")
    run = check_files([str(tmp_path)], CheckFlags(world=8))
    (report,) = run.reports
    (found,) = report.found
    assert (found.violation.rule, found.place.line) == ("megatron.world.product", 4)
    assert run.others == [tmp_path / "open.json"]


@pytest.mark.cases("section", "accelerator", "rule")
def test_one_fix_takes_all_that_exclude_each_other(tmp_path, section, accelerator, rule):
    offloads = ("parameters", "opt_states", "activation")
    stage = 2 if rule.endswith("below_stage_3") else 3
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
    }
    if section == "compile":
        switched = {"deepcompile": True, **{f"offload_{name}": True for name in offloads}}
    else:
        switched = {f"zero_quantized_{name}": True for name in ("weights", "gradients")}
    config[section] = {**config.get(section, {}), **switched}
    path = tmp_path / "ds_config.json"
    path.write_text(json.dumps(config))
    flags = CheckFlags(accelerator=accelerator, choose=[f"{rule}=1"])
    run = check_files([str(path)], flags, fix=True)
    assert rules(run.reports[0]) == [rule]
    assert run.exit_code(fixed=True, strict=True) == CheckExit.PASSES
    assert check_files([str(path)], CheckFlags(accelerator=accelerator)).reports[0].found == ()
