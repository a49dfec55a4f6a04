"""deepspeed: DeepSpeed's own launcher, by a hostfile."""

from autotune.export.launchers.shell import RanksLauncher


class DeepSpeedLauncher(RanksLauncher):
    """`launch.sh` and `hostfile`: the launcher reaches the machines in it by itself."""

    templates = (("launch.sh", "deepspeed.sh.j2"), ("hostfile", "hostfile.j2"))
    about = "deepspeed.md.j2"
