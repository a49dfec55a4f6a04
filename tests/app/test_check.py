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
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from tests.captured import captured
from tests.cases import data_beside
from tests.check.files import AUTO, rules, write
from tests.command_line import autotune

DATA = data_beside(__file__)

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


def test_data_in_a_folder_is_not_a_configuration_that_cannot_be_read(tmp_path):
    """A list of samples, a log with NaN, a file of 5 MiB; a broken ds_config is one."""
    write(tmp_path, REFUSED | {"zero_optimization": {"stage": 2}}, "ds.json")
    for name, text in (
        ("samples.json", '[{"text": "a"}]'),
        ("log.json", '{"loss": NaN}'),
        ("large.json", '{"zero_optimization": "' + "x" * (5 * 2**20) + '"}'),
    ):
        write(tmp_path, text, name)
    flags = CheckFlags(deepspeed_version="0.19.8")
    run = check_files([str(tmp_path)], flags)
    assert [path.name for path in run.others] == ["large.json", "log.json", "samples.json"]
    assert (len(run.reports), run.unread) == (1, [])
    assert [one.path.name for one in check_files([str(tmp_path / "log.json")], flags).unread] == [
        "log.json"
    ]
    write(tmp_path, '{"zero_optimization": {', "broken.json")
    assert [one.path.name for one in check_files([str(tmp_path)], flags).unread] == ["broken.json"]


def test_a_folder_has_its_launches_judged_and_names_those_not_followed(tmp_path):
    """A configuration is judged as its launch uses it, once, and the fix is written into it."""
    (tmp_path / "run.sh").write_text("deepspeed --num_gpus 8 t.py --deepspeed_config ds.json\n")
    (tmp_path / "open.sh").write_text("deepspeed t.py --deepspeed_config $CONFIG\n")
    (tmp_path / "data.sh").write_text("wget data\n")
    ds = write(tmp_path, {"train_batch_size": "64", "bf16": {"enabled": True}}, "ds.json")
    run = check_files([str(tmp_path)], CheckFlags(), fix=True)
    assert [(one.source.path, one.world) for one in run.reports] == [(ds, 8)]
    assert json.loads(ds.read_text())["train_batch_size"] == 64
    assert [path.name for path in run.others] == ["data.sh"]
    assert [one.path.name for one in run.not_followed] == ["open.sh"]
    assert run.exit_code(fixed=True, strict=False) == CheckExit.PASSES
    done = autotune("check", str(tmp_path), folder=tmp_path)
    last = " ".join(done.stdout.split())
    assert "(1 as another file uses it; 1 more file holds" in last
    assert "not followed: " in last
    assert "open.sh: names '$CONFIG'" in last


def test_launches_in_a_folder_are_unread_where_a_file_fails_and_not_followed_where_open(tmp_path):
    """In a job's YAML as in a shell file; prose in one is no launch."""
    launch = "deepspeed --num_gpus 8 t.py --deepspeed_config"
    write(tmp_path, {"train_batch_size": 8}, "ds.json")
    write(tmp_path, f"{launch} ds.json\n", "run.sh")
    write(tmp_path, f"{launch} $CONFIG\n", "open.sh")
    write(tmp_path, f"run: {launch} $CONFIG\n", "open.yaml")
    write(tmp_path, "run: Bob's deepspeed run\n", "prose.yaml")
    run = check_files([str(tmp_path)], CheckFlags())
    assert [path.name for path in run.others] == ["prose.yaml"]
    assert [one.path.name for one in run.not_followed] == ["open.sh", "open.yaml"]
    assert run.exit_code(fixed=False, strict=False) == CheckExit.PASSES
    assert [set(one) for one in run.to_dicts(fixed=False)[1:]] == [
        {"file", "not_followed", "fix"}
    ] * 2
    write(tmp_path, f"{launch} gone.json\n", "gone.sh")
    write(tmp_path, f"{launch} ds.json\n{launch} gone.json\n", "run.sh")
    run = check_files([str(tmp_path)], CheckFlags())
    assert [one.path.name for one in run.unread] == ["gone.sh", "run.sh"]
    assert [one.source.path.name for one in run.reports] == ["ds.json"]
    assert run.exit_code(fixed=False, strict=False) == CheckExit.UNREADABLE


@pytest.mark.parametrize("scripts", [1, 2])
def test_a_fix_for_one_launch_is_not_undone_by_that_for_another(tmp_path, scripts):
    lines = [f"deepspeed --num_gpus {n} t.py --deepspeed_config ds.json\n" for n in (8, 4)]
    for number, text in enumerate(lines if scripts == 2 else ["".join(lines)]):
        write(tmp_path, text, f"run{number}.sh")
    batch = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 1}
    ds = write(tmp_path, batch | {"gradient_accumulation_steps": 4}, "ds.json")
    run = check_files([str(tmp_path)], CheckFlags(), fix=True)
    assert json.loads(ds.read_text())["gradient_accumulation_steps"] == 8
    assert [one.is_written(fixed=True) for one in run.reports] == [True, False]
    assert run.exit_code(fixed=True, strict=False) == CheckExit.FAILS


