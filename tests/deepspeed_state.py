"""What DeepSpeed keeps from one engine to the next in a process, and tests take back."""

import contextlib
import copy
import gc
import importlib
import importlib.util
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from deepspeed.module_inject import auto_tp, layers
from deepspeed.utils import groups
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

STATEFUL = (groups, auto_tp, layers)
"""Modules of DeepSpeed that keep what one engine set up in module globals."""
_ATTENTION = dict(ALL_ATTENTION_FUNCTIONS)
"""As transformers has it: Ulysses puts its own in place."""


@contextlib.contextmanager
def clean_globals() -> Iterator[None]:
    """Give DeepSpeed's module globals back the values that they had before."""
    before: list[tuple[ModuleType, dict[str, Any]]] = [
        (module, {k: copy.copy(v) for k, v in vars(module).items() if is_state(k, v)})
        for module in STATEFUL
    ]
    try:
        yield
    finally:
        for module, values in before:
            vars(module).update(values)
        release_sequences()
        for name, function in _ATTENTION.items():
            ALL_ATTENTION_FUNCTIONS[name] = function
        gc.collect()


def release_sequences() -> None:
    """Forget the groups that shared sequences; releases before 0.17 share none."""
    package = "deepspeed.runtime.sequence_parallel"
    if importlib.util.find_spec(package) is None:
        return
    state = importlib.import_module(f"{package}.parallel_state_sp")
    if hasattr(state, "_release_sequence_parallel_groups"):
        state._release_sequence_parallel_groups()
    else:  # before 0.19.8
        state._SEQUENCE_PARALLEL_GROUP = state._SEQUENCE_DATA_PARALLEL_GROUP = None


def is_state(name: str, value: Any) -> bool:
    """Whether a module global holds state: not a function, class, module or constant."""
    return not name.startswith("__") and (
        value is None or isinstance(value, (bool, int, float, str, list, dict))
    )
