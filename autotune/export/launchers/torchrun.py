"""torchrun: a shell script that starts the ranks of this machine, or of each of several."""

from typing import Any

from autotune.base.templates import Templates
from autotune.contract import LIST_VARIABLES
from autotune.export.base import Handout, Launcher


class Torchrun(Launcher):
    """`launch.sh`, which starts the script with `torch.distributed.run`."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        """The one script; see `Launcher.files`."""
        return {"launch.sh": templates.text("launch/launch.sh.j2", _values(handout, script))}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        """Its two commands; for several machines, what each of them has to be told."""
        return templates.text("launch/torchrun.md.j2", _values(handout, script))


def _values(handout: Handout, script: str) -> dict[str, Any]:
    return {
        "script": script,
        "world": handout.candidate.world,
        "n_nodes": handout.n_nodes,
        "per_node": handout.per_node,
        "accelerator": handout.environment.accelerator,
        "variables": sorted(handout.variables.items()),
        "lists": LIST_VARIABLES,
    }
