"""accelerate: `accelerate launch` with its YAML, on this machine or on each of several."""

import json
from typing import Any

from autotune.base.nested import look_up
from autotune.base.templates import Templates
from autotune.export.base import Handout, Launcher
from autotune.export.launchers.shell import values_of
from autotune.trial.engines.deepspeed import CONFIG_FILE

YAML_FILE = "accelerate.yaml"


class Accelerate(Launcher):
    """`launch.sh` and `accelerate.yaml`, which names the `ds_config.json` beside it."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        values = values_of(handout, script)
        return {
            "launch.sh": templates.text("launch/accelerate.sh.j2", values),
            YAML_FILE: templates.text("launch/accelerate.yaml.j2", {**values, **_plugin(handout)}),
        }

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        return templates.text("launch/accelerate.md.j2", values_of(handout, script))


def _plugin(handout: Handout) -> dict[str, Any]:
    """What accelerate is told besides the ranks: other keys of DeepSpeed's clash with the file."""
    config = json.loads(handout.exported.get(CONFIG_FILE, "{}"))
    return {
        "is_sharded": look_up(config, "zero_optimization.stage") == 3,
        "is_compiled": handout.workload.settings.get("compile", "none") != "none",
    }
