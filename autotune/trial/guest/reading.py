"""The files that a script's configuration comes from: which it read, and a candidate in them.

A script may read a file under any flag, and hand DeepSpeed a dict. The first run sees which files
hold what was handed over. A trial then lets the script read them as a candidate has them: what
arrives that way, before anything else is edited, is what the files carry.
"""

import builtins
import contextlib
import functools
import importlib
import io
import itertools
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotune.base.nested import leaves, value_at
from autotune.contract import SPEC_FILE
from autotune.trial.guest.edits import Changes, parsed, put, toml_of
from autotune.trial.prebuilt import built_variables

_SUFFIXES = (".json", ".jsonc", ".hjson", ".yaml", ".yml", ".toml")
_YAML = (".yaml", ".yml")
_LIBRARY = os.path.dirname(os.__file__) + os.sep
_OUR_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_PACKAGES = re.compile(r"/(?:site|dist)-packages/")
"""Where packages have their files. A project may lie below `sys.prefix`: /usr/src/app does."""
_LARGEST_BYTES = 2**20
_MOST_FILES = 200
_MOST_SECTIONS = 500
_MOST_LEVELS = 6
_TELLING = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
"""Keys of DeepSpeed's, one of which a configuration has, whoever wrote it."""

_READ_ENV = "AUTOTUNE_GUEST_READ"
"""Variable with files that the processes above have opened: a launcher hands on what it reads."""
_read: dict[str, None] = dict.fromkeys(json.loads(os.environ.get(_READ_ENV, "[]")))
"""Files of settings that this process has opened, or one above it, in their order."""
_not_the_user_s: list[str] = []
"""Folders, each with a slash at its end, of files that are never noted."""
_is_over = False
_began_s = float("inf")
"""When the trial began."""


def watch_reading(changed: Mapping[str, Changes], trial: str = "") -> None:
    """Note from now on which files of settings are read, and give some of them with changes.

    Args:
        changed: Path of a file -> what is changed in it.
        trial: Folder of the trial. What is read there or beside built extensions is no setting of
            the user's.
    """
    global _began_s
    with contextlib.suppress(OSError):
        _began_s = os.path.getctime(os.path.join(trial, SPEC_FILE))
    extensions = {**os.environ, **built_variables()}.get("TORCH_EXTENSIONS_DIR")
    folders = filter(None, (trial, _OUR_PACKAGE, extensions))
    _not_the_user_s.extend(os.path.join(os.path.abspath(folder), "") for folder in folders)
    sys.addaudithook(_on_event)
    if changed:
        copies: dict[str, str | None] = {}
        by_path = {os.path.realpath(path): changes for path, changes in changed.items()}
        opens = _changing(builtins.open, by_path, copies)
        builtins.open = opens
        io.open = opens  # what pathlib opens by


def stop_watching() -> None:
    """Note no more files: the configuration was handed over."""
    global _is_over
    _is_over = True


def file_of_user(path: str) -> dict[str, str]:
    """The file of a configuration; one that the command writes anew each time is another."""
    with contextlib.suppress(OSError):
        about = os.stat(path)
        if min(about.st_mtime, about.st_ctime) > _began_s:  # ctime alone is new after a chmod, too
            return {"config_file": "", "written_config": path}
    return {"config_file": path, "written_config": ""}


def settings_read() -> list[str]:
    """Files of settings that the script has read, in their order."""
    return list(_read)


