"""Setups of which something is not known: a rule that asks for it is silent.

A value that a consumer fills in at run time ("auto"), or a world that nobody named, must not be
taken for DeepSpeed's default.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.rule import UnknownFactError

Path = tuple[str, ...]


class Partial(Mapping[str, Any]):
    """A configuration that raises where a value is asked for that is not known.

    Such a key is in the mapping and not among the items.
    """

    def __init__(
        self, content: Mapping[str, Any], unknown: Collection[Path], path: Path = ()
    ) -> None:
        self._content, self._unknown, self._path = content, unknown, path

    def __getitem__(self, key: str) -> Any:
        value, here = self._content[key], (*self._path, key)
        if here in self._unknown:
            raise UnknownFactError(".".join(here))
        if isinstance(value, Mapping) and any(p[: len(here)] == here for p in self._unknown):
            return Partial(value, self._unknown, here)
        return value

    def __contains__(self, key: object) -> bool:
        return key in self._content

    def __iter__(self) -> Iterator[str]:
        return (key for key in self._content if (*self._path, key) not in self._unknown)

    def __len__(self) -> int:
        return len(self._content)


@dataclass(frozen=True, kw_only=True)
class WorldlessSetup(Setup):
    """A setup whose world is not known: what rules read of it raises."""

    def __getattribute__(self, name: str) -> Any:
        if name == "world":
            raise UnknownFactError(name)
        return super().__getattribute__(name)
