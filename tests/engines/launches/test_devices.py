"""Devices that a launch leaves visible against its ranks, by each launcher."""

import pytest

from autotune.app.check import CheckFlags, check_files
from tests.check.files import checked, messages, rules, write

CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
RULE = "file.visible_devices"


def said(tmp_path, line: str, **how: object) -> str:
    path = write(tmp_path, CONFIG)
    return messages(checked(path, launch=f"{line} --deepspeed_config {path}", **how), RULE)


@pytest.mark.cases("line")
def test_ranks_without_a_device_are_told(tmp_path, line):
    told = said(tmp_path, line)
    assert "leaves 3 of a node's devices visible, and the line starts 6 ranks" in told
    assert "ranks from 3 on end with an invalid device ordinal" in told
    assert "start 3 ranks a node" in told


@pytest.mark.cases("line")
def test_devices_that_suffice_or_that_nobody_knows_are_not(tmp_path, line):
    assert said(tmp_path, line) == ""


def test_deepspeeds_launcher_takes_devices_from_one_place(tmp_path):
    ignored = said(tmp_path, "CUDA_VISIBLE_DEVICES=2,3 deepspeed --num_gpus 2 run.py")
    assert "DeepSpeed's launcher ignores the variable" in ignored
    assert "--include localhost:2,3" in ignored
    twice = said(tmp_path, "CUDA_VISIBLE_DEVICES=2,3 deepspeed --include localhost:0,1 run.py")
    assert "takes the devices that --include leaves; leave one of the two out" in twice
    refused = said(tmp_path, "deepspeed --include localhost:0,1 --num_gpus 4 run.py")
    assert "refuses the two together; leave --num_gpus out" in refused


def test_a_shell_file_exports_them_and_is_named(tmp_path):
    write(tmp_path, CONFIG)
    text = (
        "#!/bin/bash\nexport CUDA_VISIBLE_DEVICES='0, 1'\nRANKS=4\n"
        "torchrun --nproc_per_node $RANKS run.py --deepspeed_config ds_config.json\n"
    )
    path = write(tmp_path, text, "run.sh")
    report = checked(path)
    assert messages(report, RULE).startswith("CUDA_VISIBLE_DEVICES=0,1 leaves 2")
    (place,) = (one.place for one in report.found if one.violation.rule == RULE)
    assert (place.file, place.line) == (path, 4)
    assert rules(checked(write(tmp_path, text.replace("S=4", "S=2"), "run.sh"))) == []


def test_the_yaml_of_accelerate_names_them(tmp_path):
    text = (
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 1\n"
        "num_processes: 4\ngpu_ids: '0,1,2'\ndeepspeed_config: {zero_stage: 2}\n"
    )
    report = checked(write(tmp_path, text, "accelerate.yaml"))
    assert "gpu_ids=0,1,2 leaves 3" in messages(report, RULE)
    assert "rank 3 ends" in messages(report, RULE)


def test_a_launch_of_megatrons_is_asked_the_same(tmp_path):
    path = tmp_path / "run.sh"
    path.write_text(
        "CUDA_VISIBLE_DEVICES=0 torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 "
        "--hidden-size 8 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
        "--micro-batch-size 1 --global-batch-size 2 --mock-data --tokenizer-type NullTokenizer "
        "--vocab-size 9\n"
    )
    (report,) = check_files([str(path)], CheckFlags(megatron_release="0.16")).reports
    assert "CUDA_VISIBLE_DEVICES=0 leaves 1" in messages(
        report, "megatron.environment.visible_devices"
    )


_ON_TWO = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_machines: 2\n"
    "num_processes: 16\ndeepspeed_config: {zero_stage: 2%s}\n"
)


@pytest.mark.cases("more", "line", "found")
def test_accelerates_nodes_are_started_by_hosts_or_by_hand(tmp_path, more, line, found):
    path = write(tmp_path, _ON_TWO % more, "accelerate.yaml")
    launch = f"accelerate launch --config_file {path} {line} t.py" if line else None
    assert rules(checked(path, launch=launch)) == found


@pytest.mark.cases("line", "world", "told")
def test_devices_are_ranks_where_nothing_else_counts_them(tmp_path, line, world, told):
    path = write(tmp_path, CONFIG)
    report = checked(path, launch=f"{line} --deepspeed {path}")
    assert report.world == world
    found = messages(report, "file.program_refuses")
    assert (told in found) if told else found == ""
    run = write(tmp_path, f"\n{line} --deepspeed {path}\n", "run.sh")
    places = [one.place for one in checked(run).found if one.violation.rule.startswith("file.")]
    assert [(one.file, one.line) for one in places] == [(run, 2)] * bool(told)


@pytest.mark.cases("before", "line")
def test_ranks_that_the_shell_alone_knows_are_open(tmp_path, before, line):
    write(tmp_path, CONFIG)
    text = f"export CUDA_VISIBLE_DEVICES=0,1\n{before}\n{line} --deepspeed ds_config.json\n"
    report = checked(write(tmp_path, text, "run.sh"))
    assert (report.world, messages(report, "file.program_refuses")) == (None, "")


def test_deepspeeds_launcher_starts_all_nodes_from_one_task(tmp_path):
    write(tmp_path, CONFIG)
    write(tmp_path, "a slots=8\nb slots=8\n", "hosts")
    line = "deepspeed --hostfile hosts%s run.py --deepspeed_config ds_config.json\n"
    text = f"#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun {line}"
    told = messages(checked(write(tmp_path, text % "", "run.sh")), "file.tasks")
    assert "it starts those of all nodes itself; leave srun out" in told
    assert rules(checked(write(tmp_path, text % " --no_ssh", "run.sh"))) == []


@pytest.mark.cases("text", "n_broken")
def test_two_launches_of_a_machine_meet_at_ports_apart(tmp_path, text, n_broken):
    write(tmp_path, CONFIG)
    for line in ("torchrun --nproc_per_node 2", "deepspeed --include localhost:4,5"):
        text = text.replace(line.split()[0].upper(), line)
    text = text.replace("RUN", "run.py --deepspeed_config ds_config.json")
    reports = check_files([str(write(tmp_path, text, "run.sh"))], CheckFlags()).reports
    assert sum("file.tasks" in rules(report) for report in reports) == n_broken
