"""The dialect of accelerate: a YAML for `accelerate launch`, and the ds_config that it names."""

from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.nested import look_up
from autotune.base.templates import Templates, canonical_json
from autotune.base.user_text import read_text
from autotune.base.yaml_file import dump_yaml, parse_yaml
from autotune.engines.deepspeed.sources.accelerate_names import FLAGS
from autotune.engines.launches.line import flags_of, text_or_none
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.dialects.hf import BY_SCRIPT
from autotune.export.launchers.accelerate import YAML_FILE
from autotune.export.material import SCRIPT, material, readme
from autotune.export.own import HERE, OwnFiles, OwnTraining, without_flags
from autotune.export.trainer import family_config, refuse_unsaid
from autotune.trial.engines.deepspeed import CONFIG_FILE

_SAID = {"deepspeed", "config_file", "deepspeed_config_file", "use_deepspeed", *FLAGS}
"""Flags that say what the files do."""


class AccelerateFiles(Dialect):
    """For `Accelerator.prepare`: concrete numbers, since a script's own loader is not asked.

    The YAML is written by the launcher of the same name, which alone reads it.
    """

    engines = ("deepspeed",)
    script = SCRIPT
    frameworks = ("accelerate", "trainer", "trl")
    launcher = "accelerate"
    only_launcher = "accelerate.yaml is read by `accelerate launch` alone"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        refuse_unsaid(handout, "accelerate", says=BY_SCRIPT)
        config = family_config(handout)
        config["train_micro_batch_size_per_gpu"] = handout.candidate.micro_batch
        more = {
            "is_sharded": look_up(config, "zero_optimization.stage") == 3,
            "recompute": handout.workload.settings.get("recompute", "none"),
        }
        return {
            CONFIG_FILE: canonical_json(config),
            **material(handout, "accelerate/train.py", templates),
            **readme(handout, launch, templates, "accelerate/README.md.j2", more),
        }

    def of_command(self, own: OwnTraining) -> OwnFiles:
        """See `Dialect.of_command`."""
        is_trainer = own.script.is_trainer
        config = own.config_for_trainer if is_trainer else dict(own.config)
        config.pop("train_batch_size", None)  # see `trainer.family_config`
        notes = []
        if is_trainer and own.script.arguments.get("deepspeed") and not own.is_flag("deepspeed"):
            notes.append("take `deepspeed=` out of your TrainingArguments: it beats accelerate")
        return OwnFiles(
            files={
                CONFIG_FILE: canonical_json(config),
                YAML_FILE: dump_yaml(_settings(own, config)),
            },
            command=_launched(own),
            about={
                CONFIG_FILE: "your configuration with the edits",
                YAML_FILE: "the ranks, and the `ds_config.json` that DeepSpeed gets",
            },
            notes=notes,
            in_code={} if own.takes_arguments else _in_code(own),
        )


def _in_code(own: OwnTraining) -> dict[str, Any]:
    """Arguments that the command does not take; the configuration reaches it by the files."""
    return {name: value for name, value in own.edits.arguments.items() if not own.takes(name)}


def _settings(own: OwnTraining, config: dict[str, Any]) -> dict[str, Any]:
    """The user's accelerate file, or a new one, in which the `ds_config.json` is named."""
    launcher = dict(flags_of([own.words[at] for at in own.parts.launcher_flags]))
    theirs = text_or_none(launcher.get("config_file")) if own.launcher == "accelerate" else None
    settings: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "machine_rank": 0,
        "num_machines": 1,
    }
    if theirs is not None:
        path = Path(own.script.folder, theirs)
        settings = parse_yaml(read_text(path), path)
    return {
        **settings,
        "deepspeed_config": {
            "deepspeed_config_file": CONFIG_FILE,
            "zero3_init_flag": look_up(config, "zero_optimization.stage") == 3,
        },
        "distributed_type": "DEEPSPEED",
        "num_processes": own.script.world,
        "use_cpu": False,
    }


def _launched(own: OwnTraining) -> list[str]:
    """The user's script under `accelerate launch`.

    Raises:
        RenderError: The command does not say which script it starts.
    """
    parts = own.parts
    words = own.command()
    if parts.script_at >= len(words):
        raise RenderError(
            "--to accelerate: the command does not show the script that it starts",
            "give the command itself in place of what starts it, or leave --to out",
        )
    is_module = words[parts.script_at - 1 : parts.script_at] in (["-m"], ["--module"])
    flags = [words[at] for at in parts.launcher_flags if at > parts.launcher_at]
    kept = without_flags(flags, tuple(_SAID)) if own.launcher == "accelerate" else []
    if is_module and "-m" not in kept:
        kept = [*kept, "-m"]
    script = without_flags(words[parts.script_at :], ("deepspeed",))
    if not own.script.is_trainer:
        script = words[parts.script_at :]
    files = ["--config_file", f"{HERE}/{YAML_FILE}"]
    files += ["--deepspeed_config_file", f"{HERE}/{CONFIG_FILE}"]
    return ["accelerate", "launch", *files, *kept, *script]
