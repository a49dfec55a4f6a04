"""Reading a user's YAML, and writing ours: data only, and strictly.

What autotune alone reads (`read_yaml`) is YAML 1.2, by its core schema: 010 is ten, 0o10 is eight,
1e3 is a number, and on, off, yes, no and dates are text. What another program reads is parsed as
that program does (`parse_yaml`): by PyYAML, which follows YAML 1.1.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from autotune.base.errors import JobError
from autotune.base.nested import MAX_DEPTH, is_too_deep, kind_in_words
from autotune.base.user_text import unread
from autotune.contract import read_bounded

MAX_FILE_BYTES = 1_000_000
_MAX_NUMBER_BITS = 4096
"""Bits of a whole number: Python refuses to print more than 4300 digits, even in an error."""
_MOST_NODES = 100_000
"""Keys and values of a document, with its aliases written out: what is bounded is the time."""
_UNFIT = re.compile("[\0\ud800-\udfff]")
"""Half of a character, and the end of a string in C: neither can be part of a path."""
HINT = "write `key: value` lines"
_COUNT = re.compile(r"([0-9]+|[0-9]{1,3}(?:[_,][0-9]{3})+) ?([kKmM]?)")
_FACTORS = {"": 1, "k": 1024, "m": 1024**2}


def _at(problem: str, mark: yaml.Mark) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _StrictLoader(yaml.SafeLoader):
    """YAML without what hides mistakes or explodes: no key twice, no great depth or size."""

    _depth = 0
    twice: list[str] | None = None
    """Where the keys that stand twice are told; None: they are refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RecursionError
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here and not where it is constructed: a merge (`<<`) brings keys twice by then.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen and self.twice is not None:
                    self.twice.append(f"{key.value} (line {key.start_mark.line + 1})")
                elif key.value in seen:
                    raise _at(f"the key {key.value!r} stands here twice", key.start_mark)
                seen.add(key.value)
        return node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None and _size(node, {}) > _MOST_NODES:
            raise _at("its aliases make more of it than anybody reads", node.start_mark)
        return node

    def construct_yaml_str(self, node: yaml.ScalarNode) -> str:
        value: str = super().construct_yaml_str(node)
        if _UNFIT.search(value):
            raise _at("a text with a character that no text has", node.start_mark)
        return value

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        # Python itself converts no text of many digits, and says so in words for programmers.
        if len(node.value) <= _MAX_NUMBER_BITS:
            value: int = super().construct_yaml_int(node)
            if value.bit_length() <= _MAX_NUMBER_BITS:
                return value
        raise _at("no number is so long", node.start_mark)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:str", _StrictLoader.construct_yaml_str)


def _size(node: yaml.Node, known: dict[int, float]) -> float:
    """Nodes of a document with its aliases written out; of one that holds itself, infinite."""
    if id(node) not in known:
        known[id(node)] = math.inf  # until it is counted: who meets it now stands in it
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        below = (one for item in inner for one in (item if isinstance(item, tuple) else (item,)))
        known[id(node)] = 1 + sum(_size(one, known) for one in below)
    return known[id(node)]


class _ExponentLoader(_StrictLoader):
    """The same, with 5e8 and 1e-4 as numbers, which are text in YAML 1.1."""


_ExponentLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


