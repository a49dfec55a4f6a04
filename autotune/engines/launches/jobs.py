"""Jobs in YAML and JSON, by which others start a launch: SkyPilot's, Kubernetes', an export's."""

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from autotune.engines.launches.files import DATA_SUFFIXES
from autotune.engines.launches.line import GPUS_OF_CONTAINER
from autotune.engines.launches.shell_syntax import OpenError, tokens_of
from autotune.engines.launches.shell_words import unplaced

_MAY_BE = re.compile(r"\b(?:run|command)[\"']?\s*:")
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
    for line, command in _commands(root, is_root=True):
        with suppress(OpenError):  # prose is no command
            tokens_of(unplaced(command))
            found.setdefault(command, line)
    written = ""
    for command, line in found.items():
        written += "\n" * max(1, line - written.count("\n")) * bool(line) + command
    return written


def _commands(
    node: Any, given: Mapping[str, Any] = MappingProxyType({}), *, is_root: bool = False
) -> Iterator[tuple[int, str]]:
    """The commands below a node, each with the line, from 0 on, on which it begins.

    Variables stand before one: those `given`, and how many GPUs its container has.
    """
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _commands(item, given)
    members = _members(node)
    run, words = members.get("run"), [*_texts(members, "command"), *_texts(members, "args")]
    if is_root:
        given = _of_kubeflow(members)
    if is_root and isinstance(run, yaml.ScalarNode):
        line = run.start_mark.line + (run.style in ("|", ">"))
        yield line, _exported(_of_skypilot(members)) + run.value
    if words and "command" in members:
        last = words[-1]
        line = last.start_mark.line + (last.style in ("|", ">"))
        limits = _members(_below(members, "resources", "limits"))
        gpus = [value.value for name, value in limits.items() if name.endswith("/gpu")]
        given = {**given, **({GPUS_OF_CONTAINER: gpus[0]} if gpus else {})}
        if gpus and given.get("PET_NPROC_PER_NODE") == "auto":
            given |= {"PET_NPROC_PER_NODE": gpus[0]}
        yield line, _exported(given) + shlex.join(word.value for word in words)
    for value in members.values():
        yield from _commands(value, given)


def _of_skypilot(members: Mapping[str, Any]) -> dict[str, str]:
    """Variables that SkyPilot sets for `run` of a task."""
    kinds = _below(members, "resources", "accelerators")
    name, _, count = _text(kinds).partition(":")
    counts = [*map(_text, _members(kinds).values()), count or "1" if name else ""]
    given = {
        "SKYPILOT_NUM_NODES": _text(members.get("num_nodes"), "1"),
        "SKYPILOT_NUM_GPUS_PER_NODE": counts[0],
    }
    return {name: count for name, count in given.items() if count.isdecimal()}


def _of_kubeflow(members: Mapping[str, Any]) -> dict[str, str]:
    """Variables that Kubeflow's operator sets for the containers of a PyTorchJob."""
    if _text(members.get("kind")) != "PyTorchJob":
        return {}
    spec = _members(members.get("spec"))
    replicas = _members(spec.get("pytorchReplicaSpecs")).values()
    counts = [_text(_members(one).get("replicas"), "1") for one in replicas]
    is_known = "elasticPolicy" not in spec and all(map(str.isdecimal, counts))
    nodes = str(sum(map(int, counts))) if is_known else "$PET_NNODES"
    per_node = _text(spec.get("nprocPerNode"), "auto")
    return {"PET_NNODES": nodes, "WORLD_SIZE": nodes, "PET_NPROC_PER_NODE": per_node}


def _exported(variables: Mapping[str, str]) -> str:
    """The beginning of a shell's line that sets variables; empty: there are none."""
    sets = " ".join(f"{name}={value}" for name, value in variables.items())
    return f"export {sets}; " if sets else ""


def _below(members: Mapping[str, Any], section: str, name: str) -> Any:
    return _members(members.get(section)).get(name)


def _members(node: Any) -> dict[str, Any]:
    """The values of a mapping by their names; none where it is no mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return {key.value: value for key, value in pairs if isinstance(key.value, str)}


def _text(node: Any, default: str = "") -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else default


def _texts(members: Mapping[str, Any], name: str) -> list[Any]:
    """The nodes of a list of texts."""
    items = members[name].value if isinstance(members.get(name), yaml.SequenceNode) else ()
    return list(items) if all(isinstance(one, yaml.ScalarNode) for one in items) else []
