"""Where a configuration lies and who reads it: JSON, accelerate YAML, launch lines, axolotl."""

import json
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import AutotuneError, JobError, RenderError
from autotune.base.user_text import STANDARD_INPUT
from autotune.check import read
from autotune.engines.deepspeed.ds_config_text import parse_config
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.source import ranks_in
from tests.check.files import AUTO, all_chosen, checked, messages, rules, write

RAW = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
ACCELERATE = {
    "distributed_type": "DEEPSPEED",
    "deepspeed_config": {"zero_stage": 3, "offload_param_device": "cpu"},
    "mixed_precision": "bf16",
    "num_processes": 4,
}


def yaml_file(folder, content, name="accelerate.yaml"):
    return write(folder, yaml.safe_dump(content), name)


def test_a_section_of_an_accelerate_file_is_judged(tmp_path):
    path = yaml_file(tmp_path, ACCELERATE)
    report = checked(path)
    assert (report.source.consumer, report.world) == (Consumer.ACCELERATE, 4)
    assert rules(report) == []
    wrong = ACCELERATE | {"deepspeed_config": {"zero_stage": 2, "offload_param_device": "cpu"}}
    report = checked(yaml_file(tmp_path, wrong))
    assert rules(report) == ["offload.param_needs_stage_3"]
    assert report.diff == ""
    report = all_chosen(path)
    assert "-  offload_param_device: cpu" in report.diff, "in accelerate's own words"


def test_the_file_that_an_accelerate_file_names_is_judged(tmp_path):
    inner = write(tmp_path, AUTO | {"zero_optimization": {"stage": 2, "overlap_com": True}})
    named = {"deepspeed_config": {"deepspeed_config_file": inner.name}, "num_processes": 2}
    report = checked(yaml_file(tmp_path, named))
    assert report.source.path == inner
    assert (report.source.consumer, report.world) == (Consumer.ACCELERATE, 2)
    assert '-    "overlap_com": true' in report.diff
    assert not report.source.can_write


@pytest.mark.parametrize("is_named_there", [True, False])
def test_what_accelerate_refuses_beside_a_file(tmp_path, is_named_there):
    """It is said once, in the accelerate file, and not also as a precision that differs."""
    inner = write(tmp_path, AUTO | {"bf16": {"enabled": True}})
    section = {"zero_stage": 3, "gradient_clipping": 1.0}
    named = {"deepspeed_config_file": str(inner)} if is_named_there else {}
    data = {"distributed_type": "DEEPSPEED", "mixed_precision": "fp16"}
    file = yaml_file(tmp_path, {**data, "deepspeed_config": {**named, **section}})
    launch = f"accelerate launch --config_file {file} --deepspeed_config_file {inner} train.py"
    report = checked(file) if is_named_there else checked(inner, launch=launch)
    assert rules(report) == ["huggingface.accelerate_duplicate"]
    assert report.found[0].place.file == file
    assert file.read_text().splitlines()[report.found[0].place.line - 1] == (
        "  gradient_clipping: 1.0"
    )
    message = messages(report, "huggingface.accelerate_duplicate")
    assert "gradient_clipping, zero_stage, mixed_precision" in message
    assert report.exit_code(fixed=True) == 2


def test_the_accelerate_file_that_goes_with_a_configuration(tmp_path):
    path = write(tmp_path, AUTO | {"train_batch_size": 12})
    other = yaml_file(tmp_path, {"num_processes": 4, "mixed_precision": "bf16"})
    for how in (
        {"accelerate": other},
        {"launch": f"accelerate launch --config_file {other} train.py"},
    ):
        source = read(path, **how)
        assert (source.consumer, source.world) == (Consumer.ACCELERATE, 4)
        assert source.mixed_precision == "bf16"


JSON_AS_YAML = """{
  "train_batch_size": "auto",
  "zero_optimization": {"stage": 2, "reduce_bucket_size": 5e8, "overlap_com": true, "stage": 2}
}
"""


def test_json_is_json_whatever_its_name(tmp_path):
    """accelerate reads a ds_config with json.load, to which 5e8 is a number."""
    inner = write(tmp_path, JSON_AS_YAML, "zero2.yaml")
    named = {"deepspeed_config": {"deepspeed_config_file": inner.name}, "num_processes": 2}
    outer = {"distributed_type": "DEEPSPEED"} | named
    for report in (
        checked(yaml_file(tmp_path, outer)),
        checked(inner, consumer=Consumer.ACCELERATE),
    ):
        assert report.source.syntax == "json"
        assert rules(report) == ["schema.unknown_key", "file.key_twice"]
    once = JSON_AS_YAML.replace(', "stage": 2', "")
    report = checked(write(tmp_path, once, "zero2.yaml"))
    assert report.fixed_text == once.replace("overlap_com", "overlap_comm")


