"""The dialect of Megatron Core alone: the training script of the trials, and what it reads."""

from pathlib import Path

from autotune.base.templates import Templates, canonical_json
from autotune.contract import Measure, read_json
from autotune.contract import parts_of as spec_parts
from autotune.devices.hardware import Environment
from autotune.export.base import Handout, Launch, Subject, reading_export
from autotune.export.material import SETTINGS_FILE, settings, trial_script
from autotune.export.megatron import MegatronDialect, megatron_readme, megatron_subject, run_of
from autotune.space.built_in import script_digest
from autotune.trial.engines.megatron import ARGUMENTS_FILE


class MegatronCoreScript(MegatronDialect):
    """For the package megatron-core: a loop over its GPTModel, as it was measured."""

    script = "train_megatron.py"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        scripts = [self.script, "train.py", "lengths.py"]
        if handout.environment.accelerator == "cpu":
            scripts.append("megatron_cpu.py")
        return {
            **handout.exported,
            **{name: trial_script(name) for name in scripts},
            SETTINGS_FILE: canonical_json(settings(handout)),
            **megatron_readme(
                handout, run_of(handout), launch, templates, "megatron/core.md.j2", {}
            ),
        }

    def read(self, folder: Path, environment: Environment, *, measure: Measure) -> Subject:
        """The arguments, and the settings that they do not say."""
        with reading_export(folder, "megatron-core"):
            settings = read_json(folder / SETTINGS_FILE)
            arguments = read_json(folder / ARGUMENTS_FILE)
            workload, layout = spec_parts(settings, digest=script_digest())
            return megatron_subject(
                folder,
                settings,
                arguments,
                workload,
                layout,
                environment=environment,
                measure=measure,
            )
