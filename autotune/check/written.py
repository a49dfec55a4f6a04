"""How a configuration comes back into its file: as JSON or YAML, in the words of who reads it."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.check.edit import edited, plain, same_data
from autotune.check.edit_hjson import edited_hjson
from autotune.check.edit_yaml import edited_yaml
from autotune.check.fixes import moved_in
from autotune.engines.deepspeed.rules.base import changed
from autotune.engines.deepspeed.sources.accelerate_names import KEYS
from autotune.engines.deepspeed.sources.reading import Syntax, parsed
from autotune.engines.deepspeed.sources.source import Source
from autotune.space.rule import Patch, in_words

_ACCELERATE_SECTION = ("deepspeed_config",)

_ACCELERATE_KEYS = {tuple(key.split(".")): name for name, key in KEYS.items()}
"""Keys of a ds_config in the words of accelerate's own section (`accelerate_file.config_of`)."""


def not_edited(source: Source) -> str:
    """Why a file is never written into; empty where it can be."""
    if source.syntax == "shell":
        return "the flags of its launch line make the configuration"
    if source.document:
        return f"it is {source.document} of the file"
    if "[" in "".join(source.at):
        return "the section stands in a list"
    if is_accelerates(source):
        return ""
    if source.is_made:
        return f"{source.reader} makes the configuration from keys of its own"
    return "" if _read(source) else "the text does not hold the section as it is read"


def text_after(source: Source, config: Mapping[str, Any]) -> str | None:
    """The text of the file with another configuration in it.

    None where its own words do not say that, or where a comment would be lost.
    """
    read = None if not_edited(source) else _read(source)
    if read is None:
        return None
    data, reads_exponents = read
    wanted: Mapping[str, Any]
    if is_accelerates(source):
        patch = _accelerates(source, source.config, config)
        if patch is None:
            return None
        wanted = changed(data, {_ACCELERATE_SECTION[0]: patch})
    else:
        wanted = _placed(data, source.at, source.config, config)
    return edited_as(source.syntax, source.text, wanted, reads_exponents=reads_exponents)


def edited_as(
    syntax: Syntax, text: str, wanted: Mapping[str, Any], *, reads_exponents: bool = False
) -> str | None:
    """A text of some syntax that says what is wanted; None where its way of writing forbids it."""
    if syntax == "yaml":
        return edited_yaml(text, wanted, reads_exponents=reads_exponents)
    if syntax == "hjson":
        return edited_hjson(text, wanted)
    return edited(text, wanted)


def words_for(source: Source, config: Mapping[str, Any], changes: Patch) -> str:
    """Changes as an instruction for the file; empty where that has no words for them."""
    if not is_accelerates(source):
        return in_words(changes, moved_in(config, changes))
    return in_words(_accelerates(source, config, changed(config, changes)) or {})


def is_accelerates(source: Source) -> bool:
    """Whether the configuration is written in accelerate's own words, as a section of its YAML."""
    return source.at == _ACCELERATE_SECTION


def _read(source: Source) -> tuple[dict[str, Any], bool] | None:
    """The file's data, and whether 5e8 in its YAML is a number; None: it has no such section."""
    for reads_exponents in (False, True):
        data = _data(source.text, source.path, reads_exponents)
        there: Any = data
        for name in source.at:
            there = there.get(name) if isinstance(there, Mapping) else None
        is_there = isinstance(there, Mapping) and (
            same_data(there, source.config)  # of a large file faster than key by key
            or all(
                name in there and same_data(there[name], value)
                for name, value in source.config.items()
            )
        )
        if is_there or is_accelerates(source):
            return data, reads_exponents
    return None


@lru_cache(maxsize=2)
def _data(text: str, path: Path, reads_exponents: bool) -> dict[str, Any]:
    """The data of a text; nobody changes it."""
    return parsed(text, path, reads_exponents=reads_exponents).data


def _placed(
    data: Mapping[str, Any],
    at: tuple[str, ...],
    before: Mapping[str, Any],
    after: Mapping[str, Any],
) -> dict[str, Any]:
    """The file's data with another configuration; keys beside it are somebody else's, and stay."""
    if at:
        return {**data, at[0]: _placed(data[at[0]], at[1:], before, after)}
    return {**{name: value for name, value in data.items() if name not in before}, **after}


def _accelerates(
    source: Source, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Patch | None:
    """Changes between two configurations in accelerate's words; None where it lacks a word."""
    read = _read(source)
    written = (read[0].get(_ACCELERATE_SECTION[0]) if read else None) or {}
    patch: dict[str, Any] = {}
    for path, value in _differences(before, after):
        names = [name for key, name in _ACCELERATE_KEYS.items() if key[: len(path)] == path]
        if not names or (value is not None and path not in _ACCELERATE_KEYS):
            return None
        is_needed = value is not None  # what is not written needs not go
        patch |= {name: value for name in names if is_needed or name in written}
    return patch


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], at: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Any]]:
    """Keys that differ, and what they are then; None: they are gone."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name in (*before, *(name for name in after if name not in before)):
        old, new = before.get(name), after.get(name)
        if isinstance(new, Mapping) and (old is None or isinstance(old, Mapping)):
            found += _differences(old or {}, new, (*at, name))
        elif plain(old) != plain(new):
            found.append(((*at, name), new))
    return found
