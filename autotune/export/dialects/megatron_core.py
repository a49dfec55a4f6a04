"""The dialect of Megatron Core alone: the training script of the trials, and what it reads."""

from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.contract import SETTINGS_FILE, Layout, Workload, parts_of
from autotune.devices.hardware import Environment
from autotune.export.base import Handout, Launch
from autotune.export.material import settings, trial_script
from autotune.export.megatron import MegatronRuns, megatron_readme, run_of
from autotune.space.built_in import NEUTRAL, script_digest


class MegatronCoreScript(MegatronRuns):
    """For the package megatron-core: a loop over its GPTModel, as it was measured."""

    name = "megatron-core"
    script = "train_megatron.py"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        scripts = [self.script, "train.py", "lengths.py"]
        if handout.environment.accelerator == "cpu":
            scripts.append("megatron_cpu.py")
        return {
            **handout.exported,
            **{name: trial_script(name) for name in scripts},
            SETTINGS_FILE: canonical_json({**NEUTRAL, **settings(handout)}),
            **megatron_readme(
                handout, run_of(handout), launch, templates, "megatron/core.md.j2", {}
            ),
        }

    def trained(
        self, settings: Mapping[str, Any], arguments: dict[str, Any], environment: Environment
    ) -> tuple[Workload, Layout]:
        return parts_of(settings, digest=script_digest())
