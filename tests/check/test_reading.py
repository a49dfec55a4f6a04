"""What a file is, and where the DeepSpeed configuration in it stands: one example of each kind."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.base.errors import JobError, RenderError
from autotune.base.user_text import MAX_BYTES
from autotune.check import NotADsConfigError, read, read_all
from autotune.engines.deepspeed.sources.consumers import Consumer, inserted
from tests import forked_children
from tests.cases import data_beside
from tests.check.files import AUTO, checked, messages, rules, write

DATA = data_beside(__file__)

RAW = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
NOTHING = {"gradient_accumulation_steps": 1}


@pytest.mark.cases("name", "content", "kind")
def test_a_file_that_holds_none_is_told_in_one_line(tmp_path, name, content, kind):
    text = content if isinstance(content, str) else _text(name, content)
    path = write(tmp_path, text, name)
    with pytest.raises(NotADsConfigError) as raised:
        read(path)
    assert kind in raised.value.message
    assert raised.value.message.startswith(f"{path}: is no DeepSpeed configuration")
    assert "\n" not in raised.value.message


def _text(name, content):
    return json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)


@pytest.mark.cases("content")
def test_a_ds_config_is_one_with_few_keys_and_misspelt_ones(tmp_path, content):
    assert read(write(tmp_path, content)).config == content


@pytest.mark.parametrize(
    ("content", "at"),
    [
        ({"model": {"n": 1}, "ds_cfg": RAW}, ("ds_cfg",)),
        ({"model": {"n": 1}, "run": {"deepspeed": NOTHING}}, ("run", "deepspeed")),
        ({"a": {"b": {"zero_optimization": {"stage": 1}, "lr": 1}}}, ("a", "b")),
        ({"runs": [{"deepspeed-config": RAW}]}, ("runs", "[0]", "deepspeed-config")),
    ],
)
def test_a_section_at_depth_is_found(tmp_path, content, at):
    for name in ("x.json", "x.yaml"):
        source = read(write(tmp_path, _text(name, content), name))
        assert source.at == at
        assert "lr" not in source.config
        assert ".".join(at) in source.because


def test_a_section_at_depth_is_mended_there_and_in_a_list_is_not(tmp_path):
    wrong = RAW | {"zero_optimization": {"stage": 2, "overlap_com": True}}
    content = {"model": {"n": 1}, "run": {"ds_cfg": wrong}}
    report = checked(write(tmp_path, content))
    after = json.loads(report.fixed_text)
    assert after["run"]["ds_cfg"]["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert after["model"] == content["model"]
    report = checked(write(tmp_path, {"runs": [{"ds_cfg": wrong}]}))
    assert rules(report) == ["schema.unknown_key"]
    assert report.fixed_text is None


def test_several_sections_are_several_sources(tmp_path):
    write(tmp_path, RAW, "one.json")
    write(tmp_path, RAW, "two.json")
    content = {"small": {"deepspeed": RAW}, "large": {"deepspeed": AUTO}}
    path = write(tmp_path, content)
    found = read_all(path)
    assert [one.at for one in found] == [("small", "deepspeed"), ("large", "deepspeed")]
    assert [one.consumer for one in found] == [Consumer.DEEPSPEED, Consumer.TRAINER]
    with pytest.raises(JobError, match=r"holds 2 .* small\.deepspeed, large\.deepspeed"):
        read(path)
    sweep = {
        "method": "grid",
        "parameters": {"deepspeed": {"values": ["one.json", "two.json", "one.json"]}},
    }
    found = read_all(write(tmp_path, yaml.safe_dump(sweep), "sweep.yaml"))
    assert [one.path.name for one in found] == ["one.json", "two.json"]


def test_a_file_that_a_distribution_names_is_read(tmp_path):
    write(tmp_path, AUTO, "ds.json")
    told = {"model": "m", "dist_config": {"name": "deepspeed", "config_file": "ds.json"}}
    source = read(write(tmp_path, yaml.safe_dump(told), "train.yaml"))
    assert (source.path.name, source.consumer) == ("ds.json", Consumer.TRAINER)
    told["dist_config"]["name"] = "fsdp2"
    with pytest.raises(NotADsConfigError):
        read(write(tmp_path, yaml.safe_dump(told), "train.yaml"))


HYDRA = """\
defaults: [_self_]
model: {_target_: models.Net}
ds_cfg:
  train_micro_batch_size_per_gpu: 1
  zero_optimization: {stage: 2, reduce_bucket_size: 5e8, allgather_bucket_size: "5e8"}
