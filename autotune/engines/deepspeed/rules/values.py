"""What a value of a ds_config may be: checks with words for people."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.engines.deepspeed.rules.releases import is_at_least

Check = Callable[[Any], bool]

_MAX_INT = 2**63 - 1  # of a tensor's size; pydantic takes no larger float for a whole number
_MAX_FLOAT = sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class Key:
    """One key of a section."""

    wants: str
    """What a value must be, for people."""
    accepts: Check
    absent_through: str = ""
    """The last release read that does not know the key; empty: all know it."""
    removed_in: str = ""
    """The first release that refuses the key, with any value; empty: none does."""
    why_removed: str = ""

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


def integer(minimum: int, *, loose: bool = True) -> Key:
    """A whole number in 64 bits; pydantic also takes 5e8, which JSON reads as a float."""

    def accepts(value: Any) -> bool:
        if type(value) is not int and not (loose and type(value) is float and value.is_integer()):
            return False
        return bool(minimum <= value <= _MAX_INT)

    return Key(wants=f"a whole number of at least {minimum}, in 64 bits", accepts=accepts)


def number(low: float = -_MAX_FLOAT, high: float = _MAX_FLOAT) -> Key:
    """A finite number within bounds, which are allowed."""

    def accepts(value: Any) -> bool:
        # Compared, never converted: an int of 400 digits fits into no float.
        return type(value) in (int, float) and low <= value <= high

    bounds = [f"from {low:g}"] * (low > -_MAX_FLOAT) + [f"to {high:g}"] * (high < _MAX_FLOAT)
    return Key(wants=" ".join(["a number", *bounds]), accepts=accepts)


def choice(*values: str, any_case: bool = False) -> Key:
    """One of a few words."""

    def accepts(value: Any) -> bool:
        return isinstance(value, str) and (value.lower() if any_case else value) in values

    return Key(wants="one of " + ", ".join(values), accepts=accepts)


def optional(key: Key) -> Key:
    """The same, or null."""
    return replace(
        key, wants=f"{key.wants}, or null", accepts=lambda v: v is None or key.accepts(v)
    )


def or_auto(key: Key) -> Key:
    """The same, or the word "auto", which means something there."""
    return replace(
        key, wants=f'{key.wants}, or "auto"', accepts=lambda v: v == "auto" or key.accepts(v)
    )


def since(absent_through: str, key: Key) -> Key:
    """The same, for releases after the one named."""
    return replace(key, absent_through=absent_through)


def removed(release: str, why: str) -> Key:
    """A key that the release named refuses."""
    return replace(ANY, removed_in=release, why_removed=why)


ANY = Key(wants="anything", accepts=lambda _: True)
INT = Key(
    wants="a whole number of 64 bits",
    accepts=lambda v: type(v) is int and -_MAX_INT <= v <= _MAX_INT,
)
BOOL = Key(wants="true or false", accepts=lambda v: type(v) is bool)
TEXT = Key(wants="text", accepts=lambda v: isinstance(v, str) and v != "auto")
MAPPING = Key(wants="a section", accepts=lambda v: type(v) is dict or isinstance(v, Mapping))
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
    wants="one of 0, 1, 2, 3", accepts=lambda v: type(v) in (int, float) and v in (0, 1, 2, 3)
)
