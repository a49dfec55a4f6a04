"""Constants that fit measured steps or peaks better, without leaving what is known of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.cost.constants import Constants
from autotune.cost.plans import Plans
from autotune.cost.predict import memory_by_constants, times_by_constants

Values = NDArray[np.float64]

TIME_PRIORS: Mapping[str, float] = {
    "matmul_share": 0.4,
    "matmul_traffic": 0.4,
    "low_precision_share": 0.6,
    "grouped_traffic": 0.5,
    "routed_traffic": 0.5,
    "routing_kernels": 1.0,
    "expert_launch_s": 0.7,
    "all_to_all_share": 0.5,
    "attention_share": 0.4,
    "attention_backward_share": 0.4,
    "attention_start_tokens": 0.5,
    "memory_share": 0.4,
    "unfused_traffic": 0.1,
    "score_traffic_bytes": 0.4,
    "launch_s": 0.15,
    "skew_share": 0.4,
    "micro_batch_s": 0.7,
    "cut_s": 0.5,
    "send_s": 0.7,
    "step_s": 0.5,
    "nvlink_share": 0.4,
    "network_share": 0.5,
    "host_link_share": 0.5,
    "nvlink_latency_s": 0.4,
    "network_latency_s": 0.4,
    "overlap_share": 0.7,
    "scale_jitter": 0.6,
    "optimizer_traffic_bytes": 0.4,
    "host_optimizer_share": 0.5,
}
"""Constants of the step time -> standard deviation of what is known of them before: of the
logarithm, for shares of the logit."""

MEMORY_PRIORS: Mapping[str, float] = {
    "context_bytes": 0.2,
    "communicator_bytes": 0.3,
    "fragmentation": 0.4,
    "workspace_bytes": 0.3,
}
"""The same of the peak memory."""

_ROUNDS = 12
_STEP = 1e-3
"""Step of the finite differences, in the coordinates of the fit."""
_L1_FLOOR = 0.03
"""Residuals below it count by their square, above it by their size: a few bad rows of a table must
not bend the others."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a fit is to explain."""

    measured: Values
    weights: Values
    """How much each counts."""
    sigma: float
    """Noise of log(measured / predicted) that remains."""

    def __post_init__(self) -> None:
        if not len(self.measured) or not np.all(np.isfinite(self.measured) & (self.measured > 0)):
            raise JobError(
                f"calibration: {len(self.measured)} measurements, not all above zero",
                "give one positive measurement per candidate",
            )


def calibrate_constants(
    plans: Plans,
    measured: Values,
    start: Constants,
    *,
    meters: Sequence[str] | None = None,
    sigma: float = 0.05,
    weights: Values | None = None,
    priors: Mapping[str, float] | None = None,
    first: Constants | None = None,
) -> Constants:
    """The most probable constants.

    Args:
        plans: What ran.
        measured: Seconds per optimizer step; with `meters` bytes of the fullest device.
        start: What is known before; the fit stays near it.
        meters: Which field of `Memory` each measurement is of; None: they are step times.
        sigma: Noise of log(measured / predicted) that remains.
        weights: One per row; alike by default.
        priors: Which constants may move, and how far; those of the figure by default.
        first: Where the search for them begins; at `start` by default.

    Raises:
        JobError: There is not one positive measurement per candidate.
    """
    if priors is None:
        priors = TIME_PRIORS if meters is None else MEMORY_PRIORS
    names = list(priors)
    target = Target(
        measured=measured,
        weights=np.ones(len(measured)) if weights is None else weights,
        sigma=sigma,
    )
    figures = figures_by_constants(plans, meters)
    point = most_probable(
        lambda at: figures(moved(start, names, at)),
        target,
        center=point_of(start, names),
        spreads=np.array(list(priors.values())),
        first=point_of(first or start, names),
    )
    return moved(start, names, point)


def figures_by_constants(
    plans: Plans, meters: Sequence[str] | None
) -> Callable[[Constants], Values]:
    """Step times, or with `meters` what each meter shows, as a function of the constants."""
    if meters is None:
        seconds = times_by_constants(plans)
        return lambda c: seconds(c, None)
    memory_at = memory_by_constants(plans)
    rows = {meter: np.flatnonzero(np.equal(meters, meter)) for meter in dict.fromkeys(meters)}

    def read(c: Constants) -> Values:
        memory, found = memory_at(c), np.empty(len(plans))
        for meter, which in rows.items():
            found[which] = np.broadcast_to(getattr(memory, meter), len(plans))[which]
        return found

    return read


def most_probable(
    predicted: Callable[[Values], Values],
    target: Target,
    *,
    center: Values,
    spreads: Values,
    first: Values,
) -> Values:
    """The most probable point: Gauss-Newton, normal priors, residuals between L1 and L2.

    Args:
        predicted: The figures at a point.
        target: What was measured.
        center: What is known of the point before.
        spreads: How well, in standard deviations.
        first: Where the search begins.
    """
    precision, sigma, logarithms = 1.0 / spreads**2, target.sigma, np.log(target.measured)

    def residual(at: Values) -> Values:
        found: Values = logarithms - np.log(predicted(at))
        return found

    def cost(at: Values, r: Values) -> float:
        size = np.abs(r)
        loss = np.where(size < _L1_FLOOR, r * r, 2 * _L1_FLOOR * size - _L1_FLOOR**2)
        distance = float(np.sum(precision * (at - center) ** 2))
        return float(np.sum(target.weights * loss)) / sigma**2 + distance

    point = first.copy()
    r = residual(point)
    best = cost(point, r)
    for _ in range(_ROUNDS):
        slopes = np.empty((len(r), len(point)))
        for column in range(len(point)):
            beside = point.copy()
            beside[column] += _STEP
            slopes[:, column] = (r - residual(beside)) / _STEP
        robust = target.weights * _L1_FLOOR / np.maximum(np.abs(r), _L1_FLOOR) / sigma**2
        normal = slopes.T @ (robust[:, None] * slopes) + np.diag(precision)
        pull = slopes.T @ (robust * r) - precision * (point - center)
        move = np.linalg.solve(normal, pull)
        gained = False
        for shorter in (1.0, 0.5, 0.25, 0.1):
            candidate = point + shorter * move
            r_candidate = residual(candidate)
            at = cost(candidate, r_candidate)
            if at < best:
                gained = best - at > 1e-4 * best
                point, r, best = candidate, r_candidate, at
                break
        if not gained:
            break
    return point


def point_of(constants: Constants, names: Sequence[str]) -> Values:
    """Some constants as coordinates of a fit, where all of them may be any number."""
    return np.array([_to_line(name, getattr(constants, name)) for name in names])


def moved(constants: Constants, names: Sequence[str], point: Values) -> Constants:
    """Constants, some of them at other coordinates."""
    values = {
        name: _from_line(name, value) for name, value in zip(names, point.tolist(), strict=True)
    }
    return dataclasses.replace(constants, **values)


def _to_line(name: str, value: float) -> float:
    """Shares to their logit, other constants to their logarithm."""
    if name.endswith("_share"):
        inside = min(max(value, 1e-3), 1.0 - 1e-3)
        return float(np.log(inside / (1.0 - inside)))
    return float(np.log(value))


def _from_line(name: str, value: float) -> float:
    if name.endswith("_share"):
        return float(1.0 / (1.0 + np.exp(-value)))
    return float(np.exp(value))
