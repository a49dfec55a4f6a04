"""Jobs in YAML and JSON, by which others start a launch: SkyPilot's, Kubernetes', an export's."""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from autotune.engines.launches.files import DATA_SUFFIXES
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


def _commands(node: Any, *, is_root: bool = False) -> Iterator[tuple[int, str]]:
    """The commands below a node, each with the line, from 0 on, on which it begins."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _commands(item)
    if not isinstance(node, yaml.MappingNode):
        return
    members = {key.value: value for key, value in node.value if isinstance(key.value, str)}
    run, words = members.get("run"), [*_texts(members, "command"), *_texts(members, "args")]
    if is_root and isinstance(run, yaml.ScalarNode):
        yield run.start_mark.line + (run.style in ("|", ">")), run.value
    if words and "command" in members:
        last = words[-1]
        line = last.start_mark.line + (last.style in ("|", ">"))
        yield line, shlex.join(word.value for word in words)
    for value in members.values():
        yield from _commands(value)


def _texts(members: dict[str, Any], name: str) -> list[Any]:
    """The nodes of a list of texts."""
    items = members[name].value if isinstance(members.get(name), yaml.SequenceNode) else ()
    return list(items) if all(isinstance(one, yaml.ScalarNode) for one in items) else []
