"""A limit on the share of time that something repeated may take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Pace:
    """Says when something is due again: the longer it took, the later.

    It is due at once as long as it is cheap, and where it is not, what it takes stays a share of
    the time.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._not_before_s = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._not_before_s

    @contextmanager
    def taken(self) -> Iterator[None]:
        begun_s = time.monotonic()
        try:
            yield
        finally:
            self.took(time.monotonic() - begun_s)

    def took(self, seconds: float) -> None:
        self._not_before_s = time.monotonic() + seconds / self._share