def test_what_lies_in_an_export_beside_its_configuration_is_none(tmp_path):
    """`check folder/*` names files that are no configuration; the one that is counts."""
    ours = {"settings.json": {"accelerator": "cuda"}, "autotune_export.json": {"dialect": "hf"}}
    for name, content in ours.items():
        write(tmp_path, content, name)
    (tmp_path / "README.md").write_text("# It's ours\n")
    config = write(tmp_path, AUTO)
    names = [str(path) for path in sorted(tmp_path.iterdir())]
    run = check_files(names, CheckFlags())
    assert [report.source.path for report in run.reports] == [config]
    assert [path.name for path in run.others] == [
        "README.md",
        "autotune_export.json",
        "settings.json",
    ]
    assert not run.unread
    (tmp_path / "autotune_export.json").unlink()
    run = check_files([n for n in names if "export" not in Path(n).name], CheckFlags())
    assert [one.path.name for one in run.unread] == ["README.md", "settings.json"]
    write(tmp_path, ours["autotune_export.json"], "autotune_export.json")
    config.write_text('{"zero_optimization": {"stage": 1,}')
    assert [one.path for one in check_files(names, CheckFlags()).unread] == [config]


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


def test_settings_of_a_layout_that_does_not_fit_its_ranks_are_refused(tmp_path):
    """By the file alone, and where the script of a launch names it."""
    settings = {"tensor_model_parallel_size": 3, "num_attention_heads": 12, "num_layers": 12}
    write(tmp_path, settings, "layout.json")
    (report,) = check_files([str(tmp_path / "layout.json")], CheckFlags(world=8)).reports
    assert "megatron.tp.heads" not in rules(report)
    assert "megatron.world.product" in rules(report)
    write(tmp_path, 'json.load(open("layout.json"))\n', "pretrain.py")
    write(tmp_path, "torchrun --nproc-per-node 8 pretrain.py\n", "run.sh")
    (report,) = check_files([str(tmp_path / "run.sh")], CheckFlags()).reports
    assert (report.world, "megatron.world.product" in rules(report)) == (8, True)
    fields = {"actor": {"megatron": settings}, "rollout": {"tensor_model_parallel_size": 4}}
    cluster = {"cluster": {"gpus_per_node": 8, "num_nodes": 2}}
    write(tmp_path, json.dumps(fields | cluster), "verl.yaml")
    (report,) = check_files([str(tmp_path / "verl.yaml")], CheckFlags()).reports
    (found,) = (one for one in report.found if one.violation.rule == "megatron.world.product")
    assert "actor.megatron.tensor_model_parallel_size 3" in found.violation.message


_NEMO_RL = DATA["_NEMO_RL"]
_APART = "false, resources: {gpus_per_node: 4, num_nodes: 1}"


def test_the_world_of_a_file_is_that_of_the_ranks_that_train(tmp_path):
    """Of two fields, the first one in the table counts, whatever the hash seed."""
    path = tmp_path / "grpo.yaml"
    path.write_text(_NEMO_RL.replace("COLOCATED", "true"))
    (report,) = check_files([str(path)], CheckFlags()).reports
    (found,) = report.found
    assert (report.world, found.violation.rule) == (16, "megatron.world.product")
    assert (found.place.line, found.place.column) == (8, 5)
    for apart in (_APART, "null, resources: {num_nodes: 1}"):
        path.write_text(_NEMO_RL.replace("COLOCATED", apart))
        (report,) = check_files([str(path)], CheckFlags()).reports
        assert (report.world, report.found) == (None, ())


@pytest.mark.cases("name", "text")
def test_a_file_that_splits_nothing_by_megatron_is_none_of_its_settings(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    (unread,) = check_files([str(tmp_path / name)], CheckFlags()).unread
    assert isinstance(unread.error, NotADsConfigError)


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


def test_the_place_of_a_setting_is_that_of_its_section(tmp_path):
    degrees = {"tensor_model_parallel_size": 3}
    data = {"rollout": degrees, "actor": degrees}
    write(tmp_path, json.dumps(data, indent="\t"), "verl.json")
    (report,) = check_files([str(tmp_path / "verl.json")], CheckFlags(world=8)).reports
    assert [one.place.line for one in report.found] == [6]


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


def test_a_job_whose_launch_cannot_be_read_says_why(tmp_path):
    write(tmp_path, "deepspeed --num_gpus 8 t.py --deepspeed_config gone.json\n", "launch.sh")
    write(tmp_path, "name: x\nrun: bash launch.sh\n", "job.yaml")
    command = {"command": ["bash", "-c"], "args": ["cd /x && bash /x/launch.sh"]}
    write(tmp_path, json.dumps({"spec": {"containers": [command]}}), "pod.yaml")
    run = check_files([str(tmp_path)], CheckFlags())
    assert [one.path.name for one in run.unread] == ["launch.sh", "job.yaml", "pod.yaml"]
    assert all("'gone.json', which is not there" in one.error.message for one in run.unread)
    assert run.others == []
