"""The dialect of LLaMA-Factory: the YAML that it trains by, and a ds_config that this fills in.

Source: hiyouga/LLaMA-Factory, src/llamafactory/hparams (0.9.5).
"""

from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_training import CommandFiles, CommandTraining, file_of_command
from autotune.export.material import SCRIPT, from_config, readme
from autotune.export.trainer import (
    SHORT_RUN,
    Setting,
    refuse_unsaid,
    trained,
    trainer_arguments,
)
from autotune.job.adapters import ALL_LINEAR
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.guest.frameworks import FACTORY_ATTENTION

YAML_FILE = "llamafactory.yaml"
CONSUMER = "LLaMA-Factory"
_SAYS = frozenset({Setting.ATTENTION, Setting.COMPILE, Setting.ADAPTERS})


class LlamaFactory(Dialect):
    """For `llamafactory-cli train`: its names for what Trainer has none for."""

    engines = ("deepspeed",)
    script = SCRIPT
    frameworks = ("llama-factory",)

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        refuse_unsaid(handout, CONSUMER, says=_SAYS)
        decided = dump_yaml(decided_fields(handout))
        fields = dump_yaml(_trained_fields(handout))
        text = (
            f"### what the configuration decides\n{decided}\n"
            f"### what is trained, and how: keep your own\n{fields}"
        )
        more = {"fields": decided.splitlines()}
        config = trained(handout).config
        return {
            CONFIG_FILE: canonical_json(config),
            YAML_FILE: text,
            **from_config(handout, "llama_factory/train.py", templates),
            **readme(
                handout, launch, templates, "llama_factory/README.md.j2", more, config=config
            ),
        }

    def of_command(self, training: CommandTraining) -> CommandFiles:
        """The file of the command with the edits."""
        return file_of_command(training, YAML_FILE)


def decided_fields(handout: Handout) -> dict[str, Any]:
    """The fields that the configuration decides."""
    settings = handout.workload.settings
    is_recomputed = settings.get("recompute", "none") != "none"
    fields = {
        **trainer_arguments(handout, CONSUMER, recompute=False),
        "disable_gradient_checkpointing": not is_recomputed,
        "cutoff_len": handout.workload.seq_len,
    }
    if (attention := str(settings.get("attention", "default"))) != "default":
        fields["flash_attn"] = FACTORY_ATTENTION[attention]
    if is_recomputed:
        fields["use_reentrant_gc"] = False
    return fields


def _finetuning(handout: Handout) -> dict[str, Any]:
    lora = handout.job.model.source.get("lora")
    if lora is None:
        return {"finetuning_type": "full"}
    targets = lora["target_modules"]
    return {
        "finetuning_type": "lora",
        "lora_rank": lora["rank"],
        "lora_alpha": int(lora["alpha"]),
        "lora_dropout": lora["dropout"],
        "lora_target": "all" if targets == ALL_LINEAR else ",".join(targets),
    }


def _trained_fields(handout: Handout) -> dict[str, Any]:
    """A pre-training from a config, on text that `start.py` writes."""
    return {
        "model_name_or_path": "start",
        "train_from_scratch": True,
        "stage": "pt",
        **_finetuning(handout),
        "do_train": True,
        "dataset_dir": "start",
        "dataset": "text",
        "overwrite_cache": True,
        **SHORT_RUN,
        **trained(handout).of_the_run,
    }
