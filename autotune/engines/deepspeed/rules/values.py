"""Legal values of a ds_config: checks with words for people, and DeepSpeed's conversions.

DeepSpeed's strict sections are pydantic classes in pydantic's lax mode; the others are read as
they are. A test holds both to the installed release, on a grid of values.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final, Literal

from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.engines.deepspeed.rules.spelling import misspelt

Check = Callable[[Any], bool]
Kind = Literal["bool", "int", "float"]

_MAX_INT = 2**63 - 1  # of a tensor's size; pydantic takes no larger float for a whole number
_MAX_FLOAT = sys.float_info.max
_MOST_DIGITS = 1e15
"""From here on a whole number is written with an exponent."""


class Refused(Enum):
    """No value: DeepSpeed raises on what is written."""

    REFUSED = "refused"


REFUSED: Final = Refused.REFUSED


def as_pydantic(kind: Kind, value: Any) -> Any:
    """What pydantic makes of a value in its lax mode, `REFUSED` where it raises.

    Its compiled half alone decides, and is imported where a value is odd: `check` starts without.
    """
    import pydantic_core

    try:
        return _validator(kind).validate_python(value)
    except pydantic_core.ValidationError:
        return REFUSED


@lru_cache
def _validator(kind: Kind) -> Any:
    from pydantic_core import SchemaValidator, core_schema

    schemas = {
        "bool": core_schema.bool_schema(),
        "int": core_schema.int_schema(),
        "float": core_schema.float_schema(),
    }
    return SchemaValidator(schemas[kind])


def _refuse(_: Any) -> Any:
    return REFUSED


def _unless(kind: type, convert: Callable[[Any], Any], value: Any) -> Any:
    return REFUSED if type(value) is kind else convert(value)


def _as_python_int(value: Any) -> Any:
    """What pydantic makes of a value that `int()` takes too: of "1", not of "1.0"."""
    try:
        int(value)
    except (TypeError, ValueError, OverflowError):
        return REFUSED
    return as_pydantic("int", value)


def _plain_int(value: Any) -> Any:
    """A whole number that nothing converts: Python computes with 16.0 and true, not with text."""
    if type(value) is bool or (type(value) is float and value.is_integer()):
        return int(value)
    return REFUSED


def _period(value: Any) -> Any:
    """Every step is divided by -2 without a remainder that 2 divides so."""
    return abs(value) if type(value) in (bool, int, float) else REFUSED


def _switched(value: Any) -> Any:
    """`runtime/zero/config.py`: read_zero_config_deprecated."""
    return {"stage": int(value)} if type(value) is bool else REFUSED


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a section."""

    wants: str
    """The legal values, for people."""
    accepts: Check
    absent_through: str = ""
    """The last release read that does not know the key; empty: all know it."""
    removed_in: str = ""
    """The first release that refuses the key, with any value; empty: none does."""
    why_removed: str = ""
    words: tuple[str, ...] = ()
    """The words that it takes, where they are few."""
    converts: Callable[[Any], Any] = _refuse
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


def _integer(minimum: int | None) -> Key:
    """A whole number of a pydantic class, which also takes 5e8, that JSON reads as a float."""
    least = -_MAX_INT if minimum is None else minimum

    def accepts(value: Any) -> bool:
        if type(value) is not int and not (type(value) is float and value.is_integer()):
            return False
        return bool(least <= value <= _MAX_INT)

    return Key(
        wants="a whole number" + (f" of at least {minimum}" if minimum is not None else ""),
        accepts=accepts,
        converts=partial(as_pydantic, "int"),
    )


def _count(minimum: int) -> Key:
    """A whole number that is read as it is."""
    return Key(
        wants=f"a whole number of at least {minimum}",
        accepts=lambda v: type(v) is int and minimum <= v <= _MAX_INT,
        converts=_plain_int,
    )


def _number(low: float, high: float = _MAX_FLOAT) -> Key:
    """A finite number of a pydantic class within bounds, which are allowed."""
    return Key(
        wants=f"a number from {low:g}" + (f" to {high:g}" if high < _MAX_FLOAT else ""),
        # Compared, never converted: an int of 400 digits fits into no float.
        accepts=lambda v: type(v) in (int, float) and low <= v <= high,
        converts=partial(as_pydantic, "float"),
    )


def _choice(values: Sequence[str], *, any_case: bool = False) -> Key:
    def accepts(value: Any) -> bool:
        return isinstance(value, str) and (value.lower() if any_case else value) in values

    return Key(wants="one of " + ", ".join(values), accepts=accepts, words=tuple(values))


def _or(wants: str, word: str) -> str:
    return f"{wants.replace(' or ', ', ')} or {word}"


