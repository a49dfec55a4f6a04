"""Shipped data: tables, and folders of templates, spaces and records, also those of a wheel."""

import json
import re
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from autotune import DEFAULT_ENGINE

_ENGINE = re.compile(r"^engine: ([a-z0-9_-]+)$", re.MULTILINE)
"""Line of a space that names its engine."""
_PACKAGE = Path(__file__).resolve().parent.parent
_IN_CHECKOUT = {"recorded": "results/recorded"}
"""Folders of a checkout that do not lie at its top."""


def data_folder(name: str) -> Path:
    """Folder of shipped data: `search_spaces`, `templates` or `recorded`.

    Raises:
        FileNotFoundError: The installation lacks it.
    """
    # A wheel carries the data inside the package; a checkout keeps it beside the package.
    beside = _PACKAGE.parent / _IN_CHECKOUT.get(name, name)
    for folder in (_PACKAGE / "_data" / name, beside):
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"{name}: neither inside {_PACKAGE} nor beside it")


def table_beside(module: str, name: str) -> Any:
    """Data of a JSON file that lies beside a module: `table_beside(__file__, "rows.json")`."""
    return json.loads(Path(module).with_name(name).read_text(encoding="utf-8"))


@cache
def installed_files() -> tuple[tuple[str, int, int], ...]:
    """Path, size in bytes and time of each file of code, of its tables and shipped templates.

    Where two processes see the same, they run the same code.
    """
    roots = (
        *(_PACKAGE.rglob(f"*.{kind}") for kind in ("py", "json")),
        data_folder("templates").rglob("*.j2"),
    )
    found = []
    for path in sorted(chain.from_iterable(roots)):
        state = path.stat()
        found.append((str(path), state.st_size, state.st_mtime_ns))
    return tuple(found)


def shipped_spaces(engine: str = "") -> list[str]:
    """Names of the spaces that come with the package: all, or those of one engine.

    Raises:
        FileNotFoundError: The installation lacks them.
    """
    files = sorted(data_folder("search_spaces").glob("*.yaml"))
    return [path.stem for path in files if not engine or _engine_of(path) == engine]


def _engine_of(space: Path) -> str:
    found = _ENGINE.search(space.read_text(encoding="utf-8"))
    return DEFAULT_ENGINE if found is None else found.group(1)