def sources_of(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The files that were read and hold values of a configuration, that with most of them first.

    Returns:
        Of each file: `file`, its path; `at`, the keys of its section that is the configuration;
        `same` and `other`, dotted keys that it has with the configuration's value, and with
        another; `sections`, its keys that hold sections; `is_whole`, whether it holds most of
        the configuration.
    """
    wanted = {path: value for path, value in leaves(config) if path}
    found = [_source(path, wanted) for path in settings_read()]
    return sorted((one for one in found if one), key=lambda one: -len(one["same"]))


def _source(path: str, wanted: Mapping[tuple[str, ...], Any]) -> dict[str, Any] | None:
    data = data_of(path)
    best: tuple[int, tuple[str, ...], Mapping[str, Any]] | None = None
    for at, section in _sections(data or {}):
        n_same = sum(_is_same(value_at(section, key), value) for key, value in wanted.items())
        if n_same and (best is None or n_same > best[0]):
            best = n_same, at, section
    if best is None:
        return None
    n_same, at, section = best
    there = [key for key in wanted if value_at(section, key) is not None]
    if not any(key[0] in _TELLING for key in there):
        return None
    same = [key for key in there if _is_same(value_at(section, key), wanted[key])]
    return {
        "file": path,
        "at": list(at),
        "same": [".".join(key) for key in same],
        "other": [".".join(key) for key in there if key not in same],
        "sections": [name for name, value in section.items() if isinstance(value, Mapping)],
        "is_whole": 2 * len(same) >= len(wanted),
    }


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or _is_over:
        return
    path, mode = args[0], args[1]
    is_named = isinstance(path, str | os.PathLike) and (mode is None or _reads(mode))
    if not is_named or len(_read) >= _MOST_FILES:
        return
    name = os.path.abspath(os.fspath(path))
    if isinstance(name, str) and name not in _read and _is_settings(name):
        _read[name] = None
        os.environ[_READ_ENV] = json.dumps([*_read])


def _is_settings(path: str) -> bool:
    if not path.endswith(_SUFFIXES) or _PACKAGES.search(path):
        return False
    if path.startswith((_LIBRARY, *_not_the_user_s)) or file_of_user(path)["written_config"]:
        return False
    with contextlib.suppress(OSError):
        return os.path.isfile(path) and os.path.getsize(path) <= _LARGEST_BYTES
    return False


def _reads(mode: Any) -> bool:
    return isinstance(mode, str) and not set(mode) & set("wax+")


def _changing(
    opens: Callable[..., Any], changed: Mapping[str, Changes], copies: dict[str, str | None]
) -> Callable[..., Any]:
    """`open`, which gives a changed copy of some files to whoever reads them."""

    @functools.wraps(opens)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike) and _reads(mode):
            path = os.path.realpath(os.fspath(file))
            if path in changed and path not in copies:
                copies[path] = path  # the copy is made of the file itself
                copies[path] = _copy(path, changed[path])
            file = copies.get(path) or file
        return opens(file, mode, *args, **kwargs)

    return opened


def _copy(path: str, changes: Changes) -> str | None:
    """A copy of a file with changes in it; None where its text is none that is read here.

    Comments at its head stay: Hydra reads in them where a file belongs (`# @package _global_`).
    """
    data = data_of(path)
    if data is None:
        return None
    for at, value in changes:
        put(data, at, value)
    folder = tempfile.mkdtemp(prefix="autotune-read-")  # goes with the trial's temporary files
    copied = os.path.join(folder, os.path.basename(path))
    with open(copied, "w", encoding="utf-8") as file:
        if path.endswith(_YAML):
            import yaml

            with open(path, encoding="utf-8") as original:
                file.writelines(itertools.takewhile(lambda line: line.startswith("#"), original))
            yaml.safe_dump(data, file, sort_keys=False, allow_unicode=True)
        else:
            file.write(toml_of(data) if path.endswith(".toml") else json.dumps(data, indent=2))
    return copied


def data_of(path: str) -> dict[str, Any] | None:
    """The mapping in a file, read as its user's packages do; None: it holds none."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        if path.endswith(_YAML):
            import yaml  # of the script, which reads it

            found = yaml.safe_load(text)
        elif path.endswith(".toml"):
            found = importlib.import_module("tomllib").loads(text)  # Python 3.10 has none
        else:
            found = parsed(text)
    except Exception:  # of any parser, or a package that is not there: no training ends by this
        return None
    return found if isinstance(found, dict) else None


def _sections(
    data: Mapping[str, Any], at: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    level: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [(at, data)]
    n_left = _MOST_SECTIONS
    while level and n_left > 0 and len(level[0][0]) <= _MOST_LEVELS:
        yield from level
        n_left -= len(level)
        level = [
            ((*path, str(name)), value)
            for path, section in level
            for name, value in section.items()
            if isinstance(value, Mapping)
        ]


def _is_same(there: Any, value: Any) -> bool:
    """True if a file's value is one that was handed over; YAML 1.1 takes 1e-5 for text."""
    if there is None or isinstance(there, bool) != isinstance(value, bool):
        return False
    if isinstance(there, str) and isinstance(value, float):
        with contextlib.suppress(ValueError):
            return float(there) == value
    return bool(there == value)
