"""torchrun: a shell script that starts the ranks of this machine, or of each of several."""

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launcher
from autotune.export.launchers.shell import values_of


class Torchrun(Launcher):
    """`launch.sh`, which starts the script with `torch.distributed.run`."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        """The one script; see `Launcher.files`."""
        return {"launch.sh": templates.text("launch/launch.sh.j2", values_of(handout, script))}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        """Its two commands; for several machines, what each of them has to be told."""
        return templates.text("launch/torchrun.md.j2", values_of(handout, script))
