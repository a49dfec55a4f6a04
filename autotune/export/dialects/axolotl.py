"""The dialect of axolotl: the YAML that it trains by, and a ds_config that this fills in.

Source: axolotl-ai-cloud/axolotl, src/axolotl/utils/schemas (0.19).
"""

from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_training import CommandFiles, CommandTraining, file_of_command
from autotune.export.material import SCRIPT, from_config, readme
from autotune.export.trainer import Setting, refuse_unsaid, trained
from autotune.job.adapters import ALL_LINEAR
from autotune.trial.engines.deepspeed import CONFIG_FILE

YAML_FILE = "axolotl.yaml"
_NAMES: Mapping[str, str] = {
    "per_device_train_batch_size": "micro_batch_size",
    "lr_scheduler_type": "lr_scheduler",
}
"""Trainer's names -> axolotl's; the others are the same."""
_OPTIMIZER = "adamw_torch"
"""What the schema asks for; the optimizer that trains stands in ds_config.json."""
_PLUGIN_FILE = "cpu.py"
"""A plug-in that makes it train on CPU ranks: its own fields cannot say so."""
_PLUGIN = "cpu.CpuRanks"
_TRITON_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel")
"""Switches that are on by default and need a GPU."""
_SAYS = frozenset({Setting.ATTENTION, Setting.COMPILE, Setting.ADAPTERS})


class Axolotl(Dialect):
    """For `axolotl train`: its names for what Trainer calls otherwise."""

    engines = ("deepspeed",)
    script = SCRIPT
    frameworks = ("axolotl",)

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        refuse_unsaid(handout, "axolotl", says=_SAYS)
        decided = dump_yaml(decided_fields(handout))
        text = (
            f"# What the configuration decides.\n{decided}\n"
            f"# What is trained, and how: keep your own.\n{dump_yaml(_trained_fields(handout))}"
        )
        is_on_cpu = _is_on_cpu(handout)
        more = {"fields": decided.splitlines(), "is_on_cpu": is_on_cpu}
        plugin = {_PLUGIN_FILE: templates.text("axolotl/cpu.py", {})} if is_on_cpu else {}
        config = trained(handout).config
        return {
            CONFIG_FILE: canonical_json(config),
            YAML_FILE: text,
            **plugin,
            **from_config(handout, "axolotl/train.py", templates),
            **readme(handout, launch, templates, "axolotl/README.md.j2", more, config=config),
        }

    def of_command(self, training: CommandTraining) -> CommandFiles:
        """The file of the command with the edits."""
        return file_of_command(training, YAML_FILE)


def decided_fields(handout: Handout) -> dict[str, Any]:
    """The fields that the configuration decides."""
    settings, precision = handout.workload.settings, handout.workload.precision
    is_recomputed = settings.get("recompute", "none") != "none"
    fields: dict[str, Any] = {
        "deepspeed": CONFIG_FILE,
        **_renamed(trained(handout).arguments),
        **{name: name == precision for name in ("bf16", "fp16")},
        "sequence_len": handout.workload.seq_len,
        "gradient_checkpointing": is_recomputed,
    }
    if is_recomputed:
        fields["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    if _is_on_cpu(handout):
        fields["plugins"] = [_PLUGIN]
    if settings.get("attention", "default") != "default":
        fields["attn_implementation"] = settings["attention"]
    if settings.get("compile", "none") != "none":
        fields["torch_compile"] = True
    if _is_on_cpu(handout) and "lora" in handout.job.model.source:
        fields |= dict.fromkeys(_TRITON_KERNELS, False)
    return fields


def _renamed(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in arguments.items()}


def _is_on_cpu(handout: Handout) -> bool:
    return handout.environment.accelerator == "cpu"


def _adapter_fields(handout: Handout) -> dict[str, Any]:
    lora = handout.job.model.source.get("lora")
    if lora is None:
        return {}
    targets = lora["target_modules"]
    is_all = targets == ALL_LINEAR
    where = {"lora_target_linear": True} if is_all else {"lora_target_modules": targets}
    return {
        "adapter": "lora",
        "lora_r": lora["rank"],
        "lora_alpha": int(lora["alpha"]),
        "lora_dropout": lora["dropout"],
        **where,
    }


def _trained_fields(handout: Handout) -> dict[str, Any]:
    """A training from random weights, on text that `start.py` writes."""
    return {
        "base_model": "start",
        "reinit_weights": True,
        **_adapter_fields(handout),
        "datasets": [
            {
                "path": "start/text.jsonl",
                "ds_type": "json",
                "type": "completion",
                "field": "text",
            }
        ],
        "sample_packing": handout.workload.lengths.get("kind") == "packed",
        "optimizer": _OPTIMIZER,
        **_renamed(trained(handout).of_the_run),
        "lr_scheduler": "constant",
        "tf32": False,
        "output_dir": "output",
        "dataset_prepared_path": "output/prepared",
        "max_steps": 10,
        "logging_steps": 1,
        "save_strategy": "no",
    }
