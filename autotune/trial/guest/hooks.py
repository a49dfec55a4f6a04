"""Wraps what modules of somebody else's hold, at the moment when they have been imported."""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

Function = Callable[..., Any]  # of somebody else's
Wrapper = Callable[..., Any]
"""Called in the place of a function, with that function before its arguments."""
Hook = tuple[str, str, Wrapper]
"""A module, a place in it (`function` or `Class.method`) and the wrapper of what is there; where
the place is empty the wrapper is called with the module, whatever that holds."""


def call_after_imports(hooks: Iterable[Hook]) -> None:
    """Apply the hooks of each module once that has been executed, which may never be.

    Not when it is looked for: libraries look for packages that they do not import. A module that
    is there already has its hooks applied here.
    """
    waiting: dict[str, list[Hook]] = {}
    for hook in hooks:
        waiting.setdefault(hook[0], []).append(hook)
    sys.meta_path.insert(0, _Finder(waiting))
    for name in [name for name in waiting if name in sys.modules]:
        apply(sys.modules[name], waiting.pop(name))


def apply(module: ModuleType, hooks: Iterable[Hook]) -> None:
    """Apply those hooks that are the module's, in turn; what it has not is left out."""
    for name, place, wrapper in hooks:
        if name == module.__name__ and place:
            _wrap(module, place, wrapper)
        elif name == module.__name__:
            wrapper(module)


def _wrap(module: ModuleType, place: str, wrapper: Wrapper) -> None:
    *owners, name = place.split(".")
    owner: Any = module
    for part in owners:
        owner = getattr(owner, part, None)
    if owner is not None and hasattr(owner, name):
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        replaced = around(getattr(owner, name), wrapper)
        setattr(owner, name, staticmethod(replaced) if is_static else replaced)


def around(original: Callable[..., Any], wrapper: Wrapper) -> Callable[..., Any]:
    """What calls the wrapper with the original, and looks like that."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return called


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the finders after it do; `_HookedLoader` loads the modules with a hook."""

    def __init__(self, hooks: dict[str, list[Hook]]) -> None:
        self._hooks = hooks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._hooks:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookedLoader(spec.loader, self._hooks, fullname)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        finders = list(sys.meta_path)
        after = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in after:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


class _HookedLoader(importlib.abc.Loader):
    """Loads as another one does, and calls the hook when the module is there."""

    def __init__(self, loader: Any, hooks: dict[str, list[Hook]], name: str) -> None:
        self._loader = loader
        self._hooks = hooks
        self._name = name

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # From here on it is as if nobody had been in between.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        apply(module, self._hooks.pop(self._name, ()))
