"""Conditions as rows of data write them: terms, with spaces between, that all have to hold.

A term is a test, or several joined by `|` of which one has to hold; after a `!` none may. A test
is a name, or compares it with a word: `fp8`, `pp>1`, `recompute=full`, or `world%tp` holds
where world is no multiple of tp.
Whoever asks knows what a name or a product (`tp*pp`) stands for, and what a name alone asks.

Their texts hold facts in braces: `{name}`, `{name:g}`, `{name!r}`, or what `_ARITHMETIC` makes of
two, `{name % name}`.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import gcd
from typing import Any

_TEST = re.compile(r"([\w.*@?]+)(?:(!=|>=|[=><%~])([\w.*@?-]+))?")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"=": operator.eq, "!=": operator.ne},
    **{">": operator.gt, ">=": operator.ge, "<": operator.lt, "%": lambda a, b: a % b != 0},
}
"""Signs of comparisons; what `~` asks is for those who use it."""
_PLACE = re.compile(r"\{(@?[\w.?]+)(?: (%|//|gcd|divisor) (@?[\w.?]+)|(!r)|:([^}]+))?\}")
_ARITHMETIC: Mapping[str, Callable[[int, int], Any]] = {
    "%": lambda one, other: f"{one} % {other} = {one % other}",
    "//": lambda one, other: one - one % other or other,  # the nearest multiple below
    "gcd": gcd,
    "divisor": lambda one, most: next(n for n in range(min(one, most), 0, -1) if one % n == 0),
}


@cache
def tests_of(term: str) -> Sequence[tuple[str, str, str]]:
    """Name, sign and word of each test of a term; the last two are empty for a name alone."""
    tests = term.removeprefix("!").split("|")
    found = [_TEST.fullmatch(test) for test in tests]
    assert None not in found, f"{term} has what is no test"
    return [(test[1], test[2] or "", test[3] or "") for test in found if test is not None]


def literal(word: str) -> Any:
    """The value that a word of a comparison is: a number, a switch, nothing (`null`) or text."""
    if _NUMBER.fullmatch(word):
        return float(word) if "." in word else int(word)
    return {"true": True, "false": False, "null": None}.get(word, word)


def filled(
    value: Any, fact: Callable[[str], Any], note: Callable[[str], str] = lambda _: ""
) -> Any:
    """A value of a row, however nested, with the facts in their places.

    A place alone keeps the type of its fact; `note` says more of one behind it in a text.
    """
    if isinstance(value, Mapping):
        return {filled(name, fact): filled(one, fact, note) for name, one in value.items()}
    if isinstance(value, list):
        return tuple(filled(one, fact, note) for one in value)
    if not isinstance(value, str):
        return value
    if (whole := _PLACE.fullmatch(value)) and not (whole[4] or whole[5]):
        found = fact(whole[1])
        return _ARITHMETIC[whole[2]](found, fact(whole[3])) if whole[2] else found
    return _PLACE.sub(partial(_in_words, fact, note), value)


def _in_words(fact: Callable[[str], Any], note: Callable[[str], str], place: re.Match[str]) -> str:
    name, operator, other, is_quoted, form = place.groups()
    found = fact(name)
    if operator:
        return str(_ARITHMETIC[operator](found, fact(other)))
    return (repr(found) if is_quoted else format(found, form or "")) + note(name)
