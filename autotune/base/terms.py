"""Conditions as rows of data write them: terms, with spaces between, that all have to hold.

A term is a test, or several joined by `|` of which one has to hold; after a `!` none may. A test
is a name, or compares it with a word: `fp8`, `pp>1`, `recompute=full`, or `world%tp` holds
where world is no multiple of tp.
Whoever asks knows what a name or a product (`tp*pp`) stands for, and what a name alone asks.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

_TEST = re.compile(r"([\w.*]+)(?:(!=|>=|[=><%~])([\w.*]+))?")
COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    **{"=": operator.eq, "!=": operator.ne},
    **{">": operator.gt, ">=": operator.ge, "<": operator.lt, "%": lambda a, b: a % b != 0},
}
"""Signs of comparisons; what `~` asks is for those who use it."""


@cache
def tests_of(term: str) -> Sequence[tuple[str, str, str]]:
    """Name, sign and word of each test of a term; the last two are empty for a name alone."""
    tests = term.removeprefix("!").split("|")
    found = [_TEST.fullmatch(test) for test in tests]
    assert None not in found, f"{term} has what is no test"
    return [(test[1], test[2] or "", test[3] or "") for test in found if test is not None]
