"""Legal values of a ds_config: checks with words for people, and DeepSpeed's conversions.

DeepSpeed's strict sections are pydantic classes in pydantic's lax mode; the others are read as
they are. A test holds both to the installed release, on a grid of values.
"""

import sys
from collections.abc import Callable, Mapping
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


def _plain_number(value: Any) -> Any:
    return int(value) if type(value) is bool else REFUSED


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
        made += [int(one) for one in made if type(one) is float and one.is_integer()]
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


def integer(minimum: int | None = None) -> Key:
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


def count(minimum: int) -> Key:
    """A whole number that is read as it is."""
    return Key(
        wants=f"a whole number of at least {minimum}",
        accepts=lambda v: type(v) is int and minimum <= v <= _MAX_INT,
        converts=_plain_int,
    )


def number(low: float = -_MAX_FLOAT, high: float = _MAX_FLOAT) -> Key:
    """A finite number of a pydantic class within bounds, which are allowed."""

    def accepts(value: Any) -> bool:
        # Compared, never converted: an int of 400 digits fits into no float.
        return type(value) in (int, float) and low <= value <= high

    bounds = [f"from {low:g}"] * (low > -_MAX_FLOAT) + [f"to {high:g}"] * (high < _MAX_FLOAT)
    return Key(
        wants=" ".join(["a number", *bounds]),
        accepts=accepts,
        converts=partial(as_pydantic, "float"),
    )


def raw(key: Key) -> Key:
    """The same where DeepSpeed computes with what is written before it converts it."""
    return replace(key, converts=partial(_unless, str, key.converts), is_raw=True)


def no_bool(key: Key) -> Key:
    """The same where DeepSpeed's own validator refuses true and false."""
    return replace(key, converts=partial(_unless, bool, key.converts))


def words(*values: str) -> Key:
    """A list of a few words."""
    return Key(
        wants=f"a list of {', '.join(values)}",
        accepts=lambda v: type(v) is list and all(one in values for one in v),
    )


def choice(*values: str, any_case: bool = False) -> Key:
    """One of a few words."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and (value.lower() if any_case else value) in values

    return Key(wants="one of " + ", ".join(values), accepts=accepts, words=values)


def optional(key: Key) -> Key:
    """The same, or null."""
    return replace(
        key,
        wants=_or(key.wants, "null"),
        accepts=lambda v: v is None or key.accepts(v),
        converts=lambda v: None if v is None else key.converts(v),
    )


def or_auto(key: Key) -> Key:
    """The same, or the word "auto", which means something there."""
    return replace(
        key,
        wants=_or(key.wants, '"auto"'),
        accepts=lambda v: v == "auto" or key.accepts(v),
        # As one of two types, text is text: "3" is refused.
        converts=partial(_unless, str, key.converts),
    )


def _or(wants: str, word: str) -> str:
    return f"{wants.replace(' or ', ', ')} or {word}"


def since(absent_through: str, key: Key) -> Key:
    """The same, for releases after the one named."""
    return replace(key, absent_through=absent_through)


def unwritable(kind: str) -> Key:
    """A value of a class that no file can write."""
    return Key(wants=f"{kind}, which no file can hold", accepts=lambda _: False)


def removed(release: str, why: str) -> Key:
    """A key that the release named refuses."""
    return replace(ANY, removed_in=release, why_removed=why)


ANY = Key(wants="anything", accepts=lambda _: True)
INT = Key(
    wants="a whole number",
    accepts=lambda v: type(v) is int and -_MAX_INT <= v <= _MAX_INT,
    converts=partial(as_pydantic, "int"),
)
BOOL = Key(
    wants="true or false",
    accepts=lambda v: type(v) is bool,
    converts=partial(as_pydantic, "bool"),
)
LOSS_SCALE_INT = replace(INT, converts=partial(_unless, bool, _as_python_int))
FRACTION = Key(
    wants="a number between 0 and 1",
    accepts=lambda v: type(v) in (int, float) and 0 < v < 1,
    converts=partial(as_pydantic, "float"),
)
TRUTH = replace(BOOL, converts=bool)
"""Read as it is, and asked as Python asks: any text is true, and so is "false"."""
WIDE_BOOL = replace(BOOL, converts=lambda v: bool(v) if type(v) is int else REFUSED)
"""Read as it is, and joined with another by `|`."""
LISTED_BOOL = replace(BOOL, converts=lambda v: bool(v) if v in (0, 1) else REFUSED)
"""Read as it is, and looked up in a list of both."""
PLAIN_INT = replace(INT, accepts=lambda v: type(v) is int, converts=_plain_int)
PLAIN_NUMBER = Key(
    wants="a number",
    accepts=lambda v: type(v) in (int, float) and -_MAX_FLOAT <= v <= _MAX_FLOAT,
    converts=_plain_number,
)
NONZERO = replace(
    PLAIN_NUMBER,
    wants="a number other than 0",
    accepts=lambda v: PLAIN_NUMBER.accepts(v) and v != 0,
)
STEPS = Key(
    wants="a number above 0",
    accepts=lambda v: type(v) in (int, float) and v > 0,
    converts=_period,
)
"""Steps from one to the next: DeepSpeed takes the remainder of a division by it."""
TEXT = Key(wants="text", accepts=lambda v: isinstance(v, str) and v != "auto")
MAPPING = Key(wants="a section", accepts=lambda v: type(v) is dict or isinstance(v, Mapping))
TIMERS = replace(
    MAPPING,
    converts=lambda v: {} if isinstance(v, (str, list)) and "throughput" not in v else REFUSED,
)
"""DeepSpeed asks whether `throughput` is in it."""
FILLED_TEXT = Key(wants="text, and not empty", accepts=lambda v: TEXT.accepts(v) and v != "")
SWITCHED_SECTION = replace(MAPPING, converts=_switched)
TEXTS = Key(
    wants="a list of names",
    accepts=lambda v: type(v) is list and all(isinstance(n, str) for n in v),
    # Read as it is: what it is asked for is its names.
    converts=lambda v: [*v] if isinstance(v, Mapping) else REFUSED,
)
NAMES = Key(
    wants="a name or a list of names",
    accepts=lambda v: all(isinstance(n, str) for n in v) if type(v) is list else type(v) is str,
)
CANONICAL = {
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16"), "fp16"),
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32"), "fp32"),
}
"""DeepSpeed's words for a format (runtime/config.py: DtypeEnum) -> ours."""
DTYPE = choice(*CANONICAL)
COMMUNICATION_DTYPE = optional(choice("fp32", "fp16", "bf16", any_case=True))
ELEMENTS = integer(0)
STAGE = Key(
    wants="one of 0, 1, 2, 3",
    accepts=lambda v: type(v) in (int, float) and v in (0, 1, 2, 3),
    converts=partial(as_pydantic, "int"),
)
LIST = Key(wants="a list", accepts=lambda v: type(v) is list)
