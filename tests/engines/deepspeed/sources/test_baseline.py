"""Files of DeepSpeed's consumers as a baseline: what they fill in is what the installed do."""

import json
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import JobError
from autotune.base.nested import look_up
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.sources.baseline import read_run
from tests import forked_children
from tests.cases import data_beside
from tests.jobs import CPU, tiny_job

DATA = data_beside(__file__)

AUTO = "auto"
HIDDEN = 64
AUTOS = {
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
    "bf16": {"enabled": AUTO},
    "fp16": {"enabled": AUTO},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu"},
        "reduce_bucket_size": AUTO,
        "stage3_prefetch_bucket_size": AUTO,
        "stage3_param_persistence_threshold": AUTO,
    },
}
ACCELERATE, AXOLOTL, FACTORY = (DATA[name] for name in ("ACCELERATE", "AXOLOTL", "FACTORY"))
ARGUMENTS = {"output_dir": "out", "deepspeed": "ds.json", "use_cpu": True}


def write(folder: Path, name: str, data) -> Path:
    path = folder / name
    text = data if isinstance(data, str) else yaml.safe_dump(data, sort_keys=False)
    path.write_text(json.dumps(data) if name.endswith(".json") else text)
    return path


def baseline(tmp_path, name, data, config=None, **job):
    write(tmp_path, "ds.json", AUTOS if config is None else config)
    path = write(tmp_path, name, data)
    return DeepSpeedEngine(tiny_job(tmp_path, **job), CPU).baseline(path)[1]


TRAINERS = DATA["TRAINERS"]
"""What the installed Trainer makes of a file of arguments, up to `deepspeed.initialize`."""