"""


def test_each_reader_of_yaml_has_its_own_numbers(tmp_path):
    """OmegaConf reads 5e8 as a number, PyYAML as text; neither touches what stands in quotes."""
    zero = read(write(tmp_path, HYDRA, "hydra.yaml")).config["zero_optimization"]
    assert zero["reduce_bucket_size"] == 5e8
    assert zero["allgather_bucket_size"] == "5e8"
    plain = HYDRA.replace("defaults: [_self_]\nmodel: {_target_: models.Net}", "seed: 1")
    zero = read(write(tmp_path, plain, "plain.yaml")).config["zero_optimization"]
    assert zero["reduce_bucket_size"] == "5e8"
    factory = "finetuning_type: lora\ncutoff_len: 8\nlearning_rate: 1e-4\ndeepspeed:\n" + "".join(
        f"  {line}\n" for line in HYDRA.splitlines()[3:]
    ).replace("    ", "  ")
    source = read(write(tmp_path, factory, "factory.yaml"))
    assert source.reader == "LLaMA-Factory"
    assert source.config["zero_optimization"]["reduce_bucket_size"] == 5e8
    assert source.arguments["learning_rate"] == 1e-4


def test_an_interpolation_is_known_at_run_time_only(tmp_path):
    text = HYDRA.replace("_gpu: 1", "_gpu: ${batch}").replace("stage: 2", 'stage: "${stage}"')
    report = checked(write(tmp_path, text, "hydra.yaml"))
    assert report.unknown == ("train_micro_batch_size_per_gpu", "zero_optimization.stage")
    assert rules(report) == ["schema.section_value"]
    assert "allgather_bucket_size" in messages(report, "schema.section_value")


def test_accelerates_values_go_through_text(tmp_path):
    """Its launcher puts them into the environment, and DeepSpeedPlugin reads them again."""
    section = {
        "zero_stage": "3",
        "gradient_clipping": "1e-1",
        "gradient_accumulation_steps": "4",
        "offload_optimizer_device": "NVME",
        "offload_optimizer_nvme_path": "/nvme",
        "zero3_save_16bit_model": "True",
    }
    file = {
        "distributed_type": "DEEPSPEED",
        "deepspeed_config": section,
        "mixed_precision": "bf16",
    }
    path = write(tmp_path, yaml.safe_dump(file), "accelerate.yaml")
    source = read(path)
    zero = source.config["zero_optimization"]
    assert zero["stage"] == 3
    assert zero["offload_optimizer"] == {"device": "nvme", "nvme_path": "none"}
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True
    assert source.config["gradient_clipping"] == 0.1
    assert source.config["gradient_accumulation_steps"] == 4
    assert source.accelerate.data == file
    line = "accelerate launch --zero_stage 1 --gradient_clipping 2 train.py"
    source = read(path, launch=line)
    assert source.config["zero_optimization"]["stage"] == 1
    assert source.config["gradient_clipping"] == 2.0


LAUNCHED = """\
import json, os, sys
from accelerate.commands import launch
from accelerate.utils.launch import prepare_deepspeed_cmd_env

parser = launch.launch_command_parser()
given, _, _ = launch._validate_launch_command(
    parser.parse_args(["--config_file", sys.argv[1], "train.py"])
)
given.deepspeed_fields_from_accelerate_config = ""
os.environ.update(prepare_deepspeed_cmd_env(given)[1])
from accelerate.utils import DeepSpeedPlugin

named = sys.argv[2] if len(sys.argv) > 2 else None
plugin = DeepSpeedPlugin(hf_ds_config=named)
plugin.set_mixed_precision(os.environ["ACCELERATE_MIXED_PRECISION"])
config = plugin.deepspeed_config
del config["steps_per_print"]
print(json.dumps(config))
"""
"""What accelerate's launcher and its plugin make of a YAML, up to `deepspeed.initialize`."""


