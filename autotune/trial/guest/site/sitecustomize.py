"""Python imports this at the start of every interpreter that finds this folder on its path.

A launcher of a user's own script puts it there. Any `sitecustomize` of theirs still runs, first.
"""

import builtins
import importlib
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

NAME = "_autotune_in_rank"
"""What our package is called here: the user may have one of their own called `autotune`."""
_OURS = "autotune"


def _run_next() -> None:
    """Run the next `sitecustomize` on the path, as Python would have without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _import(
    name: str,
    globals: Mapping[str, object] | None = None,  # Python names them so
    locals: Mapping[str, object] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> ModuleType:
    """Import as ever, but find our own package under its name here."""
    first, dot, rest = name.partition(".")
    if not level and first == _OURS:
        name = NAME + dot + rest
    return builtins.__import__(name, globals, locals, fromlist or (), level)


class _PackageLoader(importlib.machinery.SourceFileLoader):
    """Loads a module of ours, whose own `import` statements go by `_import`."""

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import}
        super().exec_module(module)


class _PackageFinder:
    """Finds what lies in our package, and nothing beside it in its folder."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(f"{NAME}."):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _PackageLoader(fullname, spec.origin)
        return spec


def _begin() -> None:
    package = os.path.abspath(__file__)
    for _ in range(4):  # site, guest, trial, the package
        package = os.path.dirname(package)
    path = os.path.join(package, "__init__.py")
    loader: Any = _PackageLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(
        NAME, path, loader=loader, submodule_search_locations=[package]
    )
    if spec is None or NAME in sys.modules:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    loader.exec_module(module)
    sys.meta_path.insert(0, _PackageFinder())
    importlib.import_module(f"{NAME}.trial.guest.begin").begin()


try:
    _run_next()
finally:
    if os.environ.get("AUTOTUNE_GUEST_DIR"):
        _begin()
