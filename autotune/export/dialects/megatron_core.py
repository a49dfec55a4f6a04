"""The dialect of Megatron Core alone: the training script of the trials, and what it reads."""

from autotune.base.templates import Templates, canonical_json
from autotune.export.base import Dialect, Handout, Launch
from autotune.export.material import SETTINGS_FILE, settings, trial_script
from autotune.export.megatron import megatron_readme, run_of
from autotune.export.readme import figures_file


class MegatronCoreScript(Dialect):
    """For the package megatron-core: a loop over its GPTModel, as it was measured."""

    engines = ("megatron",)
    script = "train_megatron.py"
    only_launcher = "it starts scripts with a configuration of DeepSpeed"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        scripts = [self.script, "train.py", "lengths.py"]
        if handout.environment.accelerator == "cpu":
            scripts.append("megatron_cpu.py")
        return {
            **handout.files,
            **{name: trial_script(name) for name in scripts},
            SETTINGS_FILE: canonical_json(settings(handout)),
            "README.md": megatron_readme(
                handout, run_of(handout), launch, templates, "megatron/core.md.j2", {}
            ),
            **figures_file(handout),
        }
