"""torchrun: a shell script that starts the ranks of this machine, or of each of several."""

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launcher
from autotune.export.launchers.shell import values_of


class Torchrun(Launcher):
    """`launch.sh`, which starts the script with `torch.distributed.run`."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        template = "sourced" if script.endswith(".sh") else "launch"
        text = templates.text(f"launch/{template}.sh.j2", values_of(handout, script))
        return {"launch.sh": text}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        return templates.text("launch/torchrun.md.j2", values_of(handout, script))
