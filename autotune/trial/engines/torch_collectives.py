"""Every collective of one optimizer step that goes through torch.distributed, timed."""

import functools
import inspect
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from autotune.trial.engines.base import CollectiveLog

_COLLECTIVES = {
    "all_reduce": "tensor",
    "reduce": "tensor",
    "broadcast": "tensor",
    "reduce_scatter_tensor": "input",
    "all_gather_into_tensor": "output_tensor",
    "all_to_all_single": "input",
    "_reduce_scatter_base": "input",
    "_all_gather_base": "output_tensor",
}
"""Function of torch.distributed -> its argument that has the size of the whole message."""


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


class TorchCollectives(CollectiveLog):
    """Listens between `start` and `stop`; each call is waited for, so that its time is its own."""

    def __init__(self, users: str) -> None:
        super().__init__()
        self._users = users
        self._replaced: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        originals = {
            name: function
            for name in _COLLECTIVES
            if (function := getattr(dist, name, None)) is not None
        }
        watched: dict[int, Any] = {
            id(function): self._timed(name, function) for name, function in originals.items()
        }
        # Calls that are put together have no end of their own.
        watched[id(distributed_c10d._coalescing_manager)] = _OneByOne
        modules = [m for name, m in list(sys.modules.items()) if name.startswith(self._users)]
        for module in (dist, *modules):
            for name, value in list(vars(module).items()):
                if (ours := watched.get(id(value))) is not None:
                    self._replaced.append((module, name, value))
                    setattr(module, name, ours)

    def stop(self) -> None:
        for module, name, value in self._replaced:
            setattr(module, name, value)
        self._replaced.clear()

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        plain_name = name.strip("_").replace("_base", "_tensor")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            message: torch.Tensor = given[_COLLECTIVES[name]]
            torch.cuda.synchronize()
            began_s = time.perf_counter()
            handle = function(*args, **kwargs)
            if hasattr(handle, "wait"):
                handle.wait()
            torch.cuda.synchronize()
            took_s = time.perf_counter() - began_s
            size = message.numel() * message.element_size()
            self._keep(plain_name, size, dist.get_world_size(given.get("group")), took_s)
            return handle

        return call