@pytest.mark.parametrize("name", ["configs/acc.yaml", "acc.yaml", "$CONFIG", "{path}"])
def test_a_launch_line_may_name_the_file_itself_from_another_folder(tmp_path, name):
    (tmp_path / "configs").mkdir()
    path = yaml_file(tmp_path / "configs", ACCELERATE, "acc.yaml")
    line = f"accelerate launch --config_file {name.format(path=path)} --num_processes 4 train.py"
    source = read(path, launch=line)
    assert (source.consumer, source.at, source.world) == (
        Consumer.ACCELERATE,
        ("deepspeed_config",),
        4,
    )
    assert source.config["zero_optimization"]["stage"] == 3


def test_a_launch_line_for_another_file_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, RAW)
    other = write(tmp_path, RAW, "other.json")
    (tmp_path / "folder").mkdir()
    same_name = write(tmp_path / "folder", RAW)

    def said(named):
        line = f"deepspeed --num_gpus 2 train.py --deepspeed --deepspeed_config {named}"
        return checked(path, launch=line)

    for named in (other, same_name, "gone.json"):
        assert rules(said(named)) == ["file.not_launched"]
        assert f"names {named}" in messages(said(named), "file.not_launched")
    for named in (path, path.name, f"elsewhere/{path.name}", "$CONFIG", "configs/${STAGE}.json"):
        assert rules(said(named)) == []

    piped = read(
        STANDARD_INPUT, text="{}", launch=f"deepspeed train.py --deepspeed_config {other}"
    )
    assert piped.launched == str(other)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"deepspeed_config": 7}, "deepspeed_config: 7 is no section"),
        ({"deepspeed_config": "ds.json"}, "deepspeed_config: 'ds.json' is no section"),
        ({"num_processes": "eight"}, "num_processes: 'eight'"),
        ({"num_processes": -3}, "num_processes: -3"),
        ({"num_machines": "one"}, "num_machines: 'one'"),
        ({"num_machines": True}, "num_machines: "),
    ],
)
def test_a_value_of_an_accelerate_file_that_is_none_is_named(tmp_path, wrong, said):
    path = yaml_file(tmp_path, ACCELERATE | wrong)
    with pytest.raises(JobError) as raised:
        read(path, world=8)
    assert f"{path}: {said}" in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    ("asked", "started", "found"),
    [(15, 14, ["accelerate.processes"]), (16, 16, []), (1, 1, [])],
)
def test_accelerate_starts_as_many_ranks_on_each_machine(tmp_path, asked, started, found):
    ranks = {"num_machines": 2, "num_processes": asked, "main_process_ip": "a"}
    section = {"zero_stage": 2, "deepspeed_multinode_launcher": "standard"}
    path = yaml_file(tmp_path, ACCELERATE | {**ranks, "deepspeed_config": section})
    report = checked(path)
    assert (report.world, rules(report)) == (started, found)
    line = f"accelerate launch --config_file {path} --num_processes {asked} train.py"
    assert checked(path, launch=line).world == started
    assert rules(checked(path, world=30)) == []
    run = checked(write(tmp_path, f"\n{line}", "run.sh"))
    places = [(one.place.file, one.place.line) for one in run.found]
    assert places == [(tmp_path / "run.sh", 2)] * len(found)


@pytest.mark.parametrize("folder", ["", "configs", "a/b"])
def test_arguments_of_hugging_face_name_the_file(tmp_path, folder):
    """It lies beside the file or above it: axolotl and LLaMA-Factory."""
    inner = write(tmp_path, AUTO | {"gradient_clipping": 0.5})
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    arguments = {
        "base_model": "m",
        "deepspeed": inner.name,
        "micro_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "max_grad_norm": 1.0,
        "learning_rate": "1e-5",
        "bf16": "auto",
    }
    report = checked(yaml_file(tmp_path / folder, arguments, "train.yml"), world=2)
    assert report.source.path == inner
    assert report.source.consumer == Consumer.TRAINER
    assert report.source.arguments["learning_rate"] == 1e-5
    assert rules(report) == ["huggingface.mismatch"]


