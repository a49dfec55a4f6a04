"""What a mistyped name may have meant: one way to ask, for every name that somebody types."""

from collections.abc import Iterable
from difflib import get_close_matches

from autotune.base.text import LONGEST_NAMED


def near_names(
    given: str, known: Iterable[str], *, most: int = 3, alike: float = 0.5
) -> list[str]:
    """Names that may have been meant, the likeliest first.

    Args:
        given: The mistyped one.
        known: Those that there are.
        most: How many are named.
        alike: Least likeness, from 0 to 1; upper and lower case are alike.
    """
    spelled: dict[str, str] = {}
    for name in known:
        spelled.setdefault(name.lower(), name)
    near = get_close_matches(given[:LONGEST_NAMED].lower(), spelled, n=most, cutoff=alike)
    return [spelled[name] for name in near]


def did_you_mean(given: str, known: Iterable[str], *, most: int = 3, alike: float = 0.5) -> str:
    """`did you mean zero or zeropp? `, to begin a hint with; empty where no name is near."""
    near = near_names(given, known, most=most, alike=alike)
    return f"did you mean {' or '.join(near)}? " if near else ""
