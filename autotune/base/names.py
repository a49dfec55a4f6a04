"""What a mistyped name may have meant: one way to ask, for every name that somebody types."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from autotune.base.text import LONGEST_NAMED

_LEAST = 4
"""Letters of the shortest word that is recognised: `gpu` is no misspelt `cpu`."""
_LONG = 8
"""Letters from which on two mistakes are forgiven, and one before."""
_SHARE = 0.65
"""Least part of a word that stands for it when the rest was left out."""
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
    if len(asked) >= _LONG and (longer := [one for one in spelled if one.startswith(asked)]):
        return [spelled[name] for name in sorted(longer, key=len)[:most]]
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


def misspelt(given: str, known: Iterable[str]) -> str | None:
    """The one word that was certainly meant; None where there is none, or more than one.

    Another case or hyphens; letters that are wrong, missing, added or swapped; the rest of the
    word left out (`pin_mem`, `live_params`) or more put behind it. Digits are never mistyped:
    fp16 is not fp32.
    """
    typed, found = _plain(given), dict[str, int]()
    for word in known:
        wanted = _plain(word)
        if typed == wanted:
            return word
        short, whole = sorted((typed, wanted), key=len)
        if len(short) < _LEAST or _digits(typed) != _digits(wanted):
            continue
        most = 2 if len(short) >= _LONG else 1
        if len(whole) - len(short) <= most and (off := _mistakes(typed, wanted)) <= most:
            found[word] = off
        elif whole.startswith(short.removesuffix("s")) and len(short) >= _SHARE * len(whole):
            found[word] = most + 1
    best = [word for word, off in found.items() if off == min(found.values())]
    return best[0] if len(best) == 1 else None


def _plain(word: str) -> str:
    return word.strip().lower().replace("-", "_").replace(" ", "_")


def _digits(word: str) -> list[str]:
    return [letter for letter in word if letter.isdigit()]


def _mistakes(one: str, other: str) -> int:
    """Letters of the longer word that have no like in the other."""
    blocks = SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return max(len(one), len(other)) - sum(block.size for block in blocks)
