"""A user's own command with the edits in it: in the words that its program takes."""

import dataclasses
import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import RenderError
from autotune.engines.deepspeed.script import ScriptEngine
from autotune.export.base import Handout
from autotune.export.command_training import CommandTraining, with_flags
from autotune.export.door import MARKER_FILE, export_handout, handout_of, write_export
from autotune.space.candidate import Candidate
from autotune.trial.guest.edits import Edits
from tests.observed import RAW, TRAINER, job_of, observed
from tests.trials import CPU

EDITS = Edits(
    configuration={
        "zero_optimization.stage": 1,
        "train_micro_batch_size_per_gpu": 8,
        "gradient_accumulation_steps": 1,
    },
    arguments={
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "gradient_checkpointing": False,
    },
)
FILLED_IN = {
    "zero_optimization": {"stage": 2},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}
FLAGS = (
    "--per_device_train_batch_size 8 --gradient_accumulation_steps 1 "
    "--gradient_checkpointing False"
)
FILE = "AUTOTUNE_EXPORT_FOLDER/ds_config.json"


def training_of(command: str, edits: Edits = EDITS, **described: Any) -> CommandTraining:
    description = {**TRAINER, "config_written": FILLED_IN, **described}
    script = observed(description, command=command.split())
    return CommandTraining(script=script, edits=edits, values={}, folder=Path("out"))


@pytest.mark.cases("command", "described", "expected")
def test_a_program_is_told_in_its_own_words(command, described, expected):
    training = training_of(command, **described)
    assert training.command() == " ".join(expected).split()
    assert not dict(training.in_code())


@pytest.mark.cases("framework", "command", "expected")
def test_an_optimizer_is_called_as_the_program_does(framework, command, expected):
    edits = Edits(arguments={"optim": "adamw_torch_fused"})
    training = training_of(command, edits, framework=framework, parses_arguments=True)
    words = expected.split()
    assert training.command()[-len(words) :] == words
    assert "adamw_torch" not in training.command()


@pytest.mark.cases("framework", "command", "expected")
def test_an_attention_is_called_as_the_program_does(framework, command, expected):
    edits = Edits(arguments={"attn_implementation": "eager"})
    training = training_of(command, edits, framework=framework, parses_arguments=True)
    words = expected.split()
    assert training.command()[-len(words) :] == words


@pytest.mark.cases("text", "is_anew")
def test_a_file_that_cannot_keep_its_comments_is_said_to_be_new(
    tmp_path: Path, text: str, is_anew: bool
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(text)
    written = {"zero_optimization": {"stage": 2}}
    edits = Edits(configuration={"zero_optimization.stage": 1})
    training = training_of(
        "deepspeed train.py", edits, config_file=str(file), config_written=written
    )
    assert training.is_config_written_anew == is_anew
    assert ("// in May" in training.config_text) != is_anew
    assert training.config == {"zero_optimization": {"stage": 1}}


def test_what_is_set_in_code_is_listed() -> None:
    """It names one argument, and reads the others from nowhere."""
    training = training_of("torchrun train.py --gradient_accumulation_steps 2", config_file="")
    assert training.command()[2:] == ["--gradient_accumulation_steps", "1"]
    assert dict(training.in_code()) == {
        "TrainingArguments in your code: per_device_train_batch_size": 8,
        "TrainingArguments in your code: gradient_checkpointing": False,
        "the configuration in your code: zero_optimization.stage": 1,
    }


WRITTEN = {
    "zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"},
    "gradient_clipping": 1.0,
    "train_batch_size": "auto",
    **FILLED_IN,
}
ARRIVED = {
    "zero_optimization": {"stage": 2, "reduce_bucket_size": 16384},
    "gradient_clipping": 1.0,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
}
SET = {
    **{"output_dir": "out", "learning_rate": 3e-4, "report_to": ["tensorboard"]},
    "use_cpu": True,
}
ARGUMENTS = {**TRAINER["arguments"], **SET, "max_grad_norm": 1.0, "bf16": False}