def test_a_section_inside_arguments_is_mended_there(tmp_path):
    zero = {"stage": 2, "overlap_com": True}
    arguments = {"bf16": True, "deepspeed": AUTO | {"zero_optimization": zero}, "seed": 1}
    path = write(tmp_path, arguments, "arguments.json")
    report = checked(path)
    assert report.source.at == ("deepspeed",)
    after = json.loads(report.fixed_text)
    assert after["deepspeed"]["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert list(after) == list(arguments)


@pytest.mark.parametrize(
    ("text", "name", "error", "said"),
    [
        ("{", "x.json", RenderError, "not valid JSON"),
        ("[]", "x.json", RenderError, "holds a list"),
        ("a: [", "x.yaml", JobError, "not valid YAML"),
        ("- 1", "x.yml", JobError, "not a mapping"),
        ("deepspeed: &x {a: 1, self: *x}", "x.yml", JobError, "than anybody reads"),
        (
            "".join(
                f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(9)
            ),
            "x.yml",
            JobError,
            "than anybody reads",
        ),
        ('{"a":' * 60 + "1" + "}" * 60, "x.json", RenderError, "deeper than 50 levels"),
        ("deepspeed:", "x.yml", JobError, "no DeepSpeed configuration"),
        ("torchrun pretrain_gpt.py --bf16\n", "x.sh", JobError, "a launch of Megatron-LM"),
        ("deepspeed: gone.json", "x.yml", RenderError, "'gone.json', which is not there"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, text, name, error, said):
    path = write(tmp_path, text, name)
    with pytest.raises(error, match=said) as raised:
        read(path)
    assert name in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(("name", "says"), [("README.md", True), ("ds_config.json", False)])
def test_a_file_of_another_kind_is_told_which_are_read(tmp_path, name, says):
    with pytest.raises(RenderError, match="not valid JSON") as raised:
        read(write(tmp_path, "A text: (of) some [kind", name))
    assert ("name a ds_config.json, or a YAML, shell or Python" in raised.value.hint) is says


@pytest.mark.parametrize("text", ["", " \n", "\ufeff"])
def test_an_empty_file_is_told_as_such(tmp_path, text):
    with pytest.raises(RenderError) as raised:
        parse_config(text, tmp_path / "ds_config.json")
    assert raised.value.message == f"{tmp_path / 'ds_config.json'}: is empty"
    assert "write one { ... }" in raised.value.hint


def test_a_file_that_is_named_is_held_to_the_same_depth(tmp_path):
    write(tmp_path, '{"a":' * 60 + "1" + "}" * 60, "deep.json")
    with pytest.raises(RenderError, match=r"deep\.json: .* deeper than 50 levels"):
        read(write(tmp_path, "deepspeed: deep.json", "x.yml"))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(AutotuneError, match="nowhere"):
        read(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("words", "world"),
    [
        (["torchrun", "--nproc-per-node", "3", "train.py"], 3),
        (["bash", "-c", "cd x && exec torchrun --nproc-per-node 3 train.py"], 3),
        (["bash", "-lc", "torchrun --nproc-per-node 3 train.py"], 3),
        (["python", "-c", "torchrun --nproc-per-node 3 train.py"], None),
        (["bash", "run.sh", "--flag"], 3),
        (["accelerate", "launch", "--config_file", "a.yaml", "train.py"], 3),
        (["accelerate", "launch", "--config_file", "lost.yaml", "train.py"], None),
        (["./run.sh"], 3),
        (["bash", "launch"], 3),
        (["./launch"], 3),
        (["bash", "x" * 5000], None),
        (
            ["env", "FORCE_TORCHRUN=1", "NPROC_PER_NODE=3", "llamafactory-cli", "train", "x.yaml"],
            3,
        ),
        (["sh", "-c", "NPROC_PER_NODE=3 llamafactory-cli train x.yaml"], 3),
        (["sh", "-c", "echo 'open"], None),
        (["torchrun", "--nproc-per-node", "many", "train.py"], None),
        (["python", "train.py"], None),
        (["python", "x" * 5000], None),
    ],
)
def test_the_ranks_of_a_command_that_a_shell_starts(tmp_path, words, world):
    text = "python prepare.py\nN=3\ntorchrun --nproc-per-node $N train.py\n"
    (tmp_path / "run.sh").write_text(text)
    (tmp_path / "launch").write_text(text)
    (tmp_path / "a.yaml").write_text("num_processes: 3\n")
    assert ranks_in(words, tmp_path)[0] == world


SECTION = """distributed_type: DEEPSPEED
num_processes: 2
mixed_precision: {precision}
deepspeed_config:
  zero_stage: 2
  gradient_accumulation_steps: {accumulation}
"""
STARTED = (
    "accelerate launch --config_file two.yaml {script} --per_device_train_batch_size 3 {more}\n"
)


def started(tmp_path, monkeypatch, more, *, precision="bf16", accumulation="auto", script=None):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, SECTION.format(precision=precision, accumulation=accumulation), "two.yaml")
    if script is not None:
        write(tmp_path, script, "fit.py")
    path = write(tmp_path, STARTED.format(script="fit.py", more=more), "run.sh")
    return checked(path.relative_to(tmp_path))


WITH_TRAINER = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser("
WITH_TRAINER += "TrainingArguments)\n"


@pytest.mark.parametrize(
    ("more", "how", "found"),
    [
        ("--do_train --bf16 --gradient_accumulation_steps 4", {}, []),
        ("--bf16", {"script": WITH_TRAINER}, []),
        ("", {"script": WITH_TRAINER}, [("huggingface.default_mismatch", "error")]),
        ("--fp16", {"script": WITH_TRAINER, "precision": "'no'"}, []),
        (
            "--save_strategy no --bf16 --gradient_accumulation_steps 4",
            {"accumulation": 2},
            [("huggingface.mismatch", "error")],
        ),
        ("", {"script": "Accelerator()"}, [("accelerate.refused", "error")]),
        ("", {"script": "Accelerator()", "accumulation": 2}, []),
    ],
)
def test_accelerate_starts_scripts_of_trainer_and_of_its_own(
    tmp_path, monkeypatch, more, how, found
):
    report = started(tmp_path, monkeypatch, more, **how)
    assert [(one.violation.rule, one.violation.level) for one in report.found] == found


def test_a_lost_backslash_is_told_with_what_it_costs(tmp_path, monkeypatch):
    report = started(tmp_path, monkeypatch, "--do_train\n  --bf16 --seed 3")
    found = {one.violation.rule: one.violation for one in report.found}
    place = next(one.place for one in report.found if one.violation.rule == "file.lost_line")
    assert (place.file, place.line) == (Path("run.sh"), 2)
    assert "starts without --bf16, --seed" in found["file.lost_line"].message
    assert found["huggingface.default_mismatch"].level == "error"
    assert found["file.lost_line"].fix == "end line 1 with a backslash"


@pytest.mark.parametrize(
    ("name", "text", "line", "fix"),
    [
        (".", "{}\n# more \\\n --lr 2\n", 4, "take the comment out of line 3"),
        ("in.sh", "\n\n{}\n --lr 2\n", 2, "end the line above it in in.sh with a backslash"),
    ],
)
def test_a_lost_line_is_placed_in_the_file_that_is_checked(
    tmp_path, monkeypatch, name, text, line, fix
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"train_micro_batch_size_per_gpu": 1}, "ds.json")
    text = text.format("torchrun t.py --deepspeed_config ds.json")
    outer = text if name == "." else f"bash {name}\n"
    if name != ".":
        write(tmp_path, text, name)
    write(tmp_path, f"#!/bin/bash\n{outer}", "run.sh")
    (found,) = (one for one in checked(Path("run.sh")).found if "lost" in one.violation.rule)
    assert (found.place.file, found.place.line) == (Path("run.sh"), line)
    assert found.violation.fix.startswith(fix)


@pytest.mark.parametrize("below", ["\n  --seed 3", ""])
def test_a_space_behind_a_backslash_is_a_word_that_is_refused(tmp_path, monkeypatch, below):
    report = started(tmp_path, monkeypatch, f"--do_train --bf16 \\ {below}")
    (found,) = (one for one in report.found if one.violation.rule == "file.blank_word")
    assert (found.violation.level, found.place.file, found.place.line) == (
        "error",
        Path("run.sh"),
        1,
    )
    assert "file.lost_line" not in {one.violation.rule for one in report.found}


def test_a_space_behind_a_backslash_is_told_of_a_file_that_is_started(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"train_micro_batch_size_per_gpu": 1}, "ds.json")
    write(tmp_path, "torchrun t.py --deepspeed_config ds.json \\ \n --lr 2\n", "in.sh")
    write(tmp_path, "#!/bin/bash\n\nbash in.sh\n", "run.sh")
    (found,) = (one for one in checked(Path("run.sh")).found if one.place.line == 3)
    assert found.violation.rule == "file.blank_word"
    assert found.violation.fix == "remove the space behind the backslash in in.sh"


WRITES = """#!/bin/bash
HERE=$(dirname "$0")
MICRO=2
cat > "$HERE/made.json" <<EOF
{"train_micro_batch_size_per_gpu": $MICRO, "gradient_accumulation_steps": 1,
 "zero_optimization": {"stage": 3, "offload_param": {"devise": "cpu"}}}
EOF
deepspeed --num_gpus 2 fit.py --deepspeed_config $HERE/made.json
"""


def test_a_ds_config_that_a_here_document_writes_is_read_on_its_lines(tmp_path):
    report = checked(write(tmp_path, WRITES, "run.sh"))
    (found,) = [one for one in report.found if one.violation.level == "error"]
    assert (found.violation.rule, found.place.line) == ("schema.unknown_key", 6)
    assert report.source.config["train_micro_batch_size_per_gpu"] == 2
    assert "here-document" in report.not_edited


@pytest.mark.parametrize("stage", ["$STAGE", "${STAGE}", "$((STAGE + 1))", "$(pick a stage)"])
def test_what_a_here_document_takes_from_the_shell_is_a_value_of_its_own(tmp_path, stage):
    text = WRITES.replace('{"stage": 3, "offload_param": {"devise": "cpu"}}', '{"stage": 3}')
    text = text.replace('{"stage": 3}', f'{{"stage": {stage}, "overlap_comm": true}}')
    report = checked(write(tmp_path, text, "run.sh"))
    assert report.source.config["zero_optimization"]["overlap_comm"] is True
    assert not [one for one in report.found if one.violation.level == "error"]
    assert report.not_judged


def test_a_file_that_is_sourced_names_the_ds_config_or_is_named_as_missing(tmp_path):
    (tmp_path / "conf").mkdir()
    line = "deepspeed --num_gpus 2 fit.py --deepspeed_config $THE_FILE\n"
    path = write(tmp_path, f"source $CONF/conf/names.sh\n{line}", "run.sh")
    with pytest.raises(RenderError, match="only the shell knows") as raised:
        checked(path)
    assert "$CONF/conf/names.sh, which line 1 sources, is not read" in raised.value.hint
    write(tmp_path / "conf", f"THE_FILE={write(tmp_path, RAW)}\n", "names.sh")
    assert checked(path).source.config == RAW


@pytest.mark.parametrize("folder", ["$PWD", "$(pwd)", '$(dirname "$0")', "$HOME/x"])
def test_a_file_behind_a_folder_of_the_shells_is_found(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"train_micro_batch_size_per_gpu": 2}, "mine.json")
    line = f"deepspeed --num_gpus 2 fit.py --deepspeed_config {folder}/mine.json\n"
    path = write(tmp_path, line, "run.sh").relative_to(tmp_path)
    if folder.startswith("$HOME"):
        with pytest.raises(RenderError, match="which only the shell knows"):
            checked(path)
    else:
        assert checked(path).found == ()


