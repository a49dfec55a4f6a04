"""Reading a user's YAML: data only, and strictly."""

import re
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import JobError
from autotune.base.nested import MAX_DEPTH, is_too_deep, kind_in_words
from autotune.contract import read_bounded

MAX_FILE_BYTES = 1_000_000
_MAX_NUMBER_BITS = 4096
"""Bits of a whole number: Python refuses to print more than 4300 digits, even in an error."""
_UNFIT = re.compile("[\0\ud800-\udfff]")
"""Half of a character, and the end of a string in C: neither can be part of a path."""
HINT = "write `key: value` lines"


def _at(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _StrictLoader(yaml.SafeLoader):
    """YAML without what hides mistakes or explodes: no aliases, no key twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise _at("aliases are not allowed: write the value out", self.get_mark())
        node: yaml.Node | None = super().compose_node(parent, index)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _at(f"the key {key.value!r} stands here twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        value: str = super().construct_yaml_str(node)
        if _UNFIT.search(value):
            raise _at("a text with a character that no text has", node.start_mark)
        return value

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        value: int = super().construct_yaml_int(node)
        if value.bit_length() > _MAX_NUMBER_BITS:
            raise _at("no number is so long", node.start_mark)
        return value


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:str", _StrictLoader.construct_yaml_str)


class _ExponentLoader(_StrictLoader):
    """The same, with 5e8 and 1e-4 as numbers, which are text in YAML 1.1."""


_ExponentLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_yaml(path: Path, *, hint: str = HINT) -> dict[str, Any]:
    """Read a YAML mapping; the hint says what such a file should hold.

    Raises:
        JobError: The file cannot be read, is too large or not YAML, has a key twice or an alias,
            or does not hold a mapping.
    """
    try:
        data = read_bounded(path)
        if len(data) > MAX_FILE_BYTES:
            raise JobError(f"{path}: larger than {MAX_FILE_BYTES} bytes", hint)
        text = data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"{path}: cannot be read: {error}", "name a readable YAML file") from error
    return parse_yaml(text, path, hint=hint)


def parse_yaml(
    text: str, path: Path, *, hint: str = HINT, reads_exponents: bool = False
) -> dict[str, Any]:
    """The mapping that a YAML text holds; the path and the hint are for the error.

    Args:
        text: One document.
        path: Where it is from.
        hint: What such a file should hold.
        reads_exponents: Whether `5e8` is a number, as to OmegaConf and jsonargparse; to PyYAML,
            which follows YAML 1.1, it is text, since it has neither point nor sign.

    Raises:
        JobError: It is not YAML, has a key twice or an alias, is nested too deep, or is no
            mapping.
    """
    try:
        loader = _ExponentLoader if reads_exponents else _StrictLoader
        data = loader(text).get_single_data()
    except RecursionError as error:
        raise _too_deep(path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        said = ", ".join(filter(None, (error.context, error.problem)))
        raise JobError(f"{path}{place}: not valid YAML: {said}", "mend it there") from error
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise JobError(f"{path}: not valid YAML: {error}", "write plain YAML") from error
    if data is None:
        raise JobError(f"{path}: is empty", hint)
    if not isinstance(data, dict):
        raise JobError(f"{path}: holds {kind_in_words(data)}, not a mapping", hint)
    if is_too_deep(data):
        raise _too_deep(path)
    return data


def refuse_switch(value: Any) -> Any:
    """A value that is no number by accident: YAML reads yes, no, on and off as true and false.

    Raises:
        ValueError: It is true or false, which would count as 1 or 0.
    """
    if isinstance(value, bool):
        raise ValueError("should not be true or false (in YAML also yes, no, on, off)")
    return value


def _too_deep(path: Path) -> JobError:
    return JobError(
        f"{path}: sections and lists are nested deeper than {MAX_DEPTH} levels",
        "remove levels: no key needs so many",
    )
