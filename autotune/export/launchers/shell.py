"""Launchers by their templates, which may use the ranks, the nodes and the variables of a run."""

import json
import re
from collections.abc import Sequence
from typing import Any, ClassVar

from autotune.base.nested import look_up
from autotune.base.templates import Templates
from autotune.contract import LIST_VARIABLES
from autotune.engines.base import find_engine
from autotune.export.base import Handout, Launch, Launcher, NodeLauncher
from autotune.space.ranks import describe_ranks, machine_places
from autotune.trial.engines.deepspeed import CONFIG_FILE

FOLDER = "launch"
"""Folder of their templates."""


class RanksLauncher(Launcher):
    """A launcher of ranks: files, each by a template, and one for the README."""

    templates: ClassVar[Sequence[tuple[str, str]]]
    """Each file, and its template."""
    sourced: ClassVar[Sequence[tuple[str, str]]] = ()
    """The same for a script that is sourced, where that differs."""
    about: ClassVar[str]
    """Template of how to start it."""

    def files(self, handout: Handout, script: str, templates: Templates) -> dict[str, str]:
        named = self.sourced if script.endswith(".sh") and self.sourced else self.templates
        values = values_of(handout, script)
        return {file: templates.text(f"{FOLDER}/{name}", values) for file, name in named}

    def usage(self, handout: Handout, script: str, templates: Templates) -> str:
        return templates.text(f"{FOLDER}/{self.about}", values_of(handout, script))


class JobLauncher(NodeLauncher):
    """A cluster's job, which runs `launch.sh` on its nodes: files, each by a template."""

    templates: ClassVar[Sequence[tuple[str, str]]]
    """Each file, and its template."""
    about: ClassVar[str]
    """Template of how to start it."""

    def files(self, handout: Handout, ranks: Launch, templates: Templates) -> dict[str, str]:
        values = job_values(handout)
        return {file: templates.text(f"{FOLDER}/{name}", values) for file, name in self.templates}

    def usage(self, handout: Handout, ranks: Launch, templates: Templates) -> str:
        return templates.text(f"{FOLDER}/{self.about}", job_values(handout))


def values_of(handout: Handout, script: str) -> dict[str, Any]:
    """The values of a launch script; `script` is its path in the export."""
    known = len(handout.hosts) == handout.n_nodes
    # What accelerate is told besides: other keys of DeepSpeed's clash with the file.
    config = json.loads(handout.exported.get(CONFIG_FILE, "{}"))
    return {
        "is_sharded": look_up(config, "zero_optimization.stage") == 3,
        "is_compiled": handout.workload.settings.get("compile", "none") != "none",
        "script": script,
        "world": handout.candidate.world,
        "n_nodes": handout.n_nodes,
        "per_node": handout.per_node,
        "hosts": list(handout.hosts) if known else [],
        "ranks": _ranks(handout, handout.hosts if known else ()),
        "accelerator": handout.environment.accelerator,
        "variables": sorted(handout.variables.items()),
        "lists": LIST_VARIABLES,
        "packages": [package.name for package in find_engine(handout.engine).packages],
    }


def _ranks(handout: Handout, hosts: Sequence[str]) -> list[str]:
    """Where the ranks lie, and how far each kind of group reaches; empty on one machine."""
    named = [name for name in hosts for _ in range(handout.per_node)]
    unnamed = machine_places(handout.candidate.world, handout.per_node)
    return describe_ranks(handout.candidate, named or unnamed)


def job_values(handout: Handout) -> dict[str, Any]:
    """The values of a cluster's job, which runs `launch.sh` on its nodes."""
    values, name = values_of(handout, "launch.sh"), job_name(handout)
    replicas = [("Master", 1), ("Worker", handout.n_nodes - 1)]
    return {
        **values,
        "name": name,
        "is_whole": handout.per_node == handout.environment.n_devices,
        "replicas": [(role, count) for role, count in replicas if count],
        "master": f"{name}-master-0",
    }


def job_name(handout: Handout) -> str:
    """A name that Slurm and Kubernetes (RFC 1123: 63 characters) take."""
    name = f"{handout.study or handout.job.model.name}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"autotune-{plain}"[:50].rstrip("-")