_TAG = "tag:yaml.org,2002:"
_CORE = {
    f"{_TAG}null": (re.compile(r"(?:null|Null|NULL|~|)$"), ["n", "N", "~", ""]),
    f"{_TAG}bool": (re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")),
    f"{_TAG}int": (re.compile(r"(?:[-+]?\d+|0o[0-7]+|0x[\da-fA-F]+)$", re.A), [*"-+0123456789"]),
    f"{_TAG}float": (
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
            r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        list("-+.0123456789"),
    ),
}
"""Tag -> which plain text it is, and how that begins.

Source: YAML 1.2.2, 10.3.2 (tag resolution of the core schema)."""


class _CoreLoader(_StrictLoader):
    """YAML 1.2, of which the core schema and no other tag."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        if len(found) < len(node.value):  # such as 16 and 0x10
            raise _at("two keys of this section mean the same", node.start_mark)
        return found

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        value = number_of(str(node.value))
        is_infinite = isinstance(value, float) and math.isinf(value)
        if value is None or (is_infinite and ".inf" not in node.value.lower()):
            raise _at(f"{node.value[:60]!r} is no number of YAML 1.2", node.start_mark)
        return value


_CoreLoader.yaml_implicit_resolvers = {}
_CoreLoader.yaml_constructors = {
    tag: make
    for tag, make in _StrictLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in ("str", "seq", "map", "null", "bool")
}
for _tag, _pattern_and_first in _CORE.items():
    _CoreLoader.add_implicit_resolver(_tag, *_pattern_and_first)
for _kind in ("int", "float"):
    _CoreLoader.add_constructor(_TAG + _kind, _CoreLoader.construct_number)


class Dumper(yaml.SafeDumper):
    """Writes what `read_yaml` reads back, and a reader of YAML 1.1 too.

    Text that either would take for something else stands in quotes, and nothing is an alias.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, (_pattern, _first) in _CORE.items():
    Dumper.add_implicit_resolver(_tag, _pattern, _first)


def dump_yaml(data: Mapping[str, Any]) -> str:
    """Data as YAML that `read_yaml` reads back the same."""
    text: str = yaml.dump(dict(data), Dumper=Dumper, sort_keys=False)
    return text


def number_of(text: str) -> int | float | None:
    """The number that a text is to YAML 1.2; None where it is none, or has no end."""
    if len(text) > _MAX_NUMBER_BITS:
        return None
    if not any(_CORE[_TAG + kind][0].match(text) for kind in ("int", "float")):
        return None
    if text[:2] in ("0o", "0x"):
        return int(text[2:], 8 if text[1] == "o" else 16)
    unsigned = text.lstrip("+-").lower()
    if unsigned in (".inf", ".nan"):
        return float(text.replace(".", ""))
    return int(text) if unsigned.isdecimal() else float(text)


def read_yaml(path: Path, *, hint: str = HINT) -> dict[str, Any]:
    """Read a YAML mapping of ours, by YAML 1.2; the hint says what such a file should hold.

    Raises:
        JobError: The file cannot be read, is too large or not YAML, has a key twice, is nested too
            deep or large by its aliases, or does not hold a mapping.
    """
    try:
        text = read_bounded(path, MAX_FILE_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        expected = f"name a YAML file that can be read, as text in UTF-8: {hint}"
        raise JobError(f"{path}: {unread(error)}", expected) from error
    return _mapping(text, path, _CoreLoader, hint)


def parse_yaml(
    text: str, path: Path, *, reads_exponents: bool = False, twice: list[str] | None = None
) -> dict[str, Any]:
    """The mapping that a YAML text of another program's holds; the path is for the error.

    Args:
        text: One document.
        path: Where it is from.
        reads_exponents: Whether `5e8` is a number, as to OmegaConf and jsonargparse; to PyYAML,
            which follows YAML 1.1, it is text, since it has neither point nor sign.
        twice: Takes up the keys that stand twice in a section, and the last one counts, as to
            PyYAML; None: they are refused.

    Raises:
        JobError: It is not YAML, has a key twice, is nested too deep or large by its aliases, or
            is no mapping.
    """
    return _mapping(text, path, _ExponentLoader if reads_exponents else _StrictLoader, HINT, twice)


def _mapping(
    text: str, path: Path, loader: type[_StrictLoader], hint: str, twice: list[str] | None = None
) -> dict[str, Any]:
    try:
        reader = loader(text)
        reader.twice = twice
        data = reader.get_single_data()
    except RecursionError as error:
        raise _too_deep(path) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = ", ".join(filter(None, (error.context, error.problem)))
        hint = "indent and separate with spaces: YAML takes no tab there"
        raise JobError(
            f"{path}{place}: not valid YAML: {problem}",
            hint if "'\\t'" in problem else "mend it there",
        ) from error
    except yaml.reader.ReaderError as error:
        problem = f"it holds the character #x{error.character:04x}, at place {error.position + 1}"
        raise JobError(f"{path}: is no text: {problem}", f"name a YAML file: {hint}") from error
    except (yaml.YAMLError, ValueError, TypeError, LookupError) as error:
        raise JobError(f"{path}: not valid YAML: {error}", "write plain YAML") from error
    if data is None:
        raise JobError(f"{path}: is empty", hint)
    if not isinstance(data, dict):
        raise JobError(f"{path}: holds {kind_in_words(data)}, not a mapping", hint)
    if is_too_deep(data):
        raise _too_deep(path)
    return data


def refuse_switch(value: Any) -> Any:
    """Refuse true and false, which would count as numbers.

    Raises:
        ValueError: It is true or false, which would count as 1 or 0.
    """
    if isinstance(value, bool):
        raise ValueError("should not be true or false")
    return value


def refuse_other_spelling(value: Any) -> Any:
    """Refuse text but for YAML 1.2's numbers: pydantic takes more.

    Raises:
        ValueError: As `refuse_switch`; or it is text that is no such number.
    """
    if isinstance(value, str) and number_of(value.strip()) is None:
        raise ValueError("should be a number, as YAML 1.2 writes it")
    return refuse_switch(value)


def whole_number(value: Any) -> Any:
    """A count as people write it: `8k` is 8 x 1024, `1M` is 1024 x 1024, `8,192` is `8_192`.

    Raises:
        ValueError: It is true or false, or text that is no number.
    """
    if not isinstance(value, str):
        return refuse_switch(value)
    if (found := _COUNT.fullmatch(value.strip())) is not None:
        return int(re.sub("[_,]", "", found[1])) * _FACTORS[found[2].lower()]
    if (number := number_of(value.strip())) is None:
        raise ValueError(
            "should be a whole number, such as 8192, 8k (8 x 1024) or 1M (1024 x 1024)"
        )
    return number


def only_switch(value: Any) -> bool:
    """A value for true or false: nothing else counts as one.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(value, bool):
        return value
    raise ValueError("should be true or false")


def _too_deep(path: Path) -> JobError:
    return JobError.of("base.too_deep", path=path, most=MAX_DEPTH)
