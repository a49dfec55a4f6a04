"""What a mistyped name may have meant: one way to ask, for every name that somebody types."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from autotune.base.text import LONGEST_NAMED

_WORSE = 3.0
"""A name this many times as unlike as the likeliest is left out."""


def near_names(
    given: str, known: Iterable[str], *, most: int = 3, alike: float = 0.5
) -> list[str]:
    """Names that may have been meant, the likeliest first."""
    spelled: dict[str, str] = {}
    for name in known:
        spelled.setdefault(name.lower(), name)
    asked = given[:LONGEST_NAMED].lower()
    near = get_close_matches(asked, spelled, n=most, cutoff=alike)
    likeness = [SequenceMatcher(None, name, asked).ratio() for name in near]
    return [
        spelled[name]
        for name, like in zip(near, likeness, strict=True)
        if 1 - like <= _WORSE * (1 - likeness[0])
    ]


def did_you_mean(given: str, known: Iterable[str], *, most: int = 3, alike: float = 0.5) -> str:
    """`did you mean zero or zeropp? `, to begin a hint with; empty where no name is near."""
    near = near_names(given, known, most=most, alike=alike)
    return f"did you mean {' or '.join(near)}? " if near else ""