def made_by_trainer(path: Path) -> dict:
    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    done = forked_children.run_code(
        *(TRAINERS, str(path), str(HIDDEN)),
        folder=path.parent,
        variables={**alone, "MASTER_PORT": "0", "DS_ACCELERATOR": "cpu"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.cases("arguments", "config")
def test_what_trainer_fills_in_is_what_the_installed_one_does(tmp_path, arguments, config):
    pytest.importorskip("transformers")
    config = {"train_micro_batch_size_per_gpu": AUTO, **config}
    write(tmp_path, "ds.json", config)
    path = write(tmp_path, "args.yaml", {**ARGUMENTS, **arguments})
    ours, theirs = read_run(path, world=1, hidden=HIDDEN), made_by_trainer(path)
    for key in (
        *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
        *("gradient_clipping", "zero_optimization.stage", "zero_optimization.reduce_bucket_size"),
        *(
            "zero_optimization.offload_optimizer.device",
            "zero_optimization.stage3_prefetch_bucket_size",
        ),
        "zero_optimization.stage3_param_persistence_threshold",
    ):
        assert look_up(ours.config, key) == look_up(theirs, key), key
    for name in ("fp16", "bf16"):
        mine, yours = (bool(look_up(c, f"{name}.enabled")) for c in (ours.config, theirs))
        assert mine is yours or name not in theirs, name
    assert (ours.knobs["recompute"] == "full") is bool(theirs["recompute"])


def test_arguments_of_trainers(tmp_path):
    data = {
        **ARGUMENTS,
        "bf16": True,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "torch_compile": True,
        "optim": "adamw_torch",
    }
    config = {**AUTOS, "zero_optimization": {"stage": 1}}
    found = baseline(tmp_path, "args.yaml", data, config)
    values = found.values
    assert (values["zero.stage"], found.micro_batch, found.grad_accum) == (1, 2, 2)
    assert (values["recompute"], values["compile"]) == ("full", "torch")
    assert values["optimizer.implementation"] == "torch"
    again = baseline(tmp_path, "args.json", data, config)
    assert again == found


def test_trainers_defaults_count_where_nobody_says(tmp_path):
    data = {**ARGUMENTS, "bf16": True}
    assert baseline(tmp_path, "args.yaml", data, global_batch=16).micro_batch == 8
    with pytest.raises(JobError, match=r"8 \* 1 \* 2 = 16.*global batch is 8"):
        baseline(tmp_path, "args.yaml", data)


def test_what_a_consumer_would_not_train_is_refused(tmp_path):
    data = {**ACCELERATE, "deepspeed_config": {"zero_stage": 1}}
    with pytest.raises(JobError, match="starts 8 ranks"):
        baseline(tmp_path, "acc.yaml", {**data, "num_processes": 8})
    with pytest.raises(JobError, match="trains in fp32"):
        baseline(tmp_path, "acc.yaml", {**data, "mixed_precision": "no"})
    with pytest.raises(JobError, match="does not start DeepSpeed"):
        baseline(tmp_path, "acc.yaml", {**data, "distributed_type": "FSDP"})
    config = {**AUTOS, "train_micro_batch_size_per_gpu": 1}
    with pytest.raises(JobError, match="Trainer refuses"):
        baseline(tmp_path, "args.yaml", {**ARGUMENTS, "bf16": True}, config)


PREPARED = DATA["PREPARED"]
"""What the installed accelerate hands on: `Accelerator(gradient_accumulation_steps=1)`."""


def test_what_accelerate_fills_in_is_what_the_installed_one_does(tmp_path):
    pytest.importorskip("accelerate")
    section = {"zero_stage": 2, "offload_optimizer_device": "cpu"}
    path = write(tmp_path, "acc.yaml", {**ACCELERATE, "deepspeed_config": section})
    told = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "DS_ACCELERATOR": "cpu",
    }
    done = forked_children.run_code(PREPARED, json.dumps(told), folder=tmp_path, variables={})
    assert done.returncode == 0, done.stderr[-2000:]
    theirs = json.loads(done.stdout.splitlines()[-1])
    ours = read_run(path, world=2, hidden=HIDDEN).config
    for key in (
        *("gradient_accumulation_steps", "gradient_clipping", "bf16.enabled"),
        *("zero_optimization.stage", "zero_optimization.offload_optimizer.device"),
    ):
        assert look_up(ours, key) == look_up(theirs, key), key


@pytest.mark.cases("name", "data", "values")
def test_a_file_of_a_consumer(tmp_path, name, data, values):
    found = baseline(tmp_path, name, data)
    assert values.items() <= {**found.values, "grad_accum": found.grad_accum}.items()


@pytest.mark.cases("line", "micro", "stage")
def test_launch_lines(tmp_path, line, micro, stage):
    write(tmp_path, "run.yaml", FACTORY)
    write(tmp_path, "axolotl.yml", {**AXOLOTL, "micro_batch_size": 4, "batch_size": 4})
    write(tmp_path, "sft.yaml", {"output_dir": "out", "per_device_train_batch_size": 2})
    section = {"zero_stage": 1}
    if "sft.yaml" in line:
        section["gradient_accumulation_steps"] = 2
    write(tmp_path, "acc.yaml", {**ACCELERATE, "deepspeed_config": section})
    plain = {"train_batch_size": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    write(tmp_path, "plain.json", plain)
    found = baseline(tmp_path, "run.sh", f"#!/bin/bash\n# run\n{line} \\\n  --output_dir out\n")
    assert (found.micro_batch, found.values["zero.stage"]) == (micro, stage)


def test_arguments_without_a_configuration_are_no_baseline(tmp_path):
    with pytest.raises(JobError, match="arguments without a deepspeed key"):
        baseline(tmp_path, "args.yaml", {"output_dir": "out", "per_device_train_batch_size": 4})


def test_a_file_of_several_is_refused(tmp_path):
    line = "torchrun --nproc_per_node 2 t.py --deepspeed ds.json --bf16\n"
    with pytest.raises(JobError, match="holds 2 DeepSpeed configurations"):
        baseline(tmp_path, "run.sh", line * 2)
