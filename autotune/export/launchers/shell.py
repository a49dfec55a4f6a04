"""What the templates of launchers may use: the ranks, the nodes and the variables of a run."""

import re
from collections.abc import Sequence
from typing import Any

from autotune.contract import LIST_VARIABLES
from autotune.engines.base import find_engine
from autotune.export.base import Handout
from autotune.space.ranks import describe_ranks, machine_places


def values_of(handout: Handout, script: str) -> dict[str, Any]:
    """The values of a launch script; `script` is its path in the export."""
    known = len(handout.hosts) == handout.n_nodes
    return {
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
    values = values_of(handout, "launch.sh")
    return {
        **values,
        "name": job_name(handout),
        "is_whole": handout.per_node == handout.environment.n_devices,
    }


def job_name(handout: Handout) -> str:
    """A name that Slurm and Kubernetes (RFC 1123: 63 characters) take."""
    name = f"{handout.study or handout.job.model.name}"
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"autotune-{plain}"[:50].rstrip("-")
