"""Every collective of one optimizer step, timed where it is called."""

import functools
import sys
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from autotune.contract import CollectiveCalls

MAX_CALLS = 4000
"""Calls of one step that are kept; later ones are ignored."""
COLLECTIVES = (
    *("all_reduce", "inference_all_reduce", "all_reduce_coalesced", "reduce", "broadcast"),
    *("reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base"),
    *("all_gather", "all_gather_into_tensor", "_all_gather_base"),
    *("all_to_all", "all_to_all_single", "gather", "scatter"),
)
"""Functions that all ranks of a group call in the same order, so that each can be waited for."""
PAIRWISE = ("send", "recv")
"""Functions that one rank calls, and another one its counterpart."""
_AFTER_OUTPUT = ("reduce_scatter", "all_gather", "all_to_all")
"""How the names begin of functions whose first argument is for the result."""
_HANDED_IN = ("input_tensor", "input", "input_list", "input_tensor_list", "tensor", "tensors")
"""Arguments that are the message of a rank: a tensor or several."""


class Collectives:
    """Listens between `start` and `stop`; each call is waited for, so that its time is its own."""

    def __init__(self, home: ModuleType, users: str, synchronize: Callable[[], None]) -> None:
        """Listen to nothing yet.

        Args:
            home: The module of the functions, which have the names that torch's have.
            users: How the names begin of modules that may hold them as well.
            synchronize: Waits until the device has done its work.
        """
        self._home = home
        self._users = users
        self._synchronize = synchronize
        self._replaced: list[tuple[Any, str, Any]] = []
        self._is_within = False
        """True in a call, which may make others."""
        self._calls: dict[tuple[str, int, int], list[float]] = {}
        self._n_calls = 0

    def start(self) -> None:
        watched: dict[int, Any] = {
            id(function): self._timed(name, function)
            for name in (*COLLECTIVES, *PAIRWISE)
            if (function := getattr(self._home, name, None)) is not None
        }
        # Calls that are put together have no end of their own.
        watched[id(distributed_c10d._coalescing_manager)] = _OneByOne
        modules = [m for name, m in list(sys.modules.items()) if name.startswith(self._users)]
        for module in dict.fromkeys((self._home, *modules)):
            for name, value in list(vars(module).items()):
                if (timed := watched.get(id(value))) is not None:
                    self._replaced.append((module, name, value))
                    setattr(module, name, timed)

    def stop(self) -> None:
        for owner, name, value in self._replaced:
            setattr(owner, name, value)
        self._replaced.clear()

    @property
    def calls(self) -> list[CollectiveCalls]:
        """Calls until now; another thread may ask while this one listens."""
        return [
            CollectiveCalls(name=name, message_bytes=size, group_size=group, seconds=list(seconds))
            for (name, size, group), seconds in list(self._calls.items())
        ]

    @property
    def is_cut(self) -> bool:
        """True if there were more calls than are kept."""
        return self._n_calls > MAX_CALLS

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        name = name.strip("_").replace("_base", "_tensor")
        place = int(name.startswith(_AFTER_OUTPUT))

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_within:
                return function(*args, **kwargs)
            # By place and name, since DeepSpeed's functions show no signature.
            given = [kwargs[argument] for argument in _HANDED_IN if argument in kwargs]
            message = given[0] if given else args[place]
            tensors = [message] if isinstance(message, torch.Tensor) else message
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
            groups = (g for g in (*args, *kwargs.values()) if isinstance(g, dist.ProcessGroup))
            group = next(groups, None)
            self._synchronize()
            began_s = time.perf_counter()
            self._is_within = True
            try:
                handle = function(*args, **kwargs)
                if hasattr(handle, "wait"):
                    handle.wait()
            finally:
                self._is_within = False
            self._synchronize()
            took_s = time.perf_counter() - began_s
            group_size = 2 if name in PAIRWISE else dist.get_world_size(group)
            self._n_calls += 1
            if not self.is_cut:
                self._calls.setdefault((name, size, group_size), []).append(took_s)
            return handle

        return call


class _OneByOne:
    """Stands for what puts calls together: each runs when it is made, and is waited for then."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what torch's own takes."""

    def __enter__(self) -> "_OneByOne":
        return self

    def __exit__(self, *_: object) -> None:
        """See `wait`."""

    def wait(self) -> None:
        """Every call was waited for."""
