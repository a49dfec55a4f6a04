"""Find the DeepSpeed or Megatron configuration that trains a model fastest in the memory there is.

check: Say what is wrong with configurations, as `autotune check` does.
compare: Compare studies, by name or by folder; ratios are over the first one.
estimate: Predict step time and memory of a candidate, as `autotune estimate` does.
estimate_rows: Predict the runs of a table, as `autotune estimate --rows` does.
explain: Explain why a candidate is refused, or ranked where it is, as `autotune explain` does.
gate: Measure a stored best again, as `autotune compare --against` does; None: Ctrl-C ended it.
load: Load the table of a study: a pandas frame with a row per trial.
plan: Rank the candidates for a fleet by the cost model, as `autotune plan` does.
search: Search for the fastest configuration, as `autotune search` does; the same call resumes.
AutotuneError: The base of the errors that these raise, with `message` and `hint`.

`help(autotune.search)` shows one with all its arguments.
"""

# Nothing is imported here before it is needed: ranks of a trial import `autotune.trial` and pay
# for everything that is loaded with this file. `__init__.pyi` beside it has the types.

import sys
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

DEFAULT_ENGINE = "deepspeed"
"""Name of the engine where nobody names one: commands and ranks read it here for nothing."""

_FUNCTIONS = {
    "check": "checks",
    "compare": "records",
    "estimate": "predictions",
    "estimate_rows": "predictions",
    "explain": "predictions",
    "gate": "gates",
    "load": "records",
    "plan": "predictions",
    "search": "searches",
}
"""Function -> its module in `autotune.app.api`."""
_ERRORS = (
    *("AutotuneError", "JobError", "RenderError"),
    *("StudyError", "NothingFeasibleError", "FleetError"),
)
"""Names of `autotune.base.errors` that callers catch."""
__all__ = [*_FUNCTIONS]
_called: dict[str, Any] = {}
"""Functions that were asked for."""
_ROOMS = ("check", "search")
"""Functions whose names are rooms of the package as well: `from autotune.search.plan import ...`
finds the room, and `autotune.search` is the function, which has the room's names."""


def __dir__() -> list[str]:
    return sorted({*_FUNCTIONS, *_ERRORS, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    if name in _ERRORS:
        from autotune.base import errors

        return getattr(errors, name)
    if name not in _FUNCTIONS:
        there = f"it has {', '.join(__all__)}"
        raise AttributeError(f"module 'autotune' has no attribute {name!r}: {there}")
    return _function(name)


def _function(name: str) -> Any:
    from importlib import import_module

    from autotune.app.api.calls import for_callers

    if name not in _called:
        raw = getattr(import_module(f"autotune.app.api.{_FUNCTIONS[name]}"), name)
        _called[name] = for_callers(raw)
    found = _called[name]
    if name in _ROOMS:
        room = vars(import_module(f"autotune.{name}"))
        vars(found).update({name: it for name, it in room.items() if not name.startswith("_")})
    return found


class _Package(ModuleType):
    """The package: importing a room binds it here, and hides no function of its name."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in _ROOMS or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
