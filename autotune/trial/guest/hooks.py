"""Calls at the moment when a module of somebody else's has been imported."""

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]
Wrapper = Callable[..., Any]
"""Called in the place of a function, with that function before its arguments."""


def wrapped(place: str, wrapper: Wrapper) -> Hook:
    """A hook that wraps what its module holds at a place: `function`, or `Class.method`."""
    *owners, name = place.split(".")

    def hook(module: ModuleType) -> None:
        owner = functools.reduce(getattr, owners, module)
        is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
        replaced = around(getattr(owner, name), wrapper)
        setattr(owner, name, staticmethod(replaced) if is_static else replaced)

    return hook


def around(original: Callable[..., Any], wrapper: Wrapper) -> Callable[..., Any]:
    """What calls the wrapper with the original, and looks like that."""

    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    return called


def combined(hooks: Iterable[tuple[str, Hook]]) -> dict[str, Hook]:
    """Hooks by their modules; of a module with several, each is called in turn."""
    found: dict[str, list[Hook]] = {}
    for name, hook in hooks:
        found.setdefault(name, []).append(hook)

    def in_turn(hooks: Sequence[Hook]) -> Hook:
        def call(module: ModuleType) -> None:
            for hook in hooks:
                hook(module)

        return call

    return {name: in_turn(hooks) for name, hooks in found.items()}


def call_after_imports(hooks: Mapping[str, Hook]) -> None:
    """Call each hook with its module once that has been executed, which may never be.

    Not when it is looked for: libraries look for packages that they do not import. A module that
    is there already has its hook called here.
    """
    rest = dict(hooks)
    sys.meta_path.insert(0, _Finder(rest))
    for name in [name for name in rest if name in sys.modules]:
        rest.pop(name)(sys.modules[name])


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the finders after it do; `_HookedLoader` loads the modules with a hook."""

    def __init__(self, hooks: dict[str, Hook]) -> None:
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

    def __init__(self, loader: Any, hooks: dict[str, Hook], name: str) -> None:
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
        hook = self._hooks.pop(self._name, None)
        if hook is not None:
            hook(module)
