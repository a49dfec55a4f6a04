"""Find the DeepSpeed configuration that trains a model fastest in the memory there is.

`search`, `plan`, `explain`, `estimate`, `check`, `compare` and `load` are the commands of these
names as functions (docs/api.md). Nothing is imported here before it is needed: ranks of a trial
import `autotune.trial` and pay for everything that is loaded with this file.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.app.api import check as check
    from autotune.app.api import compare as compare
    from autotune.app.api import estimate as estimate
    from autotune.app.api import explain as explain
    from autotune.app.api import load as load
    from autotune.app.api import plan as plan
    from autotune.app.api import search as search

__version__ = "0.1.0"

DEFAULT_ENGINE = "deepspeed"
"""Name of the engine where nobody names one: commands and ranks read it here for nothing."""

_FUNCTIONS = ("check", "compare", "estimate", "explain", "load", "plan", "search")
_ROOMS = ("check", "search")
"""Functions whose names are rooms of the package as well: those modules can be called."""


def __getattr__(name: str) -> Any:
    if name not in _FUNCTIONS:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    from importlib import import_module

    if name in _ROOMS:
        return import_module(f"autotune.{name}")
    return getattr(import_module("autotune.app.api"), name)


def make_callable(room: str) -> None:
    """Make a room's module the function of its name as well: `autotune.search(...)`."""
    import sys
    from types import ModuleType

    class CallableRoom(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            from importlib import import_module

            function = getattr(import_module("autotune.app.api"), room.rpartition(".")[2])
            return function(*args, **kwargs)

    sys.modules[room].__class__ = CallableRoom
