"""What a launch line says of the world, the script and who reads the configuration."""

import pytest

from autotune.base.errors import JobError
from autotune.engines.deepspeed.sources.consumers import Consumer
from autotune.engines.deepspeed.sources.launch import read_launch
from autotune.engines.launches.line import typed


@pytest.mark.parametrize(
    ("line", "world", "per_node"),
    [
        ("deepspeed --num_gpus 4 train.py", 4, 4),
        ("deepspeed --num_gpus=4 --num_nodes 2 train.py", 8, 4),
        ("deepspeed --include localhost:0,2,3 train.py", 3, 3),
        ("deepspeed --include worker-0:0,1@worker-1:0,1 train.py", 4, 2),
        ("deepspeed --include worker-0@worker-1 train.py", None, None),
        ("deepspeed --hostfile hosts --num_gpus 4 train.py", None, 4),
        ("deepspeed train.py", None, None),
        ("torchrun --nproc_per_node 8 --nnodes=2 -m package.train --x 1", 16, 8),
        ("torchrun --nproc-per-node=gpu train.py", None, None),
        ("torchrun --nnodes 1:4 --nproc_per_node 8 train.py", None, 8),
        ("python -m torch.distributed.run --nproc_per_node 2 train.py", 2, 2),
        ("accelerate launch --num_processes 8 --num_machines 2 train.py", 8, 4),
        ("A=1 FORCE_TORCHRUN=1 llamafactory-cli train x.yaml", None, None),
        ("python train.py --num_gpus 4", None, None),
        ("uv run -- torchrun --nproc-per-node 4 train.py", 4, 4),
        ("env A=1 deepspeed --num_gpus 4 train.py", 4, 4),
        ("axolotl train x.yaml --launcher torchrun -- --nproc-per-node 4", 4, 4),
        ("axolotl train x.yaml --launcher=accelerate -- --num_processes 4", 4, None),
        ("axolotl train x.yaml -- --num_processes=4 --num_machines 2", 4, 2),
        ("axolotl train x.yaml --launcher python", None, None),
        ("axolotl train x.yaml", None, None),
        ("trl sft --config x.yaml --num_processes 4", 4, None),
    ],
)
def test_the_world(line, world, per_node):
    launch = read_launch(line)
    assert (launch.ranks.world, launch.ranks.per_node) == (world, per_node)


@pytest.mark.parametrize(
    ("line", "consumer", "config"),
    [
        ("deepspeed train.py --deepspeed ds.json --bf16", Consumer.TRAINER, "ds.json"),
        ("deepspeed train.py --deepspeed --deepspeed_config d.json", Consumer.DEEPSPEED, "d.json"),
        ("torchrun train.py --deepspeed_config=d.json", Consumer.DEEPSPEED, "d.json"),
        (
            "accelerate launch --use_deepspeed --deepspeed_config_file ds.json train.py",
            Consumer.ACCELERATE,
            "ds.json",
        ),
        (
            "python submit.py --num_nodes 4 --image i -- accelerate launch --use_deepspeed "
            "--deepspeed_config_file ds.json train.py",
            Consumer.ACCELERATE,
            "ds.json",
        ),
        ("torchrun --nproc_per_node 2 train.py", None, None),
    ],
)
def test_who_reads_the_configuration(line, consumer, config):
    launch = read_launch(line)
    assert (launch.consumer, launch.config) == (consumer, config)


def test_what_axolotl_hands_to_its_launcher_is_not_its_own():
    line = "axolotl train x.yaml --learning-rate 0.1 --launcher torchrun -- --nproc-per-node 4"
    launch = read_launch(line)
    assert launch.arguments == {"learning_rate": 0.1, "launcher": "torchrun"}
    assert (launch.kind, launch.named, launch.script) == ("torchrun", "x.yaml", "axolotl")


def test_the_script_has_its_own_arguments():
    line = "accelerate launch --config_file a.yaml --mixed_precision bf16 \\\n train.py"
    launch = read_launch(line + " --learning-rate 1e-5 --per_device_train_batch_size=4 --bf16 x")
    assert launch.accelerate_config == "a.yaml"
    assert launch.mixed_precision == "bf16"
    assert launch.arguments == {
        "learning_rate": 1e-5,
        "per_device_train_batch_size": 4,
        "bf16": "x",
    }


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ("torchrun --nproc_per_node -1 train.py", "--nproc_per_node: -1", "auto, gpu, cpu"),
        ("torchrun --nproc-per-node eight train.py", "--nproc_per_node: 'eight'", "auto, gpu"),
        ("torchrun --nnodes 0 train.py", "--nnodes: 0", "above 0"),
        ("torchrun --nnodes train.py", "--nnodes: True", "above 0"),
        ("deepspeed --num_gpus 0 train.py", "--num_gpus: 0", "above 0, or -1"),
        ("deepspeed --num_gpus 2 --num_nodes two train.py", "--num_nodes: 'two'", "-1"),
        ("accelerate launch --num_processes 2.5 train.py", "--num_processes: 2.5", "above 0"),
        (
            "accelerate launch --num_machines --multi_gpu train.py",
            "--num_machines: True",
            "above 0",
        ),
    ],
)
def test_a_count_that_is_none_is_named_with_what_is_allowed(line, said, hint):
    with pytest.raises(JobError) as raised:
        read_launch(line)
    assert said in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    "line",
    [
        "torchrun --nproc_per_node $GPUS --nnodes ${NODES:-1} train.py",
        "torchrun --nproc_per_node `nproc` train.py",
        "deepspeed --num_gpus -1 --num_nodes -1 train.py",
    ],
)
def test_what_only_the_machine_knows_is_no_error(line):
    launch = read_launch(line)
    assert (launch.ranks.world, launch.ranks.per_node) == (None, None)


@pytest.mark.parametrize("line", ["", "  "])
def test_a_line_that_says_nothing_is_refused(line):
    with pytest.raises(JobError, match="--launch is empty"):
        read_launch(line)


def test_quotes_that_do_not_close_are_named():
    with pytest.raises(JobError, match="No closing quotation"):
        read_launch("deepspeed 'train.py")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("1e-5", 1e-5), ("-1", -1), ("True", True), ("none", None), ("adamw", "adamw")],
)
def test_words_of_a_line_are_values(text, value):
    assert typed(text) == value
    assert type(typed(text)) is type(value)
