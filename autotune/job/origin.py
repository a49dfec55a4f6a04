"""Owner of a job file, and what it would run or read: asked before anything of it is done.

A job names code (`package.module:factory`) and files. In a job of one's own that is what one
wants; a job that came from elsewhere shall not have it by being named with `--job`.
"""

import importlib.machinery
import os
import stat
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.job.job import declared_keys
from autotune.job.lengths import file_of
from autotune.job.model import FACTORY, is_path, presets


def is_inside(file: Path, folder: Path) -> bool:
    """Whether a file is one's own: in a folder or below, links followed, and nobody else's.

    In a folder where everybody may write, such as /tmp, a file of another user is not. To root,
    whoever owns the folder counts as its user: a container's root works in the folders of others.
    """
    real, root = os.path.realpath(file), os.path.realpath(folder)
    if os.path.commonpath((real, root)) != root:
        return False
    if is_ours(file):
        return True
    is_of_folder = os.getuid() == 0 and _owner(Path(real)) == _owner(Path(root))
    return is_of_folder and not _is_anybodys(file)


def is_ours(file: Path) -> bool:
    """Whether a file is this user's or root's; one that is not there is nobody else's.

    One in which everybody may write is nobody's: its owner says nothing about who wrote it.
    """
    return _owner(file) in (os.getuid(), 0, None) and not _is_anybodys(file)


def deeds_of(data: Mapping[str, Any], *, without: Collection[str] = ()) -> list[str]:
    """What a job runs, reads and writes by names in it, a line each; presets are none.

    Args:
        data: The job, its paths resolved.
        without: Keys that something else sets.
    """
    found = []
    keys = {key: value for key, value in data.items() if key not in without}
    model = keys.get("model")
    if (code := code_of(model)) is not None:
        found.append(f"model: {code}")
    elif isinstance(model, str) and model not in presets() and is_path(model):
        found.append(f"model: reads {model}")
    for name, key in declared_keys().items():
        if key.deed and keys.get(name) is not None:
            found.append(f"{name}: {key.deed} {keys[name]}")
    if words := keys.get("megatron_arguments"):
        found.append(f"megatron_arguments: hands on {words}")
    # A shipped space has a name; `resolve_paths` has made a path of any other.
    if os.sep in str(keys.get("space", "")):
        found.append(f"space: reads {keys['space']}")
    if (file := file_of(keys.get("lengths"))) is not None:
        found.append(f"lengths: reads {file}")
    return found


def code_of(model: object) -> str | None:
    """Code that a factory imports and calls, and its file; None: the model is no factory."""
    if not isinstance(model, str) or model in presets() or is_path(model):
        return None
    if not FACTORY.fullmatch(model):
        return None
    module, _, name = model.partition(":")
    return f"imports {module} from {_file_of(module) or 'where it is found'} and calls {name}"


def _file_of(module: str) -> str:
    """The file of a module as it would be imported, with nothing imported; empty: not found."""
    folders: Sequence[str] | None = [os.getcwd(), *sys.path]
    found = ""
    # Each part by its own name: a dotted one asks for its package, which is not imported.
    for part in module.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, folders)
        if spec is None:
            return ""
        found = spec.origin or ", ".join(spec.submodule_search_locations or ())
        folders = [*spec.submodule_search_locations] if spec.submodule_search_locations else []
    return found


def _is_anybodys(file: Path) -> bool:
    try:
        return bool(os.stat(file).st_mode & stat.S_IWOTH)
    except OSError:
        return False


def _owner(path: Path) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None
