"""How a rank times its work: warm-ups, samples that are long enough to time, their median."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 2
_SAMPLE_S = 1e-3
"""Shortest call that is timed alone: several shorter ones are timed together, since reading the
clock must not count."""
_FEWEST, _MOST = 5, 100
_FEWEST_OF_SLOW = 3
_TOGETHER_S = 2.0
"""Time for the repeats of one collective: on a slow network the large ones take a second each."""


class Clock:
    """Times calls on one device."""

    def __init__(self, device: Any, wait: Callable[[], None], *, is_quick: bool) -> None:
        """`wait` returns when torch's device has done what it was given.

        A quick clock's figures may be rougher for being there sooner.
        """
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.is_quick = is_quick
        self._wait = wait
        self._budget_s = 0.05 if is_quick else 0.2
        self.once_s = 0.0
        """Seconds of the last call of `together`, the same figure for all ranks."""

    def alone(
        self, work: Callable[[], object], *, budget_s: float | None = None
    ) -> dict[str, float]:
        """Time what each rank does by itself, all of them at the same time, for a while."""
        for _ in range(_WARM_UPS):
            work()
        self._barrier()
        calls = max(1, int(_SAMPLE_S / max(self._sample(work, 1), 1e-7)))
        samples: list[float] = []
        end_s = time.perf_counter() + (budget_s or self._budget_s)
        while len(samples) < _FEWEST or (time.perf_counter() < end_s and len(samples) < _MOST):
            samples.append(self._sample(work, calls))
        return _summary(samples)

    def together(self, work: Callable[[], object], *, calls: int) -> dict[str, float]:
        """Time what the ranks do with each other: as often on every rank, `calls` a sample."""
        work()
        self._barrier()
        self.once_s = once_s = self._slowest(self._sample(work, 1))
        most = _FEWEST if self.is_quick else 2 * _FEWEST - 1
        affordable = int(_TOGETHER_S / (calls * once_s))
        samples = []
        for _ in range(max(_FEWEST_OF_SLOW, min(most, affordable))):
            self._barrier()
            samples.append(self._sample(work, calls))
        return _summary(samples)

    def _slowest(self, seconds: float) -> float:
        """The slowest of all ranks: they have to come to the same number of repeats."""
        value = torch.tensor([seconds], dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(value, op=torch.distributed.ReduceOp.MAX)
        return max(float(value), 1e-9)

    def _sample(self, work: Callable[[], object], calls: int) -> float:
        self._wait()
        start_s = time.perf_counter()
        for _ in range(calls):
            work()
        self._wait()
        return (time.perf_counter() - start_s) / calls

    def _barrier(self) -> None:
        torch.distributed.barrier()
        self._wait()


def _summary(samples: list[float]) -> dict[str, float]:
    median = statistics.median(samples)
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return {"seconds": median, "scatter": (high - low) / median}