def _made_by_accelerate(path, *more):
    paths = map(str, (path, *more))
    done = forked_children.run_code(LAUNCHED, *paths, folder=path.parent, variables={})
    assert done.returncode == 0, done.stderr[-2000:]
    made = json.loads(done.stdout.splitlines()[-1])
    off = [name for name in ("fp16", "bf16") if made[name] == {"enabled": False}]
    for name in off:
        del made[name]
    for section in ("offload_optimizer", "offload_param"):
        inner = made["zero_optimization"].get(section)
        if inner is not None and inner.get("nvme_path") is None:
            inner.pop("nvme_path", None)
    return made


@pytest.mark.cases("section", "precision")
def test_the_section_is_what_the_installed_accelerate_makes_of_it(tmp_path, section, precision):
    pytest.importorskip("accelerate")
    file = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED"}
    ranks = {"num_processes": 2, "num_machines": 1, "machine_rank": 0}
    told = file | ranks | {"deepspeed_config": section, "mixed_precision": precision}
    source = read(path := write(tmp_path, yaml.safe_dump(told), "accelerate.yaml"))
    added = inserted(source.config, source.consumer, source.mixed_precision)
    assert {**source.config, **added} == _made_by_accelerate(path)


def test_what_accelerate_inserts_is_what_the_installed_one_inserts(tmp_path):
    """An accumulation of 1, and the section of the precision that it is told."""
    pytest.importorskip("accelerate")
    inner = write(tmp_path, RAW)
    file = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "DEEPSPEED"}
    told = file | {"num_processes": 2, "num_machines": 1, "mixed_precision": "fp16"}
    path = write(tmp_path, yaml.safe_dump(told), "accelerate.yaml")
    source = read(inner, accelerate=path)
    added = inserted(source.config, source.consumer, "fp16")
    assert set(added) == {"gradient_accumulation_steps", "fp16"}
    assert {**source.config, **added} == _made_by_accelerate(path, inner)


NEOX = DATA["NEOX"]


def test_gpt_neox_hands_over_some_of_its_keys(tmp_path):
    path = write(tmp_path, NEOX, "125M.yml")
    source = read(path, world=8)
    assert source.config == {
        "train_batch_size": 32,
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": 1, "reduce_bucket_size": "5e8"},
        "bf16": {"enabled": True},
        "wall_clock_breakdown": True,
    }
    assert (source.reader, source.consumer) == ("GPT-NeoX", Consumer.DEEPSPEED)
    assert (source.world, source.world_because) == (4, "8 ranks, 2 to a model")
    found = checked(path, world=8)
    assert rules(found) == ["schema.section_value", "batch.product"]
    assert "4 * 1 * 4 = 16" in messages(found, "batch.product")
    assert found.fixed_text is None
    assert [one.what for one in found.not_judged] == ["GPT-NeoX's own checks"]


def test_a_part_of_gpt_neox_without_batch_sizes_has_them_elsewhere(tmp_path):
    cut = NEOX.replace('"train_micro_batch_size_per_gpu": 4, "train_batch_size": 32,', "")
    path = write(tmp_path, cut.replace("5e8", "500000000"), "125M.yml")
    report = checked(path, world=8)
    assert report.unknown == ("train_micro_batch_size_per_gpu",)
    assert rules(report) == []
    part = "train-iters: 5\npos-emb: none\nvocab-file: a\ntokenizer-type: b\n"
    with pytest.raises(NotADsConfigError, match="a part of a GPT-NeoX configuration"):
        read(write(tmp_path, part, "local.yml"))


LIGHTNING = """\
trainer:
  accelerator: gpu
  devices: 8
  precision: bf16-mixed
  accumulate_grad_batches: 2
  strategy: deepspeed_stage_3_offload
model: {class_path: Net}
"""


