"""Every collective of one optimizer step, timed where it is called."""

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from autotune.trial.engines.base import CollectiveLog

COLLECTIVES = (
    *("all_reduce", "inference_all_reduce", "all_reduce_coalesced", "reduce", "broadcast"),
    *("reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base"),
    *("all_gather", "all_gather_into_tensor", "_all_gather_base"),
    *("all_to_all", "all_to_all_single", "gather", "scatter"),
)
"""Functions that all ranks of a group call in the same order, so that each can be waited for."""
PAIRWISE = ("send", "recv")
"""Functions that one rank calls, and another one its counterpart."""
_HANDED_IN = ("input_tensor", "input", "input_list", "input_tensor_list", "tensor", "tensors")
"""Arguments that are the message of a rank: a tensor or several."""


class Collectives(CollectiveLog):
    """Listens between `start` and `stop`; each call is waited for, so that its time is its own."""

    def __init__(
        self,
        places: Callable[[], Iterable[tuple[Any, str]]],
        synchronize: Callable[[], None],
    ) -> None:
        """Listen to nothing yet.

        Args:
            places: What holds the functions, and under which names; asked at the start.
            synchronize: Waits until the device has done its work.
        """
        super().__init__()
        self._places = places
        self._synchronize = synchronize
        self._replaced: list[tuple[Any, str, Any]] = []
        self._is_within = False
        """True in a call, which may make others."""

    def start(self) -> None:
        for owner, name in list(self._places()):
            value = getattr(owner, name)
            self._replaced.append((owner, name, value))
            # Calls that are put together have no end of their own.
            is_manager = value is distributed_c10d._coalescing_manager
            setattr(owner, name, _OneByOne if is_manager else self._timed(value))

    def stop(self) -> None:
        for owner, name, value in self._replaced:
            setattr(owner, name, value)
        self._replaced.clear()

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(function)
        name = function.__name__.strip("_").replace("_base", "_tensor")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._is_within:
                return function(*args, **kwargs)
            given = signature.bind(*args, **kwargs).arguments
            message = next(given[argument] for argument in _HANDED_IN if argument in given)
            tensors = [message] if isinstance(message, torch.Tensor) else message
            size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
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
            group_size = 2 if name in PAIRWISE else dist.get_world_size(given.get("group"))
            self._keep(name, size, group_size, took_s)
            return handle

        return call


class TorchCollectives(Collectives):
    """Those of torch.distributed that some modules call, by the beginning of their names."""

    def __init__(self, users: str) -> None:
        super().__init__(functools.partial(_places_of_torch, users), torch.cuda.synchronize)


def _places_of_torch(users: str) -> Iterator[tuple[Any, str]]:
    """Where torch.distributed and its users hold its collectives."""
    functions = {id(found) for name in COLLECTIVES if (found := getattr(dist, name, None))}
    functions.add(id(distributed_c10d._coalescing_manager))
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(users)]
    for module in (dist, *modules):
        yield from ((module, name) for name, v in list(vars(module).items()) if id(v) in functions)


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
