"""Launchers: what starts an export's script, a class each with its templates.

A template may use the ranks, the nodes and the variables of a run.
"""

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from autotune.base.errors import FleetError
from autotune.base.nested import look_up
from autotune.base.templates import Templates
from autotune.contract import LIST_VARIABLES
from autotune.devices.accelerators import find_accelerator
from autotune.devices.hardware import Environment
from autotune.engines.base import find_engine
from autotune.export.base import Handout, Launcher, NodeLauncher
from autotune.space.ranks import describe_ranks, machine_places
from autotune.trial.engines.deepspeed import CONFIG_FILE

ACCELERATE_FILE = "accelerate.yaml"
_FOLDER = "launch"
"""Folder of their templates."""


class TemplateLauncher(Launcher):
    """Files, each by a template, and one for the README."""

    templates: ClassVar[Sequence[tuple[str, str]]]
    """Each file, and its template."""
    about: ClassVar[str]
    """Template of how to start it."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        values = values_of(handout, script)
        return {file: templates.text(f"{_FOLDER}/{name}", values) for file, name in self.templates}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        return templates.text(f"{_FOLDER}/{self.about}", values_of(handout, script))


class Torchrun(TemplateLauncher):
    """`torch.distributed.run` on this machine, or on each of several."""

    templates = (("launch.sh", "torchrun.sh.j2"),)
    about = "torchrun.md.j2"


class Accelerate(TemplateLauncher):
    """`accelerate launch` with its YAML, which names the `ds_config.json` beside it."""

    templates = (("launch.sh", "accelerate.sh.j2"), (ACCELERATE_FILE, "accelerate.yaml.j2"))
    about = "accelerate.md.j2"


class DeepSpeedLauncher(TemplateLauncher):
    """DeepSpeed's own launcher, which reaches the machines in a `hostfile` by itself."""

    templates = (("launch.sh", "deepspeed.sh.j2"), ("hostfile", "hostfile.j2"))
    about = "deepspeed.md.j2"


class Slurm(TemplateLauncher, NodeLauncher):
    """A batch job: one task a node."""

    templates = (("job.sbatch", "job.sbatch.j2"),)
    about = "slurm.md.j2"


class Kubernetes(TemplateLauncher, NodeLauncher):
    """A PyTorchJob of the Kubeflow training operator, and what submits it."""

    templates = (("pytorchjob.yaml", "pytorchjob.yaml.j2"), ("submit.sh", "submit.sh.j2"))
    about = "kubernetes.md.j2"


class SkyPilot(TemplateLauncher, NodeLauncher):
    """A task of SkyPilot, which rents or finds the nodes."""

    templates = (("sky.yaml", "sky.yaml.j2"),)
    about = "skypilot.md.j2"


class Ray(TemplateLauncher, NodeLauncher):
    """A job of a Ray cluster that holds whole nodes, and what it asks the cluster for."""

    templates = (("ray_job.py", "ray_job.py"), ("ray_job.json", "ray_job.json.j2"))
    about = "ray.md.j2"


def values_of(handout: Handout, script: str) -> dict[str, Any]:
    """The values of a template; `script` is the path in the export of what is started."""
    known = len(handout.hosts) == handout.n_nodes
    # What accelerate is told besides: other keys of DeepSpeed's clash with the file.
    config = json.loads(handout.exported.get(CONFIG_FILE, "{}"))
    return {
        "is_sharded": look_up(config, "zero_optimization.stage") == 3,
        "script": script,
        "world": handout.candidate.world,
        "n_nodes": handout.n_nodes,
        "per_node": handout.per_node,
        "hosts": list(handout.hosts) if known else [],
        "ranks": _ranks(handout, handout.hosts if known else ()),
        "accelerator": handout.environment.accelerator,
        "device": _device(handout.environment),
        "variables": sorted(handout.variables.items()),
        "lists": LIST_VARIABLES,
        "packages": [package.name for package in find_engine(handout.engine).packages],
        # Of a cluster's job.
        "name": job_name(handout),
        "is_whole": handout.per_node == handout.environment.n_devices,
    }


def _device(environment: Environment) -> str:
    memory_gib = environment.device_memory_bytes / 2**30
    with contextlib.suppress(FleetError):
        return find_accelerator(environment.device_name, memory_gib=memory_gib).name
    return environment.device_name


def _ranks(handout: Handout, hosts: Sequence[str]) -> list[str]:
    """Where the ranks lie, and how far each kind of group reaches; empty on one machine."""
    named = [name for name in hosts for _ in range(handout.per_node)]
    unnamed = machine_places(handout.candidate.world, handout.per_node)
    return describe_ranks(handout.candidate, named or unnamed)


def job_name(handout: Handout) -> str:
    """A name that Slurm and Kubernetes (RFC 1123: 63 characters) take."""
    name = f"{handout.study or handout.job.model.name}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"autotune-{plain}"[:50].rstrip("-")