def test_lightning_makes_the_configuration_of_a_named_strategy(tmp_path):
    source = read(write(tmp_path, LIGHTNING, "config.yaml"))
    assert (source.reader, source.consumer, source.world) == ("Lightning", Consumer.DEEPSPEED, 8)
    assert source.config["gradient_accumulation_steps"] == 2
    assert source.config["bf16"] == {"enabled": True}
    assert source.config["zero_optimization"]["stage"] == 3
    assert source.config["zero_optimization"]["offload_param"]["device"] == "cpu"
    assert source.unknown == {("train_micro_batch_size_per_gpu",)}
    with pytest.raises(NotADsConfigError, match="no key that only DeepSpeed has"):
        read(write(tmp_path, LIGHTNING.replace("deepspeed_stage_3_offload", "ddp"), "d.yaml"))


@pytest.mark.parametrize("has_file", [True, False])
def test_lightning_takes_a_configuration(tmp_path, has_file):
    config = {"zero_optimization": {"stage": 2, "overlap_com": True}} | NOTHING
    inner = str(write(tmp_path, config, "ds.json")) if has_file else config
    arguments = {"class_path": "lightning.pytorch.strategies.DeepSpeedStrategy"}
    strategy = arguments | {"init_args": {"config": inner}}
    text = yaml.safe_dump({"trainer": {"strategy": strategy, "gradient_clip_val": 0.5}})
    report = checked(write(tmp_path, text, "config.yaml"))
    assert rules(report) == ["schema.unknown_key", "lightning.accumulation"]
    assert report.source.config["gradient_clipping"] == 0.5
    assert report.source.path.name == ("ds.json" if has_file else "config.yaml")


@pytest.mark.cases("keys", "reader")
def test_readers_of_trainers_arguments_are_told_by_their_keys(tmp_path, keys, reader):
    write(tmp_path, AUTO, "ds.json")
    path = write(tmp_path, yaml.safe_dump(keys | {"deepspeed": "ds.json"}), "train.yaml")
    source = read(path)
    assert (source.consumer, source.reader) == (Consumer.TRAINER, reader)


def test_a_name_of_ms_swifts_is_a_file_of_its_package(tmp_path, monkeypatch):
    path = write(tmp_path, "train_type: full\ndeepspeed: zero2\n", "sft.yaml")
    assert read(path).config["zero_optimization"]["stage"] == 2
    launch = write(tmp_path, "NPROC_PER_NODE=2 swift sft --deepspeed zero3_offload\n", "run.sh")
    report = checked(launch)
    assert (rules(report), report.not_judged) == ([], ())
    package = tmp_path / "swift"
    (package / "config").mkdir(parents=True)
    (package / "__init__.py").touch()
    write(package / "config", AUTO, "zero2.json")
    monkeypatch.syspath_prepend(tmp_path)
    source = read(path)
    assert source.path == package / "config" / "zero2.json"
    assert (source.reader, source.consumer) == ("ms-swift", Consumer.TRAINER)


def test_megatron_deepspeed_does_not_compare_its_flags_with_the_file(tmp_path):
    config = RAW | {"train_batch_size": 32, "gradient_accumulation_steps": 8}
    path = write(tmp_path, config)
    line = (
        f"deepspeed --num_gpus 8 pretrain_gpt.py --tensor-model-parallel-size 2 "
        f"--micro-batch-size 4 --global-batch-size 32 --deepspeed --deepspeed_config {path} "
        "--no-pipeline-parallel --zero-stage 3"
    )
    report = checked(path, launch=line)
    assert report.source.reader == "Megatron-DeepSpeed"
    assert (report.source.world, report.source.world_because) == (4, "8 ranks, 2 to a model")
    assert rules(report) == [
        "megatron_deepspeed.micro_batch_size",
        "megatron_deepspeed.zero_stage",
    ]
    assert "--micro-batch-size 4 against" in messages(
        report, "megatron_deepspeed.micro_batch_size"
    )
    assert report.exit_code(fixed=False) == 0
    pipeline = line.replace("--no-pipeline-parallel", "--pipeline-model-parallel-size 2")
    layout = read(path, launch=pipeline).layout
    assert (layout.pp, layout.tp) == (2, 2)
    unknown = line.replace("-size 2", "-size $TP")
    assert read(path, launch=unknown).world is None


HJSON = """\
{
  // of one rank
  "train_micro_batch_size_per_gpu": 1,
  "zero_optimization": {"stage": 2,},
}
"""