HANDED = """
import argparse
from transformers import Trainer, TrainingArguments
parser = argparse.ArgumentParser()
parser.add_argument("--engine-file")
options = parser.parse_args()
Trainer(args=TrainingArguments("out", bf16=True, deepspeed=options.engine_file))
"""


@pytest.mark.parametrize("handed", ["", "--engine-file zero.json"])
def test_a_file_that_the_script_hands_to_trainer_itself_is_not_judged_with_the_line(
    tmp_path, handed
):
    write(tmp_path, HANDED, "train.py")
    line = f"accelerate launch --num_processes 2 --use_deepspeed train.py {handed}\n"
    report = checked(write(tmp_path, line, "run.sh"))
    assert [one.what for one in report.not_judged] == handed.split()[1:]


BESIDE = {
    "hosts": "a slots=8\nb slots=8\n",
    "z.json": '{"bf16": {"enabled": true}, "train_batch_size": "auto", "zero_optimization": {}}',
    "ax.yml": "base_model: m\ndatasets: []\nbf16: true\n",
}


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "run.sh",
            "#SBATCH --nodes=3\ndeepspeed --hostfile hosts t.py --deepspeed z.json --bf16\n",
            [("file.idle_devices", 2)],
        ),
        ("run.sh", "accelerate launch -m axolotl.cli.train ax.yml --deepspeed z.json\n", []),
        (
            "acc.yaml",
            SECTION.format(precision="bf16", accumulation=1) + "  offload_param_device: gpu\n",
            [("schema.section_value", -1)],
        ),
    ],
)
def test_a_finding_stands_where_its_words_do(tmp_path, monkeypatch, name, text, found):
    monkeypatch.chdir(tmp_path)
    for other, content in {**BESIDE, name: text}.items():
        write(tmp_path, content, other)
    report = checked(Path(name))
    places = [(one.violation.rule, one.place.line) for one in report.found]
    n_lines = text.count("\n")
    assert places == [(rule, line if line > 0 else n_lines + 1 + line) for rule, line in found]