def handed_out(
    folder: Path,
    command: str,
    framework: str,
    files: dict[str, str] | None = None,
    **described: Any,
) -> Handout:
    """Stage 1 of a command that trains with stage 2; of a Trainer with 8 samples, not 4."""
    for name, text in (files or {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    is_trainer = framework not in ("deepspeed", "accelerate")
    description = {
        **(TRAINER if is_trainer else RAW),
        "framework": framework,
        "config_written": WRITTEN,
        "config": ARRIVED,
        "config_file": "",
        **({"arguments": ARGUMENTS} if is_trainer else {}),
        **described,
    }
    script = dataclasses.replace(
        observed(description, command=command.split()), folder=str(folder)
    )
    job = job_of(script, folder)
    engine = ScriptEngine(job, CPU)
    chosen = {
        **engine.unchanged.values,
        "zero.stage": 1,
        **({"micro_batch": 8} if is_trainer else {}),
    }
    candidate = dataclasses.replace(engine.unchanged, knobs=tuple(sorted(chosen.items())))
    return handout_of(candidate, engine=engine, job=job, environment=CPU)


def exported(handout: Handout, folder: Path, to: str, launcher: str | None = None) -> Path:
    export_handout(handout, folder / "out", to=to, launcher=launcher)
    return folder / "out"


def started(out: Path) -> str:
    """The line that starts the training."""
    (line,) = [x for x in (out / "launch.sh").read_text().splitlines() if x.startswith("exec ")]
    return line.removeprefix("exec ").removesuffix(' "$@"').replace('"$here"', str(out))


TRAINS = "torchrun --nproc-per-node 2 train.py --per_device_train_batch_size 4"


def test_the_readme_says_that_an_extension_may_be_compiled_first(tmp_path: Path) -> None:
    handout = handed_out(tmp_path, "torchrun train.py --deepspeed ds_config.json", "trainer")
    assert (
        "TORCH_EXTENSIONS_DIR"
        in (exported(handout, tmp_path, "command") / "README.md").read_text()
    )


def test_the_readme_names_the_variables_that_the_start_sets(tmp_path: Path) -> None:
    handout = handed_out(tmp_path, TRAINS, "trainer", parses_arguments=True)
    variables = {"MALLOC_TRIM_THRESHOLD_": "1073741824"}
    out = exported(dataclasses.replace(handout, variables=variables), tmp_path, "command")
    assert "export MALLOC_TRIM_THRESHOLD_=1073741824\n" in (out / "launch.sh").read_text()
    head = "| environment variable | is now |\n|---|---|\n"
    assert (
        f"{head}| `MALLOC_TRIM_THRESHOLD_` | `1073741824` |\n" in (out / "README.md").read_text()
    )
    without = exported(dataclasses.replace(handout, variables={}), tmp_path, "command")
    assert "environment variable" not in (without / "README.md").read_text()


@pytest.mark.cases("zero", "row")
def test_the_readme_has_the_buckets_that_deepspeed_gets(tmp_path, zero, row):
    """It had the size of the model (2,104,842) for all that are larger."""
    config = str(tmp_path / "ds.json")
    handout = handed_out(
        *(tmp_path, f"torchrun train.py --deepspeed_config {config}", "deepspeed"),
        config_file=config,
        config={**ARRIVED, "zero_optimization": {"stage": 2, **zero}},
    )
    assert row in (exported(handout, tmp_path, "command") / "README.md").read_text()


@pytest.mark.parametrize("names_file", [True, False])
def test_what_the_command_does_not_carry_is_not_started(tmp_path: Path, names_file: bool) -> None:
    config = str(tmp_path / "ds.json")
    command = f"torchrun train.py --deepspeed_config {config}" if names_file else "torchrun a.py"
    handout = handed_out(tmp_path, command, "deepspeed", config_file=config if names_file else "")
    out = exported(handout, tmp_path, "command")
    assert (out / "launch.sh").exists() == names_file
    assert ("There is no `launch.sh`" in (out / "README.md").read_text()) != names_file


def test_an_export_leaves_no_file_of_an_earlier_one_in_its_folder(tmp_path: Path) -> None:
    """A `launch.sh` that stayed would start what the earlier one had."""
    config = str(tmp_path / "ds.json")
    named = handed_out(tmp_path, f"torchrun a.py --ds {config}", "deepspeed", config_file=config)
    out = exported(named, tmp_path, "command")
    (out / "of_the_user.txt").touch()
    assert (out / "launch.sh").exists()
    again = handed_out(tmp_path, "torchrun a.py", "deepspeed")
    out = exported(again, tmp_path, "command")
    assert not (out / "launch.sh").exists()
    assert (out / "of_the_user.txt").exists()


@pytest.mark.parametrize("stays", ["edited", "linked", "linked folder", "elsewhere"])
def test_an_export_leaves_what_somebody_has_made_of_an_earlier_one(tmp_path: Path, stays: str):
    out, theirs = tmp_path / "out", tmp_path / "theirs"
    write_export(out, {"sub/a.yaml": "a: 1\n", "b.sh": "b\n"}, marker={})
    theirs.mkdir()
    (theirs / "a.yaml").write_text("a: 1\n")
    kept = out / "sub" / "a.yaml"
    if stays == "edited":
        kept.write_text("a: 2\n")
    elif stays == "linked":
        kept.unlink()
        kept.symlink_to(theirs / "a.yaml")
    elif stays == "elsewhere":  # a marker that somebody has written
        marker = json.loads((out / MARKER_FILE).read_text())
        marker["files"][str(theirs / "a.yaml")] = marker["files"]["sub/a.yaml"]
        (out / MARKER_FILE).write_text(json.dumps(marker))
        kept.write_text("a: 2\n")
    else:
        shutil.rmtree(kept.parent)
        kept.parent.symlink_to(theirs)
    write_export(out, {"c.yaml": ""}, marker={})
    assert kept.exists()
    assert (theirs / "a.yaml").exists()
    assert not (out / "b.sh").exists()


@pytest.mark.cases("described", "where")
def test_words_that_do_not_reach_the_script_are_none_of_a_launch_sh(tmp_path, described, where):
    handout = handed_out(tmp_path, "./run.sh", "trainer", **described)
    out = exported(handout, tmp_path, "command")
    assert not (out / "launch.sh").exists()
    text = (out / "README.md").read_text()
    assert f"| `{where}" in text
    assert "per_device_train_batch_size` | `8` |" in text


def test_without_a_launch_sh_the_readme_has_what_the_command_can_bring(tmp_path: Path) -> None:
    """It once left out a file that the command names, where the code had to change too."""
    config = str(tmp_path / "ds.json")
    handout = handed_out(
        *(tmp_path, f"torchrun train.py --ds {config}", "trainer"),
        config_file=config,
        parses_arguments=False,
    )
    text = (exported(handout, tmp_path, "command") / "README.md").read_text()
    place = "TrainingArguments in your code: per_device_train_batch_size"
    assert f"| `{place}` | `8` |" in text
    assert 'torchrun train.py --ds "$here"/ds_config.json\n' in text


def test_a_switch_of_a_script_s_own_takes_no_file(tmp_path: Path) -> None:
    """DeepSpeed's own arguments have `--deepspeed`, which is on or off."""
    handout = handed_out(tmp_path, "torchrun train.py --deepspeed", "deepspeed")
    assert not (exported(handout, tmp_path, "command") / "launch.sh").exists()


@pytest.mark.cases("command", "carried", "is_started")
def test_a_file_that_a_script_reads_itself_is_handed_out_if_its_values_arrive(
    tmp_path: Path, command: str, carried: bool, is_started: bool
) -> None:
    mine, beside = tmp_path / "conf/mine.yaml", tmp_path / "conf/model/small.yaml"
    beside.parent.mkdir(parents=True)
    mine.write_text("ds:\n  zero_optimization: {stage: 2} # mine\n")
    beside.write_text("layers: 2\n")
    source = {
        **{"file": str(mine), "at": ["ds"], "same": ["zero_optimization.stage"], "other": []},
        **{"sections": ["zero_optimization"], "is_whole": True},
    }
    handout = dataclasses.replace(
        handed_out(
            *(tmp_path, command, "deepspeed"), sources=[source], settings_read=[str(beside)]
        ),
        carried=["zero_optimization.stage"] if carried else [],
    )
    out = exported(handout, tmp_path, "command")
    assert (out / "launch.sh").exists() == is_started
    if "{zero.stage=2}" in command and is_started:  # the word brought it, and no file
        assert started(out) == "torchrun t.py ds.zero_optimization.stage=1"
    elif is_started:
        words = f" --run={out}/mine.yaml" * ("--run" in command)
        assert started(out) == f"torchrun t.py{words}"
        assert ("its place" in (out / "launch.sh").read_text()) != bool(words)
        assert (out / "mine.yaml").read_text() == "ds:\n  zero_optimization: {stage: 1} # mine\n"
        assert (out / "model" / "small.yaml").read_text() == "layers: 2\n"
    elif carried or "{zero.stage=2}" in command:
        assert "conf/mine.yaml: ds.zero_optimization.stage" in (out / "README.md").read_text()


@pytest.mark.parametrize("framework", ["deepspeed", "accelerate", "trainer", "lightning", "toml"])
def test_a_file_that_a_script_reads_itself_goes_with_every_framework(tmp_path, framework):
    name, text = "mine.json", '{"zero_optimization": {"stage": 2}}'
    if framework == "toml":
        framework, name, text = "deepspeed", "mine.toml", "\n[zero_optimization]\nstage = 2\n"
    mine = tmp_path / name
    mine.write_text(text)
    source = {"file": str(mine), "at": [], "same": ["zero_optimization.stage"], "other": []}
    handout = dataclasses.replace(
        handed_out(
            *(tmp_path, f"torchrun train.py --my {name}", framework),
            sources=[{**source, "sections": ["zero_optimization"], "is_whole": True}],
        ),
        carried=["zero_optimization.stage"],
    )
    out = exported(handout, tmp_path, "command")
    assert (out / name).read_text() == text.replace("2", "1")
    assert f'"$here"/{name}' in (out / "README.md").read_text() + (
        (out / "launch.sh").read_text() if (out / "launch.sh").exists() else ""
    )


ARGUMENTS_READ = "output_dir: out  # mine\nper_device_train_batch_size: 4\n"
OF_ACCELERATE = "mixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 2\nnum_processes: 2\n"


@pytest.mark.parametrize(
    ("arguments", "others"),
    [
        (ARGUMENTS_READ, {}),
        (ARGUMENTS_READ, {"accelerate.yaml": OF_ACCELERATE}),
        (
            ARGUMENTS_READ,
            {"ds_config.json": '{"bf16": {"enabled": true}}', "x.json": "{}"},
        ),
        ("b: &b 4\nper_device_train_batch_size: *b\n", {}),
    ],
)
def test_files_read_beside_arguments_stay_where_they_are(tmp_path, arguments, others):
    """What the export makes for its own `ds_config.json` is not written over by them."""
    command = "accelerate launch --config_file accelerate.yaml run.py args.yaml"
    files = {"accelerate.yaml": OF_ACCELERATE, **others, "args.yaml": arguments}
    read = [str(tmp_path / name) for name in (*others, "args.yaml")]
    handout = handed_out(tmp_path, command, "trainer", files, settings_read=read)
    out = exported(handout, tmp_path, "command")
    assert yaml.safe_load((out / "args.yaml").read_text())["per_device_train_batch_size"] == 8
    assert json.loads((out / "ds_config.json").read_text())["zero_optimization"]["stage"] == 1
    assert "zero_stage" not in (out / "accelerate.yaml").read_text()
    assert not (out / "x.json").exists()
    assert (out / "launch.sh").exists()


def test_the_readme_names_a_placeholder_s_new_value(tmp_path: Path) -> None:
    """It once said that nothing is changed."""
    script = observed(
        {**RAW, "asks_micro_batch": False},
        command=["a.py", "--b", "{micro_batch=4}", "--s", "{grad_accum=2}"],
        read_back={"grad_accum": 1},
    )
    script = dataclasses.replace(script, folder=str(tmp_path))
    job = job_of(script, tmp_path)
    engine = ScriptEngine(job, CPU)
    candidate = Candidate.of(
        {**engine.unchanged.values, "micro_batch": 2}, world=2, global_batch=job.global_batch
    )
    handout = handout_of(candidate, engine=engine, job=job, environment=CPU)
    out = exported(handout, tmp_path, "command")
    text = (out / "README.md").read_text()
    assert "| `{micro_batch=4}` | `2` |\n| `{grad_accum=2}` | `4` |" in text
    assert "Nothing is changed" not in text
    assert started(out) == "a.py --b 2 --s 4"
    as_typed = dataclasses.replace(handout, candidate=engine.unchanged)
    text = (exported(as_typed, tmp_path, "command") / "README.md").read_text()
    assert "Nothing is changed" in text
    assert not [word for word in ("edits", "changes", "best") if word in text]


def test_the_readme_tells_a_change_once(tmp_path: Path) -> None:
    handout = handed_out(tmp_path, "torchrun train.py --deepspeed ds_config.json", "trainer")
    assert handout.overridden
    text = (exported(handout, tmp_path, "command") / "README.md").read_text()
    assert text.count("`zero_optimization.stage`") == 1
    assert "do not run as you wrote them" not in text


def test_a_file_of_arguments_that_a_script_reads_is_edited(tmp_path: Path) -> None:
    given = "output_dir: out  # mine\nper_device_train_batch_size: 4\nd_model: 64\n"
    handout = handed_out(tmp_path, "torchrun run.py args.yaml", "trainer", {"args.yaml": given})
    out = exported(handout, tmp_path, "command")
    assert (out / "args.yaml").read_text().startswith("output_dir: out  # mine\n")
    written = yaml.safe_load((out / "args.yaml").read_text())
    assert (written["per_device_train_batch_size"], written["d_model"]) == (8, 64)
    assert written["deepspeed"] == str(out / "ds_config.json")
    assert started(out) == f"torchrun run.py {out}/args.yaml"


def test_a_file_of_arguments_with_a_section_for_deepspeed_has_both_edits(tmp_path: Path) -> None:
    """What Trainer fills in from its arguments stays "auto"."""
    section = "{zero_optimization: {stage: 2}, train_micro_batch_size_per_gpu: auto}"
    given = f"per_device_train_batch_size: 4\ndeepspeed: {section}\n"
    source = {"file": str(tmp_path / "args.yaml"), "at": ["deepspeed"], "is_whole": True}
    source |= {"same": ["zero_optimization.stage"], "other": [], "sections": ["zero_optimization"]}
    handout = handed_out(
        *(tmp_path, "torchrun run.py args.yaml", "trainer", {"args.yaml": given}),
        sources=[source],
    )
    handout = dataclasses.replace(handout, carried=("zero_optimization.stage",))
    out = exported(handout, tmp_path, "command")
    edited = given.replace("size: 4", "size: 8").replace("stage: 2", "stage: 1")
    assert (out / "args.yaml").read_text().startswith(edited)
    assert started(out) == f"torchrun run.py {out}/args.yaml"


def test_recomputation_keeps_the_name_that_the_file_has_for_it(tmp_path: Path) -> None:
    given = "output_dir: out\nper_device_train_batch_size: 4\ngradient_checkpointing: true\n"
    (tmp_path / "args.yaml").write_text(given)
    edits = Edits(arguments={"activation_checkpointing": False})
    training = training_of("torchrun run.py args.yaml", edits)
    here = dataclasses.replace(training.script, folder=str(tmp_path))
    changes = dataclasses.replace(training, script=here).arguments_in_file()
    assert changes == [(["gradient_checkpointing"], False)]


@pytest.mark.parametrize("brings_plugin", [False, True])
def test_settings_of_accelerate_s_launcher_become_its_files(tmp_path, brings_plugin):
    """A plugin in the script's code stands above them."""
    command = "accelerate launch --zero_stage 2 t.py"
    handout = handed_out(tmp_path, command, "accelerate", brings_plugin=brings_plugin)
    out = exported(handout, tmp_path, "command")
    assert (out / "launch.sh").exists() != brings_plugin
    if not brings_plugin:
        assert started(out).startswith(f"accelerate launch --config_file {out}/accelerate.yaml")


def test_accelerate_starts_the_script_with_its_own_file_edited(tmp_path: Path) -> None:
    given = "mixed_precision: bf16\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n"
    command = "accelerate launch --config_file a.yaml --zero_stage 2 --main_process_port 0 t.py 3"
    handout = handed_out(tmp_path, command, "accelerate", {"a.yaml": given})
    out = exported(handout, tmp_path, "command")
    written = yaml.safe_load((out / "accelerate.yaml").read_text())
    assert "mixed_precision" not in written, "accelerate refuses it beside a DeepSpeed file"
    assert written["deepspeed_config"] == {
        "deepspeed_config_file": "ds_config.json",
        "zero3_init_flag": False,
    }
    files = f"--config_file {out}/accelerate.yaml --deepspeed_config_file {out}/ds_config.json"
    assert started(out) == f"accelerate launch {files} --main_process_port 0 t.py 3"


def test_accelerate_s_own_settings_do_not_stand_beside_a_file(tmp_path: Path) -> None:
    """It refuses to start with both, also where Trainer names the file."""
    given = "mixed_precision: bf16\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n"
    command = "accelerate launch --config_file a.yaml --zero_stage 2 t.py --learning_rate 1"
    out = exported(
        handed_out(tmp_path, command, "trl", {"a.yaml": given}, parses_arguments=True),
        *(tmp_path, "command"),
    )
    written = yaml.safe_load((out / "accelerate.yaml").read_text())
    assert written["deepspeed_config"]["deepspeed_config_file"] == "ds_config.json"
    assert "mixed_precision" not in written
    files = f"--config_file {out}/accelerate.yaml --deepspeed_config_file {out}/ds_config.json"
    assert started(out).startswith(f"accelerate launch {files} t.py --learning_rate 1")
    assert f"--deepspeed {out}/ds_config.json" in started(out)


@pytest.mark.cases("words", "values", "after")
def test_a_flag_is_changed_wherever_it_stands(words, values, after) -> None:
    """The last one counts: one that was left alone would keep the old value."""
    assert with_flags(words.split(), values) == after.split()


def test_a_raw_script_gets_a_job_of_a_cluster(tmp_path: Path) -> None:
    config_file = str(tmp_path / "ds.json")
    command = f"torchrun train.py --ds {config_file}"
    handout = handed_out(tmp_path, command, "deepspeed", config_file=config_file)
    out = exported(handout, tmp_path, "command", "slurm")
    assert (out / "job.sbatch").is_file()
    with pytest.raises(RenderError, match="your command starts its ranks by itself") as refused:
        exported(handout, tmp_path / "other", "command", "accelerate")
    nodes = "kubernetes, ray, skypilot, slurm"
    assert refused.value.hint == f"leave --launcher out, or name one of: {nodes}"
    out = exported(handout, tmp_path / "same", "command", "torchrun")
    assert (out / "launch.sh").is_file()


@pytest.mark.cases("framework", "to", "launcher", "says")
def test_what_nothing_in_the_command_reads_is_refused(tmp_path, framework, to, launcher, says):
    handout = handed_out(tmp_path, "torchrun train.py", framework)
    with pytest.raises(RenderError) as refused:
        exported(handout, tmp_path, to, launcher)
    assert says in f"{refused.value.message} {refused.value.hint}"


WRITTEN_KEYS = ("zero_optimization.stage", "zero_optimization.reduce_bucket_size")


@pytest.mark.parametrize("names_file", [True, False])
def test_a_ds_config_stays_as_it_is_written_but_for_what_changes(tmp_path, names_file):
    text = """{
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8},
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2
}
"""
    path = tmp_path / "ds.json"
    config = {**ARRIVED, "zero_optimization": {"stage": 2, "reduce_bucket_size": 2e8}}
    described = {"config_file": str(path), "config": config, "config_written": json.loads(text)}
    # It reads the file as well, so that its values arrive by that.
    source = {
        **{"file": str(path), "at": [], "same": [*WRITTEN_KEYS], "other": []},
        **{"sections": ["zero_optimization"], "is_whole": True},
    }
    described |= {"settings_read": [str(path)], "sources": [source]}
    command = "torchrun t.py --deepspeed_config ds.json" if names_file else "echo trains"
    handout = handed_out(tmp_path, command, "deepspeed", {"ds.json": text}, **described)
    handout = dataclasses.replace(handout, carried=("zero_optimization.stage",))
    out = exported(handout, tmp_path, "command")
    assert (out / "ds_config.json").read_text() == text.replace('"stage": 2', '"stage": 1')
    assert not (out / "ds.json").exists(), "it is there once"
    copies = f"cp ds_config.json {path}\n" in (out / "README.md").read_text()
    assert copies != names_file
    if not names_file:  # a path in the script's code
        start = functools.partial(subprocess.run, ["bash", str(out / "launch.sh")], text=True)
        refused = start(capture_output=True)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"cp {out}/ds_config.json {path}" in refused.stderr
        shutil.copy(out / "ds_config.json", path)
        assert start(capture_output=True).stdout == "trains\n"


def test_the_readme_has_no_optimizer_of_deepspeed_s_beside_the_script_s_own(tmp_path):
    row = "| `optimizer.implementation` |"
    own = exported(handed_out(tmp_path, TRAINS, "deepspeed"), tmp_path, "command")
    assert row not in (own / "README.md").read_text()
    by_file = {**ARRIVED, "optimizer": {"type": "AdamW"}}
    handout = handed_out(tmp_path, TRAINS, "deepspeed", config=by_file, config_written=by_file)
    assert row in (exported(handout, tmp_path, "command") / "README.md").read_text()
