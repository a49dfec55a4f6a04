"""A setup that notes which of its settings a rule looks at."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from autotune.engines.communication.base import Communication
from autotune.engines.deepspeed.rules.base import Setup
from autotune.space.knob import Knobs

EVERYTHING = "*"
"""Last part of the path of a section that was walked through."""

_FIELDS = tuple(each.name for each in fields(Setup))


class WatchedSetup(Setup):
    """A setup, with the paths of its configuration and the names of its fields that were read."""

    read: set[str]
    """Dotted paths of keys and sections; `section.*` where one was walked through."""
    fields_read: set[str]

    @classmethod
    def of(cls, setup: Setup) -> "WatchedSetup":
        """Watch a setup from now on."""
        watched = object.__new__(cls)
        given = vars(setup)
        vars(watched).update({f"_{name}": given[name] for name in _FIELDS})
        vars(watched)["read"], vars(watched)["fields_read"] = set(), set()
        vars(watched)["_ds_config"] = WatchedSection(setup.ds_config, "", watched.read)
        return watched


def _noting(name: str) -> property:
    hidden = f"_{name}"

    def read(setup: WatchedSetup) -> Any:
        setup.fields_read.add(name)
        return vars(setup)[hidden]

    return property(read)


for _name in _FIELDS:
    setattr(WatchedSetup, _name, _noting(_name))


class WatchedCommunication(Communication):
    """The communication of a run, with the knobs behind the degrees that were read."""

    fields_read: set[str]

    @classmethod
    def of_run(cls, run: Communication, values: Knobs) -> "WatchedCommunication":
        """Watch it from now on; its knobs are those given, which are watched themselves."""
        watched = object.__new__(cls)
        vars(watched).update(vars(run) | {"values": values, "fields_read": set()})
        for name in _DEGREES:
            vars(watched)[f"_{name}"] = vars(watched).pop(name)
        return watched


_DEGREES = {"tp": ("tp",), "sp": ("sp",), "dp": ("tp", "pp", "sp")}


def _noting_degree(name: str) -> property:
    def read(run: WatchedCommunication) -> Any:
        run.fields_read.update(_DEGREES[name])
        return vars(run)[f"_{name}"]

    return property(read)


for _name in _DEGREES:
    setattr(WatchedCommunication, _name, _noting_degree(_name))


class WatchedSection(dict[str, Any]):
    """A section that notes what is read of it, and hands out its sections likewise."""

    def __init__(self, content: Mapping[str, Any], path: str, read: set[str]) -> None:
        super().__init__(content)
        self._path, self._read = path, read

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key; a section is watched as well."""
        path = f"{self._path}.{key}" if self._path else key
        self._read.add(path)
        value = dict.get(self, key, default)
        return WatchedSection(value, path, self._read) if type(value) is dict else value

    def __getitem__(self, key: str) -> Any:
        if key not in self:
            raise KeyError(key)
        return self.get(key)

    def __contains__(self, key: object) -> bool:
        self._read.add(f"{self._path}.{key}" if self._path else str(key))
        return dict.__contains__(self, key)

    def __iter__(self) -> Iterator[str]:
        self._note_all()
        return dict.__iter__(self)

    def __len__(self) -> int:
        self._note_all()
        return dict.__len__(self)

    def __eq__(self, other: object) -> bool:
        self._note_all()
        return dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None

    def keys(self) -> Any:
        """All keys, as of any dict."""
        self._note_all()
        return dict.keys(self)

    def items(self) -> Any:
        """All keys and values, as of any dict."""
        self._note_all()
        return dict.items(self)

    def values(self) -> Any:
        """All values, as of any dict."""
        self._note_all()
        return dict.values(self)

    def __repr__(self) -> str:
        self._note_all()
        return dict.__repr__(self)

    def _note_all(self) -> None:
        self._read.add(f"{self._path}.{EVERYTHING}" if self._path else EVERYTHING)
