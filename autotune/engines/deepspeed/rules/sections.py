"""The keys of a ds_config: what DeepSpeed reads, which values it takes, and since when.

`keys.json` is recorded by `make keys`, release by release (`releases.READ`); a test compares it
with the installed one, and `make versions` with those in `releases.TRIED`. `absent_through` names
the last release read that lacks a key, so one between two is given the benefit of the doubt.
`types.json` says what a type of it takes. DeepSpeed's strict sections are pydantic classes in
pydantic's lax mode; the others are read as they are.
"""

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache, partial
from typing import Any, Final, Literal

from autotune.base.data import table_beside
from autotune.base.names import misspelt
from autotune.base.nested import Unknown, key_in_words
from autotune.base.secrecy import HIDDEN, holds_secret
from autotune.engines.releases import is_at_least
from autotune.space.rule import Facts, UnknownFactError

AUTO = "auto"
"""The value that other software replaces."""

PARAMS = ("optimizer.params", "scheduler.params")
"""Sections that DeepSpeed passes on as they are to what it builds."""

CANONICAL = {
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""DeepSpeed's words for a format (runtime/config.py: DtypeEnum) -> ours."""

_UNREADABLE = Unknown("no value of its kind")
_LONGEST = 60
"""Letters of a value that a message shows."""
_MOST_DIGITS = 1e15
"""From here on a whole number is written with an exponent."""
_SCALARS = frozenset({bool, int, float, str, type(None), list})
_OF_NAME: Mapping[str, type] = {
    **{kind.__name__: kind for kind in (bool, int, float, str, list)},
    **{"whole": float, "null": type(None), "section": dict},
}

_Check = Callable[[Any], bool]
_Convert = Callable[[Any], Any]
_Kind = Literal["bool", "int", "float"]


class Refused(Enum):
    """No value: DeepSpeed raises on what is written."""

    REFUSED = "refused"


REFUSED: Final = Refused.REFUSED


def as_pydantic(kind: _Kind, value: Any) -> Any:
    """What pydantic makes of a value in its lax mode, `REFUSED` where it raises.

    Its compiled half alone decides, and is imported where a value is odd: `check` starts without.
    """
    import pydantic_core

    try:
        return _validator(kind).validate_python(value)
    except pydantic_core.ValidationError:
        return REFUSED


@lru_cache
def _validator(kind: _Kind) -> Any:
    from pydantic_core import SchemaValidator, core_schema

    schemas = {
        "bool": core_schema.bool_schema(),
        "int": core_schema.int_schema(),
        "float": core_schema.float_schema(),
    }
    return SchemaValidator(schemas[kind])


def _refuse(_: Any) -> Any:
    return REFUSED


def _unless(kind: type, convert: _Convert, value: Any) -> Any:
    return REFUSED if type(value) is kind else convert(value)


def _python_int(value: Any) -> Any:
    """What pydantic makes of a value that `int()` takes too: of "1", not of "1.0"."""
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return REFUSED
    return REFUSED if type(value) is bool else as_pydantic("int", value)


def _plain_int(value: Any) -> Any:
    """A whole number that nothing converts: Python computes with 16.0 and true, not with text."""
    is_whole = type(value) is float and value.is_integer()
    return int(value) if type(value) is bool or is_whole else REFUSED


_READS: Mapping[str, _Convert] = {
    "": _refuse,
    "bool": partial(as_pydantic, "bool"),
    "int": partial(as_pydantic, "int"),
    "float": partial(as_pydantic, "float"),
    "python_int": _python_int,
    "plain_int": _plain_int,
    # Read as it is, and asked as Python asks: any text is true, and so is "false".
    "truth": bool,
    # Read as it is, and joined with another by `|`, or looked up in a list of both.
    "joined": lambda v: bool(v) if type(v) is int else REFUSED,
    "listed": lambda v: bool(v) if v in (0, 1) else REFUSED,
    "flag": lambda v: int(v) if type(v) is bool else REFUSED,
    # DeepSpeed takes the remainder of a division by it: -2 leaves the one that 2 leaves.
    "period": lambda v: abs(v) if type(v) in (bool, int, float) else REFUSED,
    # runtime/zero/config.py: read_zero_config_deprecated
    "switch": lambda v: {"stage": int(v)} if type(v) is bool else REFUSED,
    # DeepSpeed asks whether `throughput` is in it.
    "timers": lambda v: {} if isinstance(v, (str, list)) and "throughput" not in v else REFUSED,
    # Read as it is: what a list of names is asked for is in a section, too.
    "names": lambda v: [*v] if isinstance(v, Mapping) else REFUSED,
}
"""What DeepSpeed makes of a value of another type, by the name that `types.json` gives it."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a section."""

    wants: str
    """The legal values, for people."""
    accepts: _Check
    absent_through: str = ""
    """The last release read that does not know the key; empty: all know it."""
    removed_in: str = ""
    """The first release that refuses the key, with any value; empty: none does."""
    why_removed: str = ""
    words: tuple[str, ...] = ()
    """The words that it takes, where they are few."""
    converts: _Convert = _refuse
    """What DeepSpeed makes of a value that `accepts` does not know; `REFUSED` where it raises."""
    is_raw: bool = False
    """Whether DeepSpeed computes with it before a class of its own drops an "auto"."""

    def taken(self, value: Any) -> Any:
        """The value as DeepSpeed converts it; `REFUSED` where it raises."""
        if self.accepts(value):
            return value
        made = self.converts(value)
        return made if made is not REFUSED and self.accepts(made) else REFUSED

    def meant(self, value: Any) -> Any:
        """The value that a value of another type must mean; `REFUSED` where nobody can say."""
        if self.accepts(value):
            return value
        if isinstance(value, str) and (word := misspelt(value, self.words)) is not None:
            return word
        made = [as_pydantic(kind, value) for kind in ("bool", "int", "float")]
        floats = [one for one in made if type(one) is float and one.is_integer()]
        made[-1:-1] = [int(one) for one in floats if abs(one) < _MOST_DIGITS]
        found = (one for one in made if one is not REFUSED and self.accepts(one))
        return next(found, self.taken(value))

    def is_removed(self, version: str) -> bool:
        """Whether a release of DeepSpeed refuses the key because it removed it."""
        return bool(self.removed_in) and is_at_least(version, self.removed_in)

    def is_missing(self, version: str) -> bool:
        """Whether a release of DeepSpeed does not know the key yet."""
        return bool(self.absent_through) and is_at_least(self.absent_through, version)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A mapping inside a ds_config."""

    keys: Mapping[str, Key]
    strict: bool
    """Whether DeepSpeed raises on an unknown key (its pydantic sections) or ignores it."""
    strict_from: str = ""
    """The first release that is so strict; empty: all are. Before it, the section was a dict."""

    def is_strict(self, version: str) -> bool:
        """Whether a release raises on an unknown key of this section."""
        return self.strict and (not self.strict_from or is_at_least(version, self.strict_from))


def key_of(row: str | Mapping[str, Any]) -> Key:
    """One key as `keys.json` tells it: the name of its type, or that and what else holds."""
    return _key_of_type(row) if isinstance(row, str) else _key_of_row(row)


@cache
def _key_of_type(name: str) -> Key:
    return _key_of_row({"type": name})


def _key_of_row(row: Mapping[str, Any]) -> Key:
    usual = "word" if "one_of" in row else "list" if "list_of" in row else "any"
    kind = _TYPES[row.get("type", usual)] | row
    accepts, wants, converts = _accepts(kind), _wants(kind, row), _READS[kind.get("reads", "")]
    if row.get("is_raw") or row.get("auto"):  # as one of two types, text is text
        converts = partial(_unless, str, converts)
    if row.get("no_bool"):
        converts = partial(_unless, bool, converts)
    also = [word for mark, word in (("auto", AUTO), ("null", None)) if row.get(mark)]
    for word in also:
        wants = f"{wants.replace(' or ', ', ')} or {json.dumps(word)}"
    return Key(
        wants=wants,
        accepts=(lambda v: v in also or accepts(v)) if also else accepts,
        absent_through=row.get("absent_through", ""),
        removed_in=row.get("removed_in", ""),
        why_removed=row.get("why_removed", ""),
        words=tuple(kind.get("one_of", ())),
        converts=converts,
        is_raw=row.get("is_raw", False),
    )


def _wants(kind: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    if "one_of" in kind:
        return "one of " + ", ".join(kind["one_of"])
    if "list_of" in kind:
        return "a list of " + ", ".join(kind["list_of"])
    wants: str = kind["wants"]
    if "minimum" not in row:
        return wants
    if "maximum" in row:
        return f"{wants} from {row['minimum']:g} to {row['maximum']:g}"
    word = "from" if row["type"] == "number" else "of at least"
    return f"{wants} {word} {row['minimum']:g}"


def _accepts(kind: Mapping[str, Any]) -> _Check:
    """The check of a type; numbers are compared alone, since no float holds 400 digits."""
    if "of" not in kind:
        return lambda _: True
    if kind["of"] == ["section"]:
        return lambda v: type(v) is dict or isinstance(v, Mapping)
    types, but = {_OF_NAME[name] for name in kind["of"]}, kind.get("but", ())
    if (words := kind.get("one_of")) is not None:
        is_any_case = kind.get("any_case", False)
        return lambda v: type(v) is str and (v.lower() if is_any_case else v) in words
    if not types & {int, float}:
        is_item = _is_item(kind)
        return lambda v: (
            type(v) in types and v not in but and (type(v) is not list or all(map(is_item, v)))
        )
    least, most = kind.get("minimum", -math.inf), kind.get("maximum", math.inf)
    above, below, is_whole = kind.get("above"), kind.get("below"), "whole" in kind["of"]

    def accepts(value: Any) -> bool:
        return (
            type(value) in types
            and least <= value <= most
            and (above is None or value > above)
            and (below is None or value < below)
            and (not is_whole or type(value) is int or value.is_integer())
            and value not in but
        )

    return accepts


def _is_item(kind: Mapping[str, Any]) -> _Check:
    if "list_of" in kind:
        return lambda v: v in kind["list_of"]
    return lambda v: kind.get("items") != "text" or type(v) is str


def _section(row: Mapping[str, Any]) -> Section:
    keys = {name: key_of(key_row) for name, key_row in row["keys"].items()}
    keys |= {second: keys[first] for second, first in row.get("spellings", {}).items()}
    return Section(
        keys=keys, strict=row.get("strict", False), strict_from=row.get("strict_from", "")
    )


_TYPES = table_beside(__file__, "types.json")
_TABLE = table_beside(__file__, "keys.json")

SECTIONS: Mapping[str, Section] = {path: _section(row) for path, row in _TABLE.items()}
"""Dotted path of a section -> its keys; the empty path is the whole file. Sections that are not
here (`pipeline`, `datastates_ckpt`, what a curriculum holds, ...) are not looked into."""

ELEMENTS = key_of({"type": "integer", "minimum": 0})

ACCELERATES: Mapping[str, str] = table_beside(__file__, "accelerate_keys.json")
"""Field of accelerate's section for DeepSpeed -> the key that it fills in."""

SPELLINGS: Mapping[str, str] = _TABLE["zero_optimization"]["spellings"]
"""Second spelling of a `zero_optimization` key -> the first: pydantic's field name and alias."""

DEPRECATED: Mapping[str, str] = _TABLE["zero_optimization"]["deprecated"]
"""Deprecated key of `zero_optimization` -> the one that replaces it."""

_ODD = frozenset(
    {
        *("cpu_offload_use_pin_memory", "bfloat16", *DEPRECATED, *SPELLINGS),
        *("tensorboard", "csv_monitor", "wandb", "comet"),
        *("data_efficiency", "datastates_ckpt", "checkpoint", "hybrid_engine"),
    }
)
"""Deprecated keys, second spellings, and sections that rules look into which the search need not
ask."""


@lru_cache(maxsize=64)
def _plain_keys(version: str) -> Mapping[str, Mapping[str, _Check]]:
    """Section -> key -> check, of the keys that a release reads under this name alone."""
    return {
        path: {
            name: key.accepts
            for name, key in section.keys.items()
            if name not in _ODD and not key.is_removed(version) and not key.is_missing(version)
        }
        for path, section in SECTIONS.items()
    }


def is_plain(config: Mapping[str, Any], version: str) -> bool:
    """Whether no rule about keys and their values has anything to say; the fast way to know.

    Almost every setup that is judged is one that a template rendered, so this is the hot path.
    """
    return _is_plain(config, "", _plain_keys(version))


def _is_plain(content: Mapping[str, Any], path: str, tables: Mapping[str, Any]) -> bool:
    checks = tables[path]
    for name, value in content.items():
        check = checks.get(name)
        if check is None or not check(value):
            return False
        kind = type(value)
        if kind is dict or (kind not in _SCALARS and isinstance(value, Mapping)):
            inner = f"{path}.{name}" if path else name
            if inner in tables:
                if not _is_plain(value, inner, tables):
                    return False
            elif inner in PARAMS and any(map(is_auto, value.values())):
                return False
    return True


def sections(config: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], Section]]:
    """Every section of a configuration that the table describes: path, content, description.

    A section of which nothing is known is left out: it must not silence findings on the others.
    """
    for path, section in SECTIONS.items():
        content = _content(config, path)
        if content and isinstance(content, Mapping):
            yield path, content, section


