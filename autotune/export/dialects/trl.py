"""The dialect of TRL: the fields of an SFTConfig as YAML, and a ds_config that they fill in."""

from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.base.yaml_file import dump_yaml
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.command_training import CommandFiles, CommandTraining, file_of_command
from autotune.export.dialects.hf import BY_SCRIPT, run_file
from autotune.export.material import SCRIPT, material, readme
from autotune.export.trainer import Setting, refuse_unsaid, trained, trainer_arguments
from autotune.trial.engines.deepspeed import CONFIG_FILE

YAML_FILE = "sft.yaml"


class SupervisedTrainer(Dialect):
    """For `SFTTrainer`: what TrlParser reads with `--config`."""

    engines = ("deepspeed",)
    script = SCRIPT
    frameworks = ("trl",)

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        # SFTTrainer computes its loss over chunks of its own.
        refuse_unsaid(handout, "TRL", says=BY_SCRIPT - {Setting.LOSS_CHUNKS})
        fields = sft_fields(handout)
        text = dump_yaml(fields)
        more = {"fields": text.splitlines()}
        config = trained(handout).config
        return {
            CONFIG_FILE: canonical_json(config),
            YAML_FILE: text,
            **run_file(handout, **_of_samples(handout)),
            **material(handout, "trl/train.py", templates),
            **readme(handout, launch, templates, "trl/README.md.j2", more, config=config),
        }

    def of_command(self, training: CommandTraining) -> CommandFiles:
        """The file of the command, or the settings as one."""
        return file_of_command(training, YAML_FILE)


def sft_fields(handout: Handout) -> dict[str, Any]:
    """Fields of SFTConfig; those whose defaults differ from Trainer's are always there."""
    return {**trainer_arguments(handout, "TRL"), "max_length": handout.workload.seq_len}


def _of_samples(handout: Handout) -> dict[str, Any]:
    lengths = handout.workload.lengths
    fields: dict[str, Any] = {"packing": lengths.get("kind") == "packed"}
    if lengths.get("pad_to_multiple", 1) > 1:
        fields["pad_to_multiple_of"] = lengths["pad_to_multiple"]
    return fields
