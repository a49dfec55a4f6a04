"""A trial writes where it was told: no path of a configuration reaches its ranks."""

import json
from pathlib import Path

import pytest

from autotune.base.nested import look_up, merge
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.outputs import without_outputs
from tests.jobs import CPU, canonical_candidate, tiny_job

TEMPLATES = Path(__file__).parents[3] / "templates"

WRITTEN = [
    ("flops_profiler.output_file", "/home/me/flops.txt"),
    ("flops_profiler.output_file", "flops"),
    ("checkpoint.path", "saved"),
    ("checkpoint.writer.log_dir", "saved"),
    ("checkpoint.anything", "/home/me/saved"),
    ("checkpoint.anything", "../saved"),
    ("checkpoint.anything", "~me/saved"),
    ("checkpoint.anything", "$HOME"),
    ("checkpoint.anything", "saved/here"),
    ("checkpoint.anything", "C:\\saved"),
    ("checkpoint.anything", "s3://bucket/saved"),
    ("checkpoint.anything", "trace.json"),
    ("comms_logger.output_file", "comms"),
    ("comms_logger.outputFolder", "comms"),
    ("compile.kwargs.options.cache-dir", "cache"),
    ("compile.kwargs.options.trace", ["no", {"file": "x"}]),
    ("activation_checkpointing.profile_path", "profile"),
    ("data_efficiency.data_sampling.curriculum_learning.data_cluster_path", "clusters"),
    ("zero_optimization.log_folder", "zero"),
    ("zero_optimization.offload_optimizer.other_path", "/nvme"),
    ("a_plugin.of.somebody.debug", "/tmp/debug"),
    ("checkpoint.location", "saved"),
    ("checkpoint.destination", "saved"),
    ("checkpoint.root", "saved"),
    ("checkpoint.save_to", "saved"),
    ("checkpoint.saveTo", "saved"),
    ("checkpoint.export-to", "saved"),
    ("checkpoint.savedir", "saved"),
    ("checkpoint.directories", ["a", "b"]),
    ("profiler.filepath", "x"),
    ("profiler.dumpfile", "x"),
    ("profiler.LOGDIR", "x"),
    ("profiler.traces", "x"),
    ("profiler.anything", "file:x"),
    ("profiler.anything", "FILE:///home/me/x"),
    ("profiler.anything", ".."),
    ("profiler.anything", "%TEMP%"),
    ("profiler.anything", "|tee x"),
    ("profiler.anything", "x.nsys-rep"),
    ("profiler.anything", "x.tar.gz"),
    ("profiler.anything", "x.yaml"),
    ("profiler.anything", [["a", [{"b": "../c"}]]]),
    ("profiler.anything", [{"/home/me/a": True}]),
    ("compile.options.cache", "here"),
    ("aio.socket", "x"),
]
STAYS = [
    ("zero_optimization.offload_optimizer.nvme_path", "/nvme"),
    ("zero_optimization.offload_param.nvme_path", "/nvme"),
    ("data_efficiency.data_sampling.curriculum_learning.x.index_to_sample_path", "/data/x"),
    ("checkpoint.tag_validation", "Ignore"),
    ("checkpoint.load_universal", True),
    ("flops_profiler.enabled", True),
    ("flops_profiler.output_file", None),
    ("flops_profiler.output_file", ""),
    ("communication_data_type", "torch.bfloat16"),
    ("optimizer.type", "OneBitAdam"),
    ("compile.backend", "inductor"),
    ("profile", "a line of text. It ends."),
    ("checkpoint.writer.type", "fast"),
    ("compression_training.sparse_pruning.different_groups.a.modules", ["attention.out", "*"]),
    ("eigenvalue.layer_name", "bert.encoder.layer"),
    ("tensor_parallel.partition_config.layer_specs", [{"patterns": [".*\\.o_proj\\.weight$"]}]),
    ("expert_parallel.moe_layer_pattern", r"model\.layers\.\d+\.mlp"),
    ("zero_optimization.leaf_module.classes", ["package.module.json"]),
    ("scheduler.type", "WarmupLR"),
    ("zero_optimization.offload_optimizer.device", "cpu"),
    ("dtypes.half", "torch.float16"),
    ("memory_profile", "full"),
    ("comms_logger.log_level", "info"),
    ("data_efficiency.data_sampling.curriculum_learning.x.schedule_type", "fixed_root"),
]


def nested(path, value):
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


@pytest.mark.parametrize(("path", "value"), WRITTEN)
def test_what_would_be_written_is_left_out_and_told(path, value):
    given = merge(nested(path, value), {"zero_optimization": {"stage": 2}})
    config, notes = without_outputs(given)
    assert look_up(config, path) is None
    assert config["zero_optimization"]["stage"] == 2
    assert notes == {path: (value, None)}
    assert look_up(given, path) == value  # the user's own is left as it is


@pytest.mark.parametrize(("path", "value"), STAYS)
def test_what_writes_nothing_stays(path, value):
    assert without_outputs(nested(path, value)) == (nested(path, value), {})


def test_a_table_of_paths_is_left_out():
    config, notes = without_outputs({"profiler": {"targets": {"/home/me/a": True, "rank": 0}}})
    assert config == {"profiler": {"targets": {"rank": 0}}}
    assert notes == {"profiler.targets./home/me/a": (True, None)}


@pytest.mark.parametrize(
    "section", ["tensorboard", "csv_monitor", "wandb", "autotuning", "nebula"]
)
def test_sections_that_do_nothing_but_write_are_left_out(section):
    config, notes = without_outputs({section: {"enabled": True, "api_key": "x"}, "steps": 1})
    assert config == {"steps": 1}
    assert notes == {section: ("***", None)}


@pytest.mark.parametrize("of", ["baseline", "base_config", "template"])
def test_no_path_reaches_a_trial_wherever_it_comes_from(of, tmp_path):
    own = {"flops_profiler": {"enabled": True, "output_file": str(tmp_path / "flops.txt")}}
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, **own})
    )
    if of == "baseline":
        engine, candidate = DeepSpeedEngine(tiny_job(tmp_path), CPU).baseline(file)
    elif of == "base_config":
        job = tiny_job(tmp_path, base_config=str(file))
        engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, micro_batch=2)
    else:
        template = tmp_path / "mine" / "deepspeed" / "ds_config.json.j2"
        template.parent.mkdir(parents=True)
        shipped = (TEMPLATES / "deepspeed" / "ds_config.json.j2").read_text()
        head, brace, rest = shipped.partition("{\n")
        template.write_text(f"{head}{brace}{json.dumps(own)[1:-1]},{rest}")
        job = tiny_job(tmp_path, templates=str(tmp_path / "mine"))
        engine, candidate = DeepSpeedEngine(job, CPU), canonical_candidate(job, micro_batch=2)
    written = json.loads(engine.files(candidate)["ds_config.json"])
    assert written["flops_profiler"] == {"enabled": True}
    told = (own["flops_profiler"]["output_file"], None)
    assert engine.overridden(candidate)["flops_profiler.output_file"] == told