def known_items(content: Mapping[str, Any], section: Section) -> Iterator[tuple[str, Key, Any]]:
    """The keys of a section that DeepSpeed knows, and whose value is known, with both."""
    keys = section.keys
    for name, value in known_values(content):
        if name in keys:
            yield name, keys[name], value


def known_values(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of a section whose value is known, with it."""
    return ((name, value) for name, value in content.items() if not isinstance(value, Unknown))


def _content(config: Mapping[str, Any], path: str) -> Any:
    content: Any = config
    with contextlib.suppress(UnknownFactError):
        for part in path.split(".") if path else ():
            content = content.get(part) if isinstance(content, Mapping) else None
        return content
    return None


def dotted(path: str, name: object) -> str:
    """The name of a key for people."""
    return f"{path}.{key_in_words(name)}" if path else key_in_words(name)


def shown(name: object, value: Any) -> str:
    """A value as a file would say it; a secret hidden, a long one cut."""
    if holds_secret(name, value):
        return HIDDEN
    if isinstance(value, Mapping):
        return "a section"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def as_read(config: Mapping[str, Any], version: str) -> Facts:
    """A configuration as a release reads it: converted, and `Unknown` where nobody can tell."""
    return _as_read(config, "", version)


def _as_read(content: Mapping[str, Any], path: str, version: str) -> Facts:
    section, facts = SECTIONS.get(path), Facts(content, tuple(path.split(".")) if path else ())
    for name, value in content.items():
        key = section.keys.get(name) if section is not None else None
        if isinstance(value, Unknown):
            continue
        if section is not None and key is not None and not key.accepts(value):
            if is_auto(value) and section.is_strict(version) and not key.is_raw:
                del facts[name]  # it is dropped
                continue
            taken = key.taken(value)
            taken = key.meant(value) if taken is REFUSED else taken
            facts[name] = _UNREADABLE if taken is REFUSED or is_auto(value) else taken
        elif path in PARAMS and is_auto(value):
            facts[name] = _UNREADABLE
        elif isinstance(value, Mapping):
            facts[name] = _as_read(value, f"{path}.{name}" if path else str(name), version)
    return facts


def is_auto(value: Any) -> bool:
    """Whether a value is "auto", which other software fills in, but not DeepSpeed."""
    return isinstance(value, str) and value == AUTO
