"""accelerate: `accelerate launch` with its YAML, on this machine or on each of several."""

from autotune.export.launchers.shell import RanksLauncher

YAML_FILE = "accelerate.yaml"


class Accelerate(RanksLauncher):
    """`launch.sh` and `accelerate.yaml`, which names the `ds_config.json` beside it."""

    templates = (("launch.sh", "accelerate.sh.j2"), (YAML_FILE, "accelerate.yaml.j2"))
    about = "accelerate.md.j2"
