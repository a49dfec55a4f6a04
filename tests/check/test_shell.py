"""`check` of a shell file: the configuration that its launch line names, with its flags."""

import pytest

from autotune.engines.deepspeed.sources.kinds import NotADsConfigError, NotFollowedError
from autotune.engines.deepspeed.sources.source import read
from tests.check.files import AUTO, checked, rules, write


def test_a_line_that_a_backslash_continues_tells_its_ranks(tmp_path):
    path = write(tmp_path, {"train_batch_size": 8}, "ds.json")
    assert read(path, launch="mpirun -np 4 \\\n python t.py --deepspeed_config ds.json").world == 4


def test_a_shell_file_of_something_else(tmp_path):
    with pytest.raises(NotADsConfigError, match="without a launch line"):
        read(write(tmp_path, "echo deepspeed\n", "run.sh"))


@pytest.mark.parametrize(
    "line", ["deepspeed main.py --lr 1e-4", "uv run main.py --zero_stage 3 --lr 1e-4"]
)
def test_a_script_that_makes_its_configuration_is_sent_to_diagnose(tmp_path, line):
    told = "line 2 names no ds_config: if main.py trains with DeepSpeed, its code"
    with pytest.raises(NotADsConfigError, match=told) as caught:
        read(write(tmp_path, f"cd work\n{line}\n", "run.sh"))
    assert "autotune diagnose --" in caught.value.hint


def test_a_line_that_an_option_chooses_is_said_once(tmp_path):
    text = 'case "$1" in\n  --full) ARGS="--deepspeed ds.json" ;;\nesac\n'
    path = write(tmp_path, f"{text}torchrun train.py --bf16 True $ARGS\n", "run.sh")
    with pytest.raises(NotADsConfigError, match="line 4 starts train") as raised:
        read(path)
    assert raised.value.hint == "line 1 decides by `case`: say the launch with --launch"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.sbatch", 'srun --ntasks-per-node=1 bash "$PWD/launch.sh" "$@"\n'),
        ("sky.yaml", "name: x\nresources: {}\nrun: |\n  cd .\n  bash launch.sh\n"),
    ],
)
def test_a_launch_that_another_file_starts_is_judged(tmp_path, monkeypatch, name, text):
    """Of a script that says what it reads: by a literal, or in a file of its arguments."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path, AUTO, "ds.json")
    write(tmp_path, 'open("settings.json"), parse(args_filename="my.args")\n', "t.py")
    write(tmp_path, "--deepspeed ds.json\n--bf16 true\n", "my.args")
    write(tmp_path, 'exec torchrun --nproc-per-node 8 "${SCRIPT:-t.py}" "$@"\n', "launch.sh")
    source = read(write(tmp_path, text, name))
    assert (source.path.name, source.world) == ("ds.json", 8)
    assert source.arguments["bf16"] is True


def test_a_script_with_an_accelerator_and_a_trainer_is_trainers(tmp_path):
    """It fills in what an `Accelerator` alone refuses."""
    text = "from accelerate import Accelerator\nfrom trl import {0}\nAccelerator()\n{0}()\n"
    write(tmp_path, AUTO | {"optimizer": {"type": "Adam", "params": {"eps": "auto"}}}, "ds.json")
    line = "accelerate launch --deepspeed_config_file ds.json {}.py\n"
    for name, consumer in (("RewardTrainer", "trainer"), ("RewardConfig", "accelerate")):
        write(tmp_path, text.format(name), f"{name}.py")
        report = checked(write(tmp_path, line.format(name), "run.sh"))
        assert report.source.consumer == consumer
        assert ("huggingface.auto_not_filled" in rules(report)) == (consumer == "accelerate")


_LAUNCH = "deepspeed --num_gpus 8 t.py --deepspeed_config"


@pytest.mark.parametrize(
    ("second", "error"),
    [
        ("gone.json", "'gone.json', which is not there"),
        ("broken.json", "broken.json: not valid JSON"),
        ("model.json", "model.json: is no DeepSpeed configuration"),
    ],
)
def test_a_launch_that_cannot_be_read_is_an_error_beside_one_that_can(tmp_path, second, error):
    write(tmp_path, {"train_batch_size": 8}, "ds.json")
    write(tmp_path, "{", "broken.json")
    write(tmp_path, {"hidden_size": 8}, "model.json")
    text = f"{_LAUNCH} ds.json\n{_LAUNCH} {second}\n{_LAUNCH} $OPEN\n"
    source = read(write(tmp_path, text, "run.sh"))
    (failed,) = source.failed_launches
    assert error in failed.message
    lost = [one.what for one in source.not_judged]
    assert lost == ["the launch of line 2", "the launch of line 3"]


def test_accelerates_file_without_deepspeed_beside_another_launch_is_said(tmp_path):
    write(tmp_path, {"train_batch_size": 8}, "ds.json")
    write(tmp_path, "distributed_type: FSDP\nnum_processes: 8\n", "fsdp.yaml")
    text = f"{_LAUNCH} ds.json\naccelerate launch --config_file fsdp.yaml t.py\n"
    source = read(write(tmp_path, text, "run.sh"))
    assert source.failed_launches == ()
    assert [one.what for one in source.not_judged] == ["the launch of line 2"]


@pytest.mark.parametrize(
    ("arguments", "is_read"),
    [("--deepspeed ds.json  # Bob's\n", True), ("--deepspeed ds.json --name Bob's\n", False)],
)
def test_a_file_of_arguments_has_comments_and_may_not_be_readable(tmp_path, arguments, is_read):
    write(tmp_path, AUTO, "ds.json")
    write(tmp_path, 'parse(args_filename="my.args")\n', "t.py")
    write(tmp_path, arguments, "my.args")
    path = write(tmp_path, "torchrun --nproc-per-node 8 t.py\n", "run.sh")
    if is_read:
        assert read(path).path.name == "ds.json"
    else:
        with pytest.raises(NotADsConfigError, match="without a launch line"):
            read(path)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("run: deepspeed t.py\n", 1),
        ("name: x\nrun: deepspeed t.py\n", 2),
        ("name: x\nrun: |\n  cd .\n  deepspeed t.py\n", 4),
    ],
)
def test_lines_of_a_job_are_those_of_its_yaml(tmp_path, text, line):
    with pytest.raises(NotFollowedError, match=f"line {line} names no ds_config"):
        read(write(tmp_path, text, "job.yaml"))
