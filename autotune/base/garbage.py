"""Python's garbage collection beside a long record: its pauses are kept short.

A full collection goes through every object there is. Ten thousand trials are millions of them,
which takes about a second, in the middle of whatever runs.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Around what makes very many objects that stay: no collection goes through them meanwhile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LongLived:
    """Leaves what stays in memory out of later collections, again and again as there is more."""

    def __init__(self) -> None:
        self._is_settled = False

    def settle(self) -> None:
        """Collect garbage, then exempt all objects that are left from later collections."""
        gc.collect()
        gc.freeze()
        self._is_settled = True

    def close(self) -> None:
        """End the exemption: the program may do other things afterwards."""
        if self._is_settled:
            gc.unfreeze()
            self._is_settled = False
