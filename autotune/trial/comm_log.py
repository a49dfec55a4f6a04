"""Every collective of one optimizer step that goes through DeepSpeed, by its comms logger.

The logger times each call until the device is synchronised after it. This module mends four of
its faults (0.19.8): its timer is never reset, so that each figure holds all calls before it; on
CPU that timer reads the wall clock, which somebody may set; a
call with `async_op` is timed until it is launched where the accelerator has no streams (CPU); and
an operation whose bandwidth it cannot tell ends the process.
"""

import functools
import inspect
import time
from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from deepspeed.comm import comm
from deepspeed.utils import timer

from autotune.trial.engines.base import CollectiveLog

_COLLECTIVES = (
    "all_reduce",
    "inference_all_reduce",
    "all_reduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "broadcast",
    "all_gather",
    "all_gather_into_tensor",
    "all_to_all_single",
    "all_to_all",
    "gather",
    "scatter",
)
"""Methods of DeepSpeed's backend that all ranks of a group call in the same order, so that the
logger may wait for a call at once. It may not for a send and its receive."""

_PAIRWISE = ("send", "recv", "isend", "irecv")


class _Steady:
    """Replacement for `time` in DeepSpeed's timers while they are listened to."""

    time = staticmethod(time.monotonic)


class CommLog(CollectiveLog):
    """Listens between `start` and `stop`."""

    def __init__(self) -> None:
        super().__init__()
        self._group_size = dist.get_world_size()
        self._settings: dict[str, Any] = {}

    def start(self) -> None:
        logger = comm.comms_logger
        self._settings = {
            name: getattr(logger, name) for name in ("enabled", "prof_all", "verbose", "debug")
        }
        logger.append = self._append
        for name in _COLLECTIVES:
            if (method := getattr(comm.cdb, name, None)) is not None:
                setattr(comm.cdb, name, self._blocking(method))
        timer.time = _Steady
        comm.configure(enabled=True, prof_all=True, verbose=False, debug=False)

    def stop(self) -> None:
        comm.configure(**self._settings)
        timer.time = time
        del comm.comms_logger.append
        for name in _COLLECTIVES:
            vars(comm.cdb).pop(name, None)

    def _append(self, raw_name: str, record_name: str, latency: float, msg_size: int) -> None:
        """Record a call, in place of the logger's own method; `latency` is in milliseconds."""
        comm.timers(record_name).reset()
        group_size = 2 if raw_name in _PAIRWISE else self._group_size
        self._keep(raw_name, int(msg_size), group_size, latency / 1e3)
        self._group_size = dist.get_world_size()

    def _blocking(self, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            group = signature.bind(*args, **kwargs).arguments.get("group")
            self._group_size = dist.get_world_size(group)
            handle = method(*args, **kwargs)
            if hasattr(handle, "wait"):
                handle.wait()
            return handle

        return call
