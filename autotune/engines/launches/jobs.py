"""Jobs in YAML and JSON, by which others start a launch: SkyPilot's, Kubernetes', an export's."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from autotune.base.nested import look_up
from autotune.engines.launches.files import DATA_SUFFIXES
from autotune.engines.launches.line import GPUS_OF_CONTAINER
from autotune.engines.launches.shell_syntax import OpenError, tokens_of
from autotune.engines.launches.shell_words import unplaced

_MAY_BE = re.compile(r"\b(?:run|command)[\"']?\s*:")
_PER_NODE = "PET_NPROC_PER_NODE"
_MAX_CHARACTERS = 2**18
"""Longest file that is read: PyYAML takes seconds for it."""


@lru_cache(maxsize=8)  # several readers of a file ask, and PyYAML is slow
def commands_of_job(text: str, path: Path) -> str:
    """The commands of a job as a shell text, on their lines of the file; empty: it is none.

    They are `run` of a task of SkyPilot's, and `command` with `args` of a container.
    """
    is_data = path.suffix in DATA_SUFFIXES and len(text) <= _MAX_CHARACTERS
    if not is_data or not _MAY_BE.search(text):
        return ""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return ""
    found: dict[str, int] = {}
    for line, command in _commands(root, _variables_of(_data(root)), is_root=True):
        with suppress(OpenError):  # prose is no command
            tokens_of(unplaced(command))
            found.setdefault(command, line)
    written = ""
    for command, line in found.items():
        written += "\n" * max(1, line - written.count("\n")) * bool(line) + command
    return written


def _commands(node: Any, given: Mapping[str, str], *, is_root: bool) -> Iterator[tuple[int, str]]:
    """The commands below a node, each with the line, from 0 on, on which it begins.

    Variables stand before one: those `given`, and how many GPUs its container has.
    """
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    members = {key.value: value for key, value in pairs if isinstance(key.value, str)}
    run, words = members.get("run"), [*_texts(members, "command"), *_texts(members, "args")]
    if is_root and isinstance(run, yaml.ScalarNode):
        yield run.start_mark.line + (run.style in ("|", ">")), _exported(given) + run.value
    if words and "command" in members:
        limits = look_up(_data(node), "resources.limits")
        limits = limits if isinstance(limits, dict) else {}
        for count in (count for name, count in limits.items() if str(name).endswith("/gpu")):
            given = {**given, GPUS_OF_CONTAINER: f"{count}"}
            if given.get(_PER_NODE) == "auto":
                given[_PER_NODE] = f"{count}"
        last = words[-1]
        line = last.start_mark.line + (last.style in ("|", ">"))
        yield line, _exported(given) + shlex.join(word.value for word in words)
    for value in node.value if isinstance(node, yaml.SequenceNode) else members.values():
        yield from _commands(value, given, is_root=False)


def _variables_of(job: Any) -> dict[str, str]:
    """Variables that SkyPilot, or Kubeflow's operator of a PyTorchJob, sets for commands."""
    replicas = look_up(job, "spec.pytorchReplicaSpecs")
    if isinstance(replicas, dict):
        counts = [look_up(one, "replicas") or 1 for one in replicas.values()]
        is_open = look_up(job, "spec.elasticPolicy") or any(type(one) is not int for one in counts)
        nodes = 0 if is_open else sum(counts)
        per_node = f"{look_up(job, 'spec.nprocPerNode') or 'auto'}"
        variables = dict.fromkeys(("PET_NODE_RANK", "PET_MASTER_ADDR"), "?")
        variables |= {"PET_NNODES": f"{nodes or '?'}", _PER_NODE: per_node}
        if "Master" in replicas:  # envvar.go: setPodEnv, which takes "auto" for 1
            world = nodes * (int(per_node) if per_node.isdecimal() else 1)
            variables["WORLD_SIZE"] = f"{world or '?'}"
        return variables
    kinds = look_up(job, "resources.accelerators")
    count = next(iter(kinds.values()), None) if isinstance(kinds, dict) else kinds
    if isinstance(kinds, str):
        count = kinds.partition(":")[2] or "1"
    found = {
        "SKYPILOT_NUM_NODES": look_up(job, "num_nodes") or 1,
        "SKYPILOT_NUM_GPUS_PER_NODE": count,
    }
    is_skypilots = look_up(job, "run") is not None
    return {name: f"{n}" for name, n in found.items() if is_skypilots and f"{n}".isdecimal()}


def _data(node: Any) -> Any:
    """What a node holds; nothing where it has a tag of some other program."""
    try:
        return yaml.SafeLoader("").construct_document(node)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError):  # `!!int x`, `!!bool x`
        return {}


def _exported(variables: Mapping[str, str]) -> str:
    """A shell's line that sets variables, unknown if no plain word; empty: there are none."""
    sets = " ".join(f"{name}={n if n.isalnum() else '$UNKNOWN'}" for name, n in variables.items())
    return f"export {sets}; " if sets else ""


def _texts(members: Mapping[str, Any], name: str) -> list[Any]:
    items = members[name].value if isinstance(members.get(name), yaml.SequenceNode) else ()
    return list(items) if all(isinstance(one, yaml.ScalarNode) for one in items) else []
