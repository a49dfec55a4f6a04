"""torchrun: a shell script that starts the ranks of this machine, or of each of several."""

from autotune.export.launchers.shell import RanksLauncher


class Torchrun(RanksLauncher):
    """`launch.sh`, which starts the script with `torch.distributed.run`."""

    templates = (("launch.sh", "launch.sh.j2"),)
    sourced = (("launch.sh", "sourced.sh.j2"),)
    about = "torchrun.md.j2"
