"""Which of some words a mistyped one is: certainly (`misspelt`), or at a guess (`guesses`)."""

from collections.abc import Iterable
from difflib import get_close_matches

_LEAST = 4
"""Letters of the shortest word that is recognised: `gpu` is no misspelt `cpu`."""
_LONG = 8
"""Letters from which on two mistakes are forgiven, and one before."""
_SHARE = 0.65
"""Least part of a word that stands for it when the rest was left out."""


def misspelt(given: str, known: Iterable[str]) -> str | None:
    """The one word that was meant; None where there is none, or more than one.

    Another case or hyphens; letters that are wrong, missing, added or swapped; the rest of the
    word left out (`pin_mem`) or more put behind it. Digits are never mistyped: fp16 is not fp32.
    """
    typed = _plain(given)
    found: dict[str, int] = {}
    for word in known:
        wanted = _plain(word)
        if typed == wanted:
            return word
        if min(len(typed), len(wanted)) < _LEAST or _digits(typed) != _digits(wanted):
            continue
        most = 2 if min(len(typed), len(wanted)) >= _LONG else 1
        if abs(len(typed) - len(wanted)) <= most and (off := _distance(typed, wanted)) <= most:
            found[word] = off
        elif _is_part(*sorted((typed, wanted), key=len)):
            found[word] = most + 1
    best = [word for word, off in found.items() if off == min(found.values())]
    return best[0] if len(best) == 1 else None


def guesses(given: str, known: Iterable[str], *, most: int = 1, alike: float = 0.6) -> list[str]:
    """Words that may have been meant, the likeliest first: to ask with, not to write.

    Args:
        given: The mistyped word.
        known: Those that there are.
        most: How many are named.
        alike: Least likeness, from 0 to 1.
    """
    return get_close_matches(given, list(known), n=most, cutoff=alike)


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "_").replace(" ", "_")


def _digits(word: str) -> list[str]:
    return [letter for letter in word if letter.isdigit()]


def _is_part(short: str, whole: str) -> bool:
    return whole.startswith(short) and len(short) >= _SHARE * len(whole)


def _distance(one: str, other: str) -> int:
    """Letters to change, add, leave out or swap with their neighbour."""
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        here = [row]
        for column, wanted in enumerate(other, 1):
            is_same = letter == wanted
            least = min(above[column] + 1, here[-1] + 1, above[column - 1] + (not is_same))
            is_swapped = (
                min(row, column) > 1
                and letter == other[column - 2]
                and one[row - 2] == wanted
                and not is_same
            )
            here.append(min(least, before[column - 2] + 1) if is_swapped else least)
        before, above = above, here
    return above[-1]
