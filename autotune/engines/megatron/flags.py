"""Command-line flags of Megatron-LM's pretrain scripts, as each release of Megatron Core has them.

`flags.json` is recorded by `python -m tests.record_megatron_flags`, which asks the parsers of
checkouts. Its newest release is that of Megatron-LM's main branch where that was recorded.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.engines.releases import is_at_least

DATA_FILE = Path(__file__).with_name("flags.json")
_RELEASE_FILE = Path("megatron/core/package_info.py")
_RELEASE = re.compile(r"^(MAJOR|MINOR) = (\d+)$", re.MULTILINE)
_EOD_IS_ONE_OF_ALL = "0.18"
"""Release from which a NullTokenizer takes a token of `--vocab-size`; older ones add it.

Source: NVIDIA/Megatron-LM, megatron/training/tokenizer/tokenizer.py and, from 0.15 on,
megatron/core/tokenizers/text/libraries/null_tokenizer.py."""
_TYPES = {"int": int, "float": float}


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of one release."""

    name: str
    argument: str
    """Name under which Megatron keeps it: `tensor_model_parallel_size`."""
    sets: Any = None
    """Value of a flag that takes none; None: it takes a value."""
    kind: str = "str"
    """What a value is: `int`, `float`, `str`, or `other`: the parser has a function for it."""
    count: int | str | None = None
    """Values that it takes, as argparse says it: None (one), a number, `?`, `*` or `+`."""
    choices: Sequence[Any] = ()
    """Values that it takes; empty: any of its kind."""
    default: Any = None

    @property
    def is_switch(self) -> bool:
        return self.sets is not None

    def parsed(self, word: str) -> Any:
        """A value as the parser takes it.

        Raises:
            ValueError: It takes no such value; the message says which it does.
        """
        kind = _TYPES.get(self.kind, str)
        try:
            value = kind(word)
        except ValueError:
            raise ValueError(f"takes {'a whole' if kind is int else 'a'} number") from None
        if self.choices and value not in self.choices:
            raise ValueError(f"takes one of {', '.join(map(str, self.choices))}")
        return value


@cache
def releases() -> tuple[str, ...]:
    """Releases that were recorded, oldest first: `0.14`."""
    return tuple(_data()["releases"])


def newest_release() -> str:
    """The newest of them."""
    return releases()[-1]


def known_release(name: str, *, where: str = "") -> str:
    """A release by its name, of which a patch release counts as its minor one; `main`: the newest.

    `where` is the flag or key that named it.

    Raises:
        JobError: That one was not recorded.
    """
    found = recorded_release(name)
    if found is None:
        facts = {"place": f"{where}: " if where else "", "known": ", ".join(releases())}
        raise JobError.of("engines.megatron.release_unknown", name=name, **facts)
    return found


def recorded_release(name: str) -> str | None:
    """As `known_release`; None where that one was not recorded."""
    if name == "main":
        return newest_release()
    short = ".".join(name.split(".")[:2])
    return short if short in releases() else None


def release_of(checkout: Path) -> str:
    """The release of a checkout of Megatron-LM, such as `0.16`.

    Raises:
        JobError: It is none.
    """
    try:
        parts = dict(_RELEASE.findall((checkout / _RELEASE_FILE).read_text(encoding="utf-8")))
        return f"{parts['MAJOR']}.{parts['MINOR']}"
    except (OSError, ValueError, KeyError):
        raise JobError.of(
            "engines.megatron.no_release", checkout=checkout, file=_RELEASE_FILE
        ) from None


@cache
def flags(release: str) -> Mapping[str, Flag]:
    """All flags of a release, by name."""
    return {
        name: _flag(name, span)
        for name, spans in _data()["flags"].items()
        for span in spans
        if _has(span, release)
    }


def flag_of(name: str, release: str) -> Flag:
    """A flag by its name in a release.

    Raises:
        JobError: The release has none of that name; names the releases that do, or flags of a
            similar name.
    """
    found = flags(release).get(name)
    if found is not None:
        return found
    have = _releases_with(name)
    if have:
        raise JobError.of(
            "engines.megatron.flag_of_others", name=name, release=release, have=_in_words(have)
        )
    near = similar(name, release)
    fix = f"did you mean {near}?" if near else "leave it out"
    raise JobError.of("engines.megatron.flag_unknown", name=name, first=releases()[0], fix=fix)


def words_of(name: str, value: Any, release: str) -> list[str]:
    """The words of a command line for one of `arguments.Arguments`.

    Args:
        name: The flag's, without dashes before it and with underscores between its words.
        value: True for a flag that takes none; False for none of its words.
        release: Which one's command line.

    Raises:
        JobError: The release has no such flag, or it takes no such value there.
    """
    flag = flag_of(f"--{name.replace('_', '-')}", release)
    if flag.is_switch:
        return [flag.name] if value else []
    words = [str(item) for item in (value if isinstance(value, (list, tuple)) else [value])]
    for word in words:
        try:
            flag.parsed(word)
        except ValueError as error:
            raise JobError.of(
                "engines.megatron.flag_value", flag=flag, word=word, error=error, release=release
            ) from None
    return [flag.name, *words]


def null_vocab(vocab: int, release: str) -> int:
    """The `--vocab-size` of a NullTokenizer with so many token ids."""
    return vocab if is_at_least(release, _EOD_IS_ONE_OF_ALL) else vocab - 1


def is_flag_of_any(name: str) -> bool:
    """Whether any release has a flag of that name."""
    return name in _data()["flags"]


def similar(name: str, release: str) -> str:
    """The flag of a release whose name is nearest to an unknown one; empty: none is near."""
    near = get_close_matches(name, flags(release), n=1, cutoff=0.75)
    return near[0] if near else ""


def _releases_with(name: str) -> list[str]:
    spans = _data()["flags"].get(name, ())
    return [release for release in releases() if any(_has(span, release) for span in spans)]


def _in_words(have: Sequence[str]) -> str:
    first, last = releases().index(have[0]), releases().index(have[-1])
    if len(have) > 1 and last - first + 1 == len(have):
        return f"{have[0]} to {have[-1]}"
    return ", ".join(have)


def _has(span: Mapping[str, Any], release: str) -> bool:
    first, last = (releases().index(span[end]) for end in ("from", "to"))
    return release in releases() and first <= releases().index(release) <= last


def _flag(name: str, span: Mapping[str, Any]) -> Flag:
    return Flag(
        name=name,
        argument=span.get("dest", name.lstrip("-").replace("-", "_")),
        sets=span.get("sets"),
        kind=span.get("type", "str"),
        count=span.get("nargs"),
        choices=tuple(span.get("choices", ())),
        default=span.get("default"),
    )


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = table_beside(__file__, DATA_FILE.name)
    return data
