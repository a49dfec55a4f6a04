"""deepspeed: DeepSpeed's own launcher, by a hostfile."""

from autotune.base.templates import Templates
from autotune.export.base import Handout, Launcher
from autotune.export.launchers.shell import values_of


class DeepSpeedLauncher(Launcher):
    """`launch.sh` and `hostfile`: the launcher reaches the machines in it by itself."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        values = values_of(handout, script)
        return {
            "launch.sh": templates.text("launch/deepspeed.sh.j2", values),
            "hostfile": templates.text("launch/hostfile.j2", values),
        }

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        return templates.text("launch/deepspeed.md.j2", values_of(handout, script))
