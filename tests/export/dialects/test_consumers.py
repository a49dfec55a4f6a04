"""Exports as their consumers read them: the real package loads the files and says what it got."""

import importlib.util
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.base.errors import RenderError
from autotune.engines.deepspeed.extensions import environment as extensions_environment
from autotune.engines.deepspeed.knobs import KNOBS as KNOB_ROWS
from autotune.export import trainer
from tests import forked_children
from tests.captured import captured
from tests.cases import data_beside
from tests.clusters.slurm import free_ports
from tests.examples.environments import EXAMPLES, activated, python_of
from tests.export.handed import GPUS, export, handed
from tests.jobs import CPU

DATA = data_beside(__file__)

KNOBS = {"zero__stage": 2, "micro_batch": 2, "offload__optimizer": "cpu", "recompute": "full"}
FAMILY = ("hf", "accelerate", "trl", "lightning", "llama-factory", "axolotl")

OF_THE_USER = [
    *("--output_dir", "output", "--learning_rate", "3e-4", "--max_grad_norm", "0.3"),
    *("--weight_decay", "0.1", "--adam_beta2", "0.95", "--lr_scheduler_type", "cosine"),
    *("--seed", "7"),
]
"""What a user's own run says of what is not tuned."""

HF = f"""
from transformers import HfArgumentParser, TrainingArguments
(told,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(
    {OF_THE_USER}, args_filename="train.args"
)
told.hf_deepspeed_config.trainer_config_finalize(told, model=None, num_training_steps=10)
answer(told.hf_deepspeed_config.config, told)
"""
TRL = f"""
from trl import SFTConfig, TrlParser
(told,) = TrlParser(SFTConfig).parse_args_and_config(
    ["--config", "sft.yaml", "--packing", "true", *{OF_THE_USER}]
)
told.hf_deepspeed_config.trainer_config_finalize(told, model=None, num_training_steps=10)
answer(told.hf_deepspeed_config.config, told)
"""
ACCELERATE = DATA["ACCELERATE"]
LIGHTNING = DATA["LIGHTNING"]
LLAMA_FACTORY = DATA["LLAMA_FACTORY"]
AXOLOTL = DATA["AXOLOTL"]
ANSWER = DATA["ANSWER"]


def needs(package: str) -> pytest.MarkDecorator:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"{package} is not installed here")