def test_hjson_is_read_and_refused_for_who_reads_json_alone(tmp_path):
    pytest.importorskip("hjson")
    path = write(tmp_path, HJSON)
    report = checked(path)
    assert (report.source.config, report.source.syntax) == (RAW, "hjson")
    assert rules(report) == []
    report = checked(path, consumer=Consumer.TRAINER)
    assert rules(report) == ["file.hjson"]
    assert "trainer reads JSON alone" in messages(report, "file.hjson")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('\n "bf16": {"enabled": false}', "a comma is missing at its end"),
        ("  # last key", "a comment"),
        ("  // last key", "a comment"),
    ],
)
def test_what_keeps_a_text_from_being_json_is_told_with_its_line(tmp_path, text, why):
    pytest.importorskip("hjson")
    path = write(tmp_path, f'{{\n "train_micro_batch_size_per_gpu": 1{text}\n}}')
    report = checked(path, consumer=Consumer.TRAINER)
    (found,) = (one for one in report.found if one.violation.rule == "file.hjson")
    assert found.place.line == 2
    assert f"line 2: {why}" in found.violation.message


@pytest.mark.cases("text", "said")
def test_what_no_reader_takes_is_named(tmp_path, text, said):
    pytest.importorskip("hjson")
    with pytest.raises(RenderError, match=said):
        read(write(tmp_path, text))


def test_a_large_file_is_refused_at_once(tmp_path):
    path = write(tmp_path, '{"a": "' + "x" * MAX_BYTES + '"}')
    with pytest.raises(RenderError, match="larger than 4 MiB"):
        read(path)


def test_a_long_yaml_is_refused_before_it_is_read(tmp_path):
    lines = "".join(f"key_{i}: [1, 2, {{a: b}}]\n" for i in range(12_000))
    with pytest.raises(NotADsConfigError, match="no word in it is DeepSpeed's"):
        read(write(tmp_path, lines, "data.yaml"))
    with pytest.raises(RenderError, match="YAML of more than 256 KiB"):
        read(write(tmp_path, f"{lines}zero_optimization: {{stage: 1}}\n", "data.yaml"))


def test_nothing_waits_for_a_pipe_or_a_device(tmp_path):
    """A pipe without a writer would block whoever opens it."""
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    for path, kind in ((pipe, "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(RenderError, match=kind):
            read(path)
    with pytest.raises(RenderError, match="is a folder"):
        read(tmp_path)


def test_a_text_in_hand_is_read_under_its_name(tmp_path):
    path = tmp_path / "not_there.json"
    source = read(path, text=json.dumps(RAW))
    assert (source.config, source.path, source.can_write) == (RAW, path, False)


@pytest.mark.parametrize("text", [json.dumps(RAW), yaml.safe_dump(RAW), HJSON])
def test_standard_input_is_read_by_what_it_holds(monkeypatch, text):
    pytest.importorskip("hjson")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    source = read(Path("-"))
    assert source.config == RAW
    assert not source.can_write


def test_a_pipe_of_the_shell_is_read():
    code = (
        "import sys; from pathlib import Path; from autotune.check import read;"
        "print(read(Path(sys.argv[1])).config)"
    )
    command = f"{sys.executable} -c '{code}' <(echo '{json.dumps(RAW)}')"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(RAW)


HEAVY = (
    *("deepspeed", "jinja2", "numpy", "optuna", "pandas", "plotly", "psutil", "pyarrow"),
    *("pynvml", "torch", "transformers"),
)
"""All but pydantic, with which Typer converts flags."""


@pytest.mark.parametrize("command", [["check", "ds_config.json"], ["--help"]])
def test_nothing_heavy_is_imported(tmp_path, command):
    """`check` must answer while an editor waits."""
    write(tmp_path, RAW)
    code = (
        "import sys\nfrom autotune.cli import main\n"
        f"sys.argv = ['autotune', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "[]"


TRAINING = {"lr": 1e-3, "epochs": 3, "model": {"name": "vit"}}
"""What stands in everybody's training script."""


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train.yaml", TRAINING | {"gradient_accumulation": 4, "batch_size": 8}),
        ("train.json", TRAINING | {"gradient_accumulation": 4}),
        ("hparams.json", TRAINING | {"train_batch_size": 32}),
        ("clip.yaml", {"gradient_clip": 1.0, "train_batch": 8, "cfg": "x"}),
        ("engine.json", TRAINING | {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}),
        ("log.json", TRAINING | {"wandb": {"project": "x"}, "optimizer": "adam", "fp16": True}),
        ("memory.yaml", {"activation_checkpointing": True, "bf16": True, "layers": 2}),
        ("blocks.yaml", {"seed": 1, "activation_checkpoint": {"modules": ["a"], "mode": "full"}}),
        ("prompts.json", {}),
        ("state.json", {"train_batch_size": 8, "log_history": [], "global_step": 5}),
    ],
)
def test_what_everybodys_training_script_has_tells_no_ds_config(tmp_path, name, content):
    with pytest.raises(NotADsConfigError):
        read(write(tmp_path, _text(name, content), name))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ds_config.json", {}),
        ("zero2.json", TRAINING | {"train_batch_size": 8}),
        ("x.json", TRAINING | {"zero_optimization": {"stage": 1}}),
        ("x.json", TRAINING | {"zero_optimisation": {"stag": 1}, "steps_per_print": 5}),
        (
            "x.json",
            TRAINING | {"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {}}},
        ),
        ("x.json", {"flops_profiler": {"enabled": True}}),
    ],
)
def test_what_deepspeed_alone_has_tells_a_ds_config_beside_anything(tmp_path, name, content):
    assert read(write(tmp_path, content, name)).config == content