CANONICAL = {
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""DeepSpeed's words for a format (runtime/config.py: DtypeEnum) -> ours."""

ELEMENTS = _integer(0)
_INT = Key(
    wants="a whole number",
    accepts=lambda v: type(v) is int and -_MAX_INT <= v <= _MAX_INT,
    converts=partial(as_pydantic, "int"),
)
_BOOL = Key(
    wants="true or false",
    accepts=lambda v: type(v) is bool,
    converts=partial(as_pydantic, "bool"),
)
_PLAIN_NUMBER = Key(
    wants="a number",
    accepts=lambda v: type(v) in (int, float) and -_MAX_FLOAT <= v <= _MAX_FLOAT,
    converts=lambda v: int(v) if type(v) is bool else REFUSED,
)
_TEXT = Key(wants="text", accepts=lambda v: isinstance(v, str) and v != "auto")
_SECTION = Key(wants="a section", accepts=lambda v: type(v) is dict or isinstance(v, Mapping))

_KINDS: Mapping[str, Key] = {
    "any": Key(wants="anything", accepts=lambda _: True),
    "null": Key(wants="null: experts are not balanced so", accepts=lambda v: v is None),
    "torch_dtype": Key(wants="torch.dtype, which no file can hold", accepts=lambda _: False),
    "int": _INT,
    "loss_scale_int": replace(_INT, converts=partial(_unless, bool, _as_python_int)),
    "plain_int": replace(_INT, accepts=lambda v: type(v) is int, converts=_plain_int),
    "bool": _BOOL,
    # Read as it is, and asked as Python asks: any text is true, and so is "false".
    "truth": replace(_BOOL, converts=bool),
    # Read as it is, and joined with another by `|`.
    "wide_bool": replace(_BOOL, converts=lambda v: bool(v) if type(v) is int else REFUSED),
    # Read as it is, and looked up in a list of both.
    "listed_bool": replace(_BOOL, converts=lambda v: bool(v) if v in (0, 1) else REFUSED),
    "fraction": Key(
        wants="a number between 0 and 1",
        accepts=lambda v: type(v) in (int, float) and 0 < v < 1,
        converts=partial(as_pydantic, "float"),
    ),
    "plain_number": _PLAIN_NUMBER,
    "nonzero": replace(
        _PLAIN_NUMBER,
        wants="a number other than 0",
        accepts=lambda v: _PLAIN_NUMBER.accepts(v) and v != 0,
    ),
    # From one step to the next: DeepSpeed takes the remainder of a division by it.
    "steps": Key(
        wants="a number above 0",
        accepts=lambda v: type(v) in (int, float) and v > 0,
        converts=_period,
    ),
    "stage": Key(
        wants="one of 0, 1, 2, 3",
        accepts=lambda v: type(v) in (int, float) and v in (0, 1, 2, 3),
        converts=partial(as_pydantic, "int"),
    ),
    "text": _TEXT,
    "filled_text": Key(
        wants="text, and not empty", accepts=lambda v: _TEXT.accepts(v) and v != ""
    ),
    "dtype": _choice(tuple(CANONICAL)),
    "section": _SECTION,
    "switched_section": replace(_SECTION, converts=_switched),
    # DeepSpeed asks whether `throughput` is in it.
    "timers": replace(
        _SECTION,
        converts=lambda v: {} if isinstance(v, (str, list)) and "throughput" not in v else REFUSED,
    ),
    "list": Key(wants="a list", accepts=lambda v: type(v) is list),
    "texts": Key(
        wants="a list of names",
        accepts=lambda v: type(v) is list and all(isinstance(n, str) for n in v),
        # Read as it is: what it is asked for is its names.
        converts=lambda v: [*v] if isinstance(v, Mapping) else REFUSED,
    ),
    "names": Key(
        wants="a name or a list of names",
        accepts=lambda v: (
            all(isinstance(n, str) for n in v) if type(v) is list else type(v) is str
        ),
    ),
}
"""Type of a key in `keys.json` -> its values. The plain ones are read as they are; the others are
those of a pydantic class."""


def key_of(row: str | Mapping[str, Any]) -> Key:
    """One key as `keys.json` tells it: the name of its type, or that and what else holds."""
    row = {"type": row} if isinstance(row, str) else row
    key = _of_type(row)
    if row.get("is_raw"):
        key = replace(key, converts=partial(_unless, str, key.converts), is_raw=True)
    if row.get("no_bool"):
        key = replace(key, converts=partial(_unless, bool, key.converts))
    if row.get("auto"):
        key = _or_auto(key)
    if row.get("null"):
        key = _or_null(key)
    return replace(
        key,
        absent_through=row.get("absent_through", ""),
        removed_in=row.get("removed_in", ""),
        why_removed=row.get("why_removed", ""),
    )


def _of_type(row: Mapping[str, Any]) -> Key:
    if "one_of" in row:
        return _choice(row["one_of"], any_case=row.get("any_case", False))
    if "list_of" in row:
        values = row["list_of"]
        return Key(
            wants=f"a list of {', '.join(values)}",
            accepts=lambda v: type(v) is list and all(one in values for one in v),
        )
    kind = row.get("type", "any")
    if kind == "integer":
        return _integer(row.get("minimum"))
    if kind == "count":
        return _count(row["minimum"])
    if kind == "number":
        return _number(row["minimum"], row.get("maximum", _MAX_FLOAT))
    return _KINDS[kind]


def _or_null(key: Key) -> Key:
    return replace(
        key,
        wants=_or(key.wants, "null"),
        accepts=lambda v: v is None or key.accepts(v),
        converts=lambda v: None if v is None else key.converts(v),
    )


def _or_auto(key: Key) -> Key:
    """The same, or the word "auto", which means something there."""
    return replace(
        key,
        wants=_or(key.wants, '"auto"'),
        accepts=lambda v: v == "auto" or key.accepts(v),
        # As one of two types, text is text: "3" is refused.
        converts=partial(_unless, str, key.converts),
    )