def as_read(
    consumer: str, out: Path, *names: str, python: str = sys.executable
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration that DeepSpeed would get, and the consumer's own values of some names."""
    variables = {"DS_ACCELERATOR": "cpu", "PYTHONWARNINGS": "ignore"}
    code, arguments = ANSWER + consumer, [str(out), ",".join(names)]
    if python == sys.executable:
        done = forked_children.run_code(code, *arguments, folder=out, variables=variables)
    else:
        environment = {**os.environ, **variables}
        environment.pop("PYTHONPATH", None)
        done = captured(
            [python, "-c", code, *arguments],
            env=environment | activated(Path(python)),
            cwd=out,
            timeout=900,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER")]
    found = json.loads(line.removeprefix("ANSWER"))
    assert '"auto"' not in json.dumps(found["config"]), "a key that nobody fills in"
    return found["config"], found["told"]


def check_config(
    config: dict[str, Any], *, stage: int = 2, clipping: float = 0.3, lr: float = 3e-4
) -> None:
    """What the knobs say, as DeepSpeed would be told, beside what the user says."""
    assert config["train_micro_batch_size_per_gpu"] == 2
    assert config["gradient_accumulation_steps"] == 2
    assert config["gradient_clipping"] == clipping
    assert config["zero_optimization"]["stage"] == stage
    assert config["zero_optimization"]["offload_optimizer"]["device"] == "cpu"
    assert config["bf16"]["enabled"] is True
    assert config["optimizer"]["params"]["lr"] == pytest.approx(lr)


def test_trainer_reads_what_was_chosen(tmp_path):
    out = export(handed(tmp_path, **KNOBS), tmp_path, "hf")
    recomputes, _ = trainer.recompute_names()
    names = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "use_cpu")
    config, values = as_read(HF, out, *names, recomputes, "seed", "lr_scheduler_type")
    check_config(config)
    params = config["optimizer"]["params"]
    assert (params["betas"], params["weight_decay"]) == ([0.9, 0.95], 0.1)
    others = {"seed": 7, "lr_scheduler_type": "cosine"}
    assert (
        values == dict(zip(names, (2, 2, True, True), strict=True)) | {recomputes: True} | others
    )


@needs("trl")
@pytest.mark.parametrize(("recompute", "precision"), [("full", "bf16"), ("none", "fp32")])
def test_trl_reads_what_was_chosen(tmp_path, recompute, precision):
    """Its own defaults are recomputation, bf16 and 1024 tokens."""
    knobs = {**KNOBS, "recompute": recompute}
    out = export(handed(tmp_path, job={"precision": precision}, **knobs), tmp_path, "trl")
    recomputes, _ = trainer.recompute_names()
    config, values = as_read(TRL, out, "max_length", "packing", "bf16", recomputes)
    is_low = precision == "bf16"
    if is_low:
        check_config(config)
    expected = {"max_length": 16, "packing": True, "bf16": is_low}
    assert values == expected | {recomputes: recompute == "full"}


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_reads_what_was_chosen(tmp_path, stage):
    out = export(handed(tmp_path, **KNOBS | {"zero__stage": stage}), tmp_path, "accelerate")
    names = ("distributed", "num_processes", "num_machines", "sharded", "stage")
    config, values = as_read(ACCELERATE, out, *names)
    check_config(config, stage=stage, clipping=1.0)
    assert values == dict(zip(names, ("DEEPSPEED", 2, 1, stage == 3, stage), strict=True))


@needs("lightning")
def test_lightning_reads_what_was_chosen(tmp_path):
    out = export(handed(tmp_path, **KNOBS), tmp_path, "lightning")
    assert "gradient_accumulation_steps" not in json.loads((out / "ds_config.json").read_text())
    names = ("devices", "num_nodes", "precision", "accelerator", "accumulate_grad_batches")
    config, values = as_read(LIGHTNING, out, *names)
    check_config(config, lr=1e-4)
    assert values == dict(zip(names, (2, 1, "bf16-true", "cpu", 2), strict=True))


@pytest.mark.consumer
@pytest.mark.parametrize("recompute", ["full", "none"])
def test_llama_factory_reads_what_was_chosen(tmp_path, recompute):
    """It recomputes unless it is told not to."""
    python = python_of("AUTOTUNE_LLAMA_FACTORY")
    knobs = {**KNOBS, "recompute": recompute, "attention": "eager"}
    out = export(handed(tmp_path, **knobs), tmp_path, "llama-factory")
    names = ("recomputes", "attention", "cutoff_len", "finetuning_type")
    config, values = as_read(LLAMA_FACTORY, out, *names, python=python)
    check_config(config, clipping=1.0, lr=1e-4)
    assert values == dict(zip(names, (recompute == "full", "disabled", 16, "full"), strict=True))


@pytest.mark.consumer
def test_axolotl_reads_what_was_chosen(tmp_path):
    python = python_of("AUTOTUNE_AXOLOTL")
    out = export(handed(tmp_path, **KNOBS, attention="eager"), tmp_path, "axolotl")
    names = ("micro_batch_size", "gradient_accumulation_steps", "bf16", "gradient_checkpointing")
    names += ("attn_implementation", "sequence_len", "learning_rate", "max_grad_norm", "stage")
    _, values = as_read(AXOLOTL, out, *names, python=python)
    assert values == dict(zip(names, (2, 2, True, True, "eager", 16, 1e-4, 1.0, 2), strict=True))


DECIDED = {
    "hf": {
        *("deepspeed", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16"),
        *("CHECKPOINTING", "CHECKPOINTING_kwargs"),
    },
    "trl": {
        *("deepspeed", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16"),
        *("CHECKPOINTING", "CHECKPOINTING_kwargs", "max_length"),
    },
    "llama-factory": {
        *("deepspeed", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16"),
        *("disable_gradient_checkpointing", "use_reentrant_gc", "cutoff_len"),
    },
    "axolotl": {
        *("deepspeed", "micro_batch_size", "gradient_accumulation_steps", "bf16", "fp16"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "sequence_len"),
    },
    "ms-swift": {
        *("deepspeed", "per_device_train_batch_size", "gradient_accumulation_steps", "bf16"),
        *("gradient_checkpointing", "gradient_checkpointing_kwargs", "max_length", "tuner_type"),
    },
    "lightning": {"trainer"},
}
"""All that each README has a user put into a file of their own."""


@pytest.mark.parametrize("to", DECIDED)
def test_a_user_is_told_to_write_what_was_tuned_and_nothing_else(tmp_path, to):
    out = export(handed(tmp_path, environment=GPUS, **KNOBS), tmp_path, to)
    readme = (out / "README.md").read_text()
    if to == "hf":
        names = re.findall(r"^    --(\w+) ", readme, re.MULTILINE)
    else:
        (block,) = re.findall(r"```yaml\n(.*?)```", readme, re.DOTALL)
        names = list(yaml.safe_load(block))
    name, _ = trainer.recompute_names()
    assert set(names) == {one.replace("CHECKPOINTING", name) for one in DECIDED[to]}
    config = (out / "ds_config.json").read_text()
    counts = re.search("optimizer`? (is one that|stands in|in .* counts before)", readme)
    assert bool(counts) == ("optimizer" in json.loads(config)), "whose optimizer trains"
    assert "steps_per_print" not in config
    assert "wall_clock_breakdown" not in config


@pytest.mark.cases("to", "launcher", "command")
def test_a_command_in_place_of_launch_sh_sets_the_same_variables(tmp_path, to, launcher, command):
    handout = handed(tmp_path, micro_batch=2, host_allocator="keep")
    lines = (export(handout, tmp_path, to, launcher) / "README.md").read_text().splitlines()
    (line,) = (line for line in lines if command in line and not line.startswith("|"))
    assert "MALLOC_TRIM_THRESHOLD_=" in line.partition(command)[0]
    assert launcher is None or line.startswith("    "), "it stands in the block above it"


@pytest.mark.parametrize("to", ["llama-factory", "ms-swift"])
def test_the_consumer_s_own_command_says_which_machine_it_is_on(tmp_path, to):
    job = {"world": 16, "global_batch": 32}
    out = export(handed(tmp_path, environment=GPUS, job=job, micro_batch=1), tmp_path, to)
    text = (out / "README.md").read_text()
    assert "NNODES=2 NODE_RANK=RANK MASTER_ADDR=ADDRESS NPROC_PER_NODE=8" in text


OPEN = {
    "gradient_clipping": "auto",
    "csv_monitor": {"enabled": True, "output_path": "figures", "job_name": "mine"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto"}},
}
"""What a user's file may leave to the consumer, or to the real run."""


@pytest.mark.parametrize("to", ["hf", "trl", "accelerate", "llama-factory", "axolotl", "ms-swift"])
def test_what_the_user_s_file_leaves_open_stays_open(tmp_path, to):
    (tmp_path / "own.json").write_text(json.dumps(OPEN))
    job = {"base_config": str(tmp_path / "own.json")}
    out = export(handed(tmp_path, job=job, zero__stage=2, micro_batch=2), tmp_path, to)
    config = json.loads((out / "ds_config.json").read_text())
    assert config["optimizer"]["params"]["lr"] == "auto"
    assert config["csv_monitor"] == OPEN["csv_monitor"]
    if to != "accelerate":
        assert config["scheduler"] == OPEN["scheduler"]
        assert config["gradient_clipping"] == "auto"
        assert "| `optimizer.params.lr` |" not in (out / "README.md").read_text()


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """With adapters, which a process counts on the model: seconds, so that it is asked once."""
    lora = {"finetune": {"method": "lora", "rank": 4, "alpha": 8, "dropout": 0.1}}
    return handed(tmp_path_factory.mktemp("adapted"), job=lora, micro_batch=2)


def test_recomputation_of_some_layers_is_an_argument(tmp_path):
    name, takes_every = trainer.recompute_names()
    assert takes_every
    out = export(handed(tmp_path, micro_batch=2, recompute="every_2"), tmp_path, "hf")
    assert (
        f'--{name}_kwargs {{"use_reentrant":false,"every_n_layers":2}}'
        in (out / "train.args").read_text()
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "    activation_checkpointing: bool = 0  # every_n_layers",
            ("activation_checkpointing", True),
        ),
        ("    gradient_checkpointing: bool = 0", ("gradient_checkpointing", False)),
    ],
)
def test_recomputation_has_the_name_of_the_installed_release(
    tmp_path, monkeypatch, text, expected
):
    package = tmp_path / "transformers"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "training_args.py").write_text(f"class TrainingArguments:\n{text}\n")
    spec = importlib.util.spec_from_file_location(
        "transformers", package / "__init__.py", submodule_search_locations=[str(package)]
    )
    monkeypatch.setattr(trainer, "find_spec", lambda name: spec)
    trainer.recompute_names.cache_clear()
    assert trainer.recompute_names() == expected
    if not expected[1]:
        with pytest.raises(RenderError, match="recomputes all layers or none"):
            export(handed(tmp_path, micro_batch=2, recompute="every_2"), tmp_path, "hf")
    trainer.recompute_names.cache_clear()


UNSAID = [
    ({"pp": 2, "zero__stage": 1, "micro_batch": 2}, "pp=2", FAMILY),
    ({"tp": 2, "micro_batch": 2}, "tp=2", FAMILY),
    ({"sp": 2, "zero__stage": 1, "micro_batch": 2}, "sp=2", FAMILY),
    ({"loss_chunk_tokens": 8, "micro_batch": 2}, "loss_chunk_tokens=8", ("trl", *FAMILY[-2:])),
    ({"recompute": "every_2", "micro_batch": 2}, "recompute=every_2", (*FAMILY[-2:], "ms-swift")),
]


@pytest.mark.parametrize(
    ("knobs", "setting", "to"),
    [(knobs, setting, to) for knobs, setting, tos in UNSAID for to in tos],
)
def test_what_a_consumer_cannot_be_told_is_refused(tmp_path, knobs, setting, to):
    with pytest.raises(RenderError, match=re.escape(f"has no setting for {setting}")) as caught:
        export(handed(tmp_path, **knobs), tmp_path, to)
    assert "--to deepspeed" in caught.value.hint
    assert not (tmp_path / "out").exists()


BESIDE_DS_CONFIG = DATA["BESIDE_DS_CONFIG"]
"""What a candidate asks for besides the keys of DeepSpeed's file."""
MENTIONED = {"pp": "transformer", "core_binding": "bind_to_cores"}
"""A knob -> what its scripts say in place of its name."""
TELLS_NOTHING_TO_DO = re.compile(r"^(\| `[\w.]+` \||\*\*Good to know).*$", re.MULTILINE)
"""Lines of a README: the table of the choice, and what is known of it."""


@pytest.mark.parametrize("to", [*FAMILY, "ms-swift", "deepspeed"])
@pytest.mark.parametrize("knob", BESIDE_DS_CONFIG)
def test_a_knob_is_carried_by_the_files_and_said_to_who_has_a_script(tmp_path, knob, to):
    """Or it is refused."""
    rows = {name: row for name, row in KNOB_ROWS.items() if row.by_script or not row.key}
    # Those of communication are variables of the ranks, as the allocators are.
    assert {n for n, row in rows.items() if row.group != "communication"} == set(BESIDE_DS_CONFIG)
    environment = CPU if knob == "host_allocator" else GPUS
    shared = {"zero__stage": 1, "micro_batch": 2}
    if knob == "offload.activations":
        shared["recompute"] = "full"
    carried, told = [], []
    for name, value in (
        ("without", {}),
        ("with", {knob.replace(".", "__"): BESIDE_DS_CONFIG[knob]}),
    ):
        (tmp_path / name).mkdir()
        try:
            handout = handed(tmp_path, environment=environment, **{**shared, **value})
            out = export(handout, tmp_path / name, to)
        except RenderError:
            assert value
            return
        files = {path.name: path.read_text() for path in out.rglob("*") if path.is_file()}
        in_files = [
            text for file, text in files.items() if file.endswith((".yaml", ".args", ".sh"))
        ]
        in_readme = TELLS_NOTHING_TO_DO.sub("", files["README.md"])
        told.append([in_readme, *in_files])
        carried.append(in_files if to != "ms-swift" else told[-1])
    assert told[0] != told[1], "who has a script of their own is not told what to do"
    mention = MENTIONED.get(knob, f"settings.{knob.replace('.', '_')}")
    scripts = files.get("train.py", "") + files.get("material.py", "")
    assert carried[0] != carried[1] or mention in scripts


@pytest.mark.parametrize("to", FAMILY)
def test_no_file_of_an_export_imports_ours(tmp_path, to):
    out = export(handed(tmp_path, micro_batch=2), tmp_path, to)
    for path in out.glob("*.py"):
        text = path.read_text()
        compile(text, path, "exec")
        assert not re.search(r"^\s*(from|import) autotune", text, re.MULTILINE), path


def test_the_plug_in_for_cpu_ranks_is_that_of_the_example(tmp_path, adapted):
    out = export(adapted, tmp_path, "axolotl")
    assert (out / "cpu.py").read_text() == (EXAMPLES / "axolotl" / "cpu.py").read_text()
    fields = yaml.safe_load((out / "axolotl.yaml").read_text())
    assert (fields["plugins"], fields["lora_qkv_kernel"]) == (["cpu.CpuRanks"], False)


TRAINED = [
    ("hf", "accelerate", {"zero__stage": 3, "recompute": "every_2"}, "--max_steps"),
    pytest.param(
        *("accelerate", None, {"zero__stage": 3, "recompute": "full"}, "--steps"),
        marks=pytest.mark.thorough,
    ),
    pytest.param(
        *("accelerate", None, {"zero__stage": 1, "compile": "torch"}, "--steps"),
        marks=pytest.mark.thorough,
    ),
    pytest.param(
        *("trl", "deepspeed", {"zero__stage": 2}, "--max_steps"),
        marks=[needs("trl"), pytest.mark.thorough],
    ),
    pytest.param(
        *("lightning", None, {"zero__stage": 3}, "--steps"),
        marks=[needs("lightning"), pytest.mark.thorough],
    ),
]


@pytest.mark.real
@pytest.mark.parametrize(("to", "launcher", "knobs", "steps"), TRAINED)
def test_the_folder_trains_as_it_is(tmp_path, to, launcher, knobs, steps):
    out = export(handed(tmp_path, micro_batch=2, **knobs), tmp_path, to, launcher)
    losses = losses_of(out, steps, "2")
    assert len(losses) == 2
    assert all(4 < loss < 8 for loss in losses)  # ln 256 = 5.5: random tokens, untrained


@pytest.mark.real
@pytest.mark.consumer
def test_the_folder_trains_in_llama_factory(tmp_path):
    python = python_of("AUTOTUNE_LLAMA_FACTORY")
    out = export(handed(tmp_path, micro_batch=2, zero__stage=2), tmp_path, "llama-factory")
    losses = losses_of(out, "max_steps=2", python=python)
    assert len(losses) == 2
    assert all(4 < loss < 8 for loss in losses)


@pytest.mark.real
@pytest.mark.consumer
def test_the_folder_trains_in_axolotl(tmp_path):
    python = python_of("AUTOTUNE_AXOLOTL")
    out = export(handed(tmp_path, micro_batch=2, zero__stage=2), tmp_path, "axolotl")
    losses = losses_of(out, "--max_steps", "2", python=python)
    assert len(losses) == 2
    assert all(4 < loss < 8 for loss in losses)


def losses_of(out: Path, *arguments: str, python: str = sys.executable) -> list[float]:
    """Train, and read the loss of each step from what was printed."""
    is_ours = python == sys.executable
    lent = extensions_environment("cpu") if is_ours else activated(Path(python))
    # What runs beside this test may have taken a launcher's own port.
    port = {"MASTER_PORT": str(free_ports(1)[0])}
    done = captured(
        ["bash", out / "launch.sh", *arguments],
        cwd=out.parent,
        env={**os.environ, **lent, **port, "PYTHON": python, "AXOLOTL_DO_NOT_TRACK": "1"},
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    printed = done.stdout + done.stderr
    found = re.findall(r"(?:^step \d+  loss |'loss': '?)([\d.]+)", printed, re.MULTILINE)
    return [float(loss) for loss in found]