def test_a_foreign_file_that_names_a_file_elsewhere_holds_none(tmp_path):
    text = "services: {t: {image: x, environment: {DS_CONFIG: /opt/elsewhere/ds.json}}}\n"
    with pytest.raises(NotADsConfigError, match=r"it names /opt/elsewhere/ds\.json, which is not"):
        read(write(tmp_path, text, "docker-compose.yml"))


@pytest.mark.cases("flags", "changes", "is_refused")
def test_megatron_deepspeed_makes_its_optimizer_itself(tmp_path, flags, changes, is_refused):
    offloaded = {"stage": 1, "offload_optimizer": {"device": "cpu"}}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": offloaded,
    }
    line = (
        "deepspeed --num_gpus 2 pretrain_gpt.py --micro-batch-size 2 --deepspeed "
        f"--deepspeed_config ds.json {flags}"
    )
    report = checked(write(tmp_path, config | changes, "ds.json"), launch=line)
    assert ("megatron_deepspeed.cpu_optimizer" in rules(report)) is is_refused


@pytest.mark.cases("flags", "stage", "is_taken")
def test_experts_of_megatron_deepspeed_make_whole_groups(tmp_path, flags, stage, is_taken):
    config = {"train_batch_size": 4, "zero_optimization": {"stage": stage}}
    line = (
        "deepspeed --num_gpus 4 pretrain_gpt.py --num-layers 2 --deepspeed "
        f"--deepspeed_config ds.json {flags}"
    )
    report = checked(write(tmp_path, config, "ds.json"), launch=line)
    assert ("megatron_deepspeed.experts" not in str(rules(report))) is is_taken


def test_megatron_deepspeed_without_its_switch_reads_no_configuration(tmp_path):
    line = "deepspeed --num_gpus 4 pretrain_gpt.py --num-layers 2"
    path = write(tmp_path, {"train_batch_size": 4}, "ds.json")
    report = checked(path, launch=f"{line} --deepspeed_config ds.json")
    assert rules(report) == ["megatron_deepspeed.switched_off"]
    with pytest.raises(NotADsConfigError, match=r"Megatron-DeepSpeed .*without --deepspeed"):
        read(write(tmp_path, f"{line} --zero-stage 1\n", "run.sh"))


def test_a_hostfile_that_is_not_there_leaves_the_nodes_open(tmp_path):
    path = write(tmp_path, {"train_micro_batch_size_per_gpu": 4}, "ds.json")
    line = "deepspeed --hostfile none --num_nodes 2 train.py --deepspeed_config ds.json"
    (open_part,) = checked(path, launch=line).not_judged
    assert open_part.what == "the nodes of --hostfile"
