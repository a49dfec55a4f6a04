"""What is said of an accelerate YAML, against the installed accelerate itself."""

import dataclasses
import os
from unittest import mock

import pytest
import yaml

from autotune.engines.deepspeed.sources.accelerate import (
    KINDS,
    PRECISIONS,
    SECTION_FIELDS,
    TOP_FIELDS,
    violations,
)

ACCUMULATION = "gradient_accumulation_steps"
PLAIN = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "DEEPSPEED",
    "mixed_precision": "bf16",
    "num_machines": 1,
    "num_processes": 2,
    "deepspeed_config": {"zero_stage": 2, "gradient_accumulation_steps": 4},
}


def file_with(**changes):
    """The plain file with fields of it, or of its section, changed; `...` takes one away."""
    data = PLAIN | {"deepspeed_config": dict(PLAIN["deepspeed_config"])}
    for name, value in changes.items():
        section = (
            data["deepspeed_config"] if name in SECTION_FIELDS or name == "zero_stge" else data
        )
        section[name] = value
        if value is ...:
            del section[name]
    return data


def launched(folder, data):
    """The variables that accelerate's launcher makes of a file, and the plugin made of these."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import DeepSpeedPlugin
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    path = folder / "accelerate.yaml"
    path.write_text(yaml.safe_dump(data))
    line = ["--config_file", str(path), "train.py"]
    with mock.patch.dict(os.environ):
        arguments, defaults, of_file = _validate_launch_command(
            launch_command_parser().parse_args(line)
        )
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if of_file else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        _, variables = prepare_deepspeed_cmd_env(arguments)
        os.environ.update(variables)
        int(variables.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", 1))  # accelerator.py does
        plugin = DeepSpeedPlugin()
        plugin.set_mixed_precision(variables["ACCELERATE_MIXED_PRECISION"])
    return variables, plugin.deepspeed_config


def told(data):
    return [one.rule for one in violations(data)]


def test_the_fields_are_those_of_the_installed_accelerate():
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import DistributedType, PrecisionType

    fields = {one.name for one in dataclasses.fields(ClusterConfig)}
    assert fields == TOP_FIELDS - {"dynamo_backend", "fp16"}
    flags = {action.dest for action in launch_command_parser()._actions}
    assert flags >= SECTION_FIELDS
    assert {one.value for one in DistributedType} == set(KINDS)
    assert set(PrecisionType.list()) == set(PRECISIONS)


REFUSED = {
    "an unknown field": {"unknown_field": 1},
    "a field of the section above it": {"gradient_accumulation": 4},
    "no kind": {"distributed_type": ...},
    "a kind in lower case": {"distributed_type": "deepspeed"},
    "another kind": {"distributed_type": "FOO"},
    "a precision of torch's": {"mixed_precision": "bfloat16"},
    "no precision, without quotes": {"mixed_precision": False},
    "a stage that is no whole number": {"zero_stage": 2.0},
    "a stage in words": {"zero_stage": "two"},
    "accumulation that is auto": {"gradient_accumulation_steps": "auto"},
    "accumulation that is broken": {"gradient_accumulation_steps": 2.5},
    "clipping in words": {"gradient_clipping": "none"},
    "an init flag in words": {"zero3_init_flag": "maybe"},
}
TAKEN = {
    "the plain file": {},
    "an old field": {"fp16": True, "mixed_precision": ...},
    "no precision": {"mixed_precision": "no"},
    "a precision in capitals": {"mixed_precision": "BF16"},
    "no fields": {"zero_stage": ..., "gradient_accumulation_steps": ...},
    "nulls": {"zero_stage": None, "gradient_accumulation_steps": None, "gradient_clipping": None},
    "texts of numbers": {"zero_stage": "3", "gradient_clipping": "1e0"},
    "clipping that is auto": {"gradient_clipping": "auto"},
    "a device in capitals": {"offload_optimizer_device": "CPU"},
    "an init flag as text": {"zero3_init_flag": "yes"},
    "accumulation as text": {"gradient_accumulation_steps": "4"},
}


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_accelerate_refuses(tmp_path, changes):
    data = file_with(**changes)
    with pytest.raises((ValueError, AttributeError)):
        launched(tmp_path, data)
    assert told(data) == ["accelerate.refused"]


@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN)
def test_what_accelerate_takes(tmp_path, changes):
    data = file_with(**changes)
    launched(tmp_path, data)
    assert told(data) == []


@pytest.mark.parametrize("steps", [0, -1])
def test_an_accumulation_of_none_is_refused_by_deepspeed(tmp_path, steps):
    from deepspeed.runtime.config import DeepSpeedConfig

    data = file_with(gradient_accumulation_steps=steps)
    config = launched(tmp_path, data)[1]
    sizes = {"train_micro_batch_size_per_gpu": 1, "train_batch_size": config[ACCUMULATION]}
    with pytest.raises((AssertionError, TypeError), match=r"greater than 0|'>' not supported"):
        DeepSpeedConfig(config | sizes)
    assert told(data) == ["accelerate.refused"]


def test_no_number_of_processes_starts_none(tmp_path):
    from torch.distributed.run import determine_local_world_size

    data = file_with(num_processes=None)
    launched(tmp_path, data)
    with pytest.raises(ValueError, match="nproc_per_node"):
        determine_local_world_size(str(data["num_processes"]))
    assert told(data) == ["accelerate.refused"]
    assert list(violations(data, ranks=2)) == []


def test_less_than_one_machine_is_one(tmp_path):
    data = file_with(num_machines=0)
    assert launched(tmp_path, data) == launched(tmp_path, PLAIN)
    assert list(violations(data)) == []


def test_an_unknown_field_of_the_section_does_nothing(tmp_path):
    data = file_with(zero_stge=3)
    assert told(data) == ["accelerate.unknown_field"]
    assert launched(tmp_path, data)[1] == launched(tmp_path, PLAIN)[1]
    (one,) = violations(data)
    assert "did you mean zero_stage?" in one.fix


@pytest.mark.cases("name", "home")
def test_an_ignored_field_is_told_where_it_counts(name, home):
    data = PLAIN | {"deepspeed_config": PLAIN["deepspeed_config"] | {name: 1}}
    (one,) = violations(data)
    assert (one.rule, one.level) == ("accelerate.unknown_field", "warning")
    assert home in one.fix


@pytest.mark.cases("field", "fix")
def test_a_precision_in_the_section_is_wanted_only_where_it_is_on(field, fix):
    data = PLAIN | {"deepspeed_config": PLAIN["deepspeed_config"] | field}
    assert [one.fix for one in violations(data)] == [fix]


def test_a_field_of_the_section_at_the_top_is_sent_there():
    (one,) = violations(PLAIN | {"zero3_init_flag": True})
    assert one.fix == "move zero3_init_flag into deepspeed_config"


@pytest.mark.parametrize("kind", ["optimizer", "param"])
def test_the_path_of_a_disk_is_lost(tmp_path, kind):
    fields = {f"offload_{kind}_device": "nvme", f"offload_{kind}_nvme_path": "/disk"}
    data = file_with(zero_stage=3, **fields)
    assert told(data) == ["accelerate.nvme_path_lost"]
    section = launched(tmp_path, data)[1]["zero_optimization"][f"offload_{kind}"]
    assert section == {"device": "nvme", "nvme_path": "none"}


def test_clipping_that_is_off_is_lost(tmp_path):
    data = file_with(gradient_clipping=0.0)
    assert told(data) == ["accelerate.clipping_lost"]
    assert "gradient_clipping" not in launched(tmp_path, data)[1]


def test_compilation_is_lost(tmp_path):
    data = file_with(dynamo_config={"dynamo_backend": "INDUCTOR"})
    assert told(data) == ["accelerate.compile_lost"]
    assert not [name for name in launched(tmp_path, data)[0] if "DYNAMO" in name]
    assert told(file_with(dynamo_backend="NO")) == []


def test_a_file_for_something_else_is_not_read_so_closely():
    data = file_with(distributed_type="FSDP", zero_stge=3)
    assert told(data) == []
    assert told({"compute_environment": "AMAZON_SAGEMAKER", "anything": 1}) == []


@pytest.mark.parametrize(("version", "is_refused"), [(2, True), (1, False)])
def test_fsdp2_needs_a_size_to_shard_over(version, is_refused):
    sizes = {"parallelism_config_tp_size": 8}
    data = file_with(distributed_type="FSDP", parallelism_config=sizes)
    found = violations(data | {"fsdp_config": {"fsdp_version": version}}, ranks=8)
    assert any("nothing to shard over" in one.message for one in found) == is_refused


@pytest.mark.cases("sizes", "is_taken")
def test_sizes_that_the_ranks_do_not_make(sizes, is_taken):
    given = {f"parallelism_config_{name}": size for name, size in sizes.items()}
    found = violations(file_with(parallelism_config=given))
    assert ("parallelism_config" not in {at for one in found for at in one.at}) == is_taken


@pytest.mark.parametrize("given", [True, ["sp_size"], {}, None])
def test_sizes_that_are_none(given):
    assert told(file_with(parallelism_config=given)) == []


@pytest.mark.parametrize(
    ("size", "fix"),
    [("sp_size", "set sp_size to a divisor of 8"), ("tp_size", "set sizes whose product is 8")],
)
def test_sizes_are_those_of_the_launch(size, fix):
    data = file_with(parallelism_config={f"parallelism_config_{size}": 3})
    assert [one.fix for one in violations(data, ranks=8)] == [fix]
    assert list(violations(data, ranks=3)) == []
