"""Constants that fit measured steps or peaks better, without leaving what is known of them."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.cost.constants import Constants
from autotune.cost.plans import Plans
from autotune.cost.predict import predict

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
    "logits_fragmentation": 0.5,
    "workspace_bytes": 0.3,
}
"""The same of the peak memory."""

_ROUNDS = 12
_STEP = 1e-3
"""Step of the finite differences, in the coordinates of the fit."""
_L1_FLOOR = 0.03
"""Residuals below it count by their square, above it by their size: a few bad rows of a table must
not bend the others."""


def calibrate_constants(
    plans: Plans,
    measured: Values,
    start: Constants,
    *,
    meters: Sequence[str] | None = None,
    sigma: float = 0.05,
    weights: Values | None = None,
    priors: Mapping[str, float] | None = None,
) -> Constants:
    """The most probable constants: Gauss-Newton, normal priors, residuals between L1 and L2.

    Args:
        plans: What ran.
        measured: Seconds per optimizer step; with `meters` bytes of the fullest device.
        start: What is known before; the fit stays near it.
        meters: Which field of `Memory` each measurement is of; None: they are step times.
        sigma: Noise of log(measured / predicted) that remains.
        weights: One per row; alike by default.
        priors: Which constants may move, and how far; those of the figure by default.

    Raises:
        JobError: There is not one positive measurement per candidate.
    """
    if priors is None:
        priors = TIME_PRIORS if meters is None else MEMORY_PRIORS

    def predicted(c: Constants) -> Values:
        if meters is None:
            return predict(plans, c).step_time_s
        memory = predict(plans, c).memory
        return np.array([getattr(memory, meter)[row] for row, meter in enumerate(meters)])

    names = list(priors)
    center = np.array([_to_line(name, getattr(start, name)) for name in names])
    precision = np.array([1.0 / priors[name] ** 2 for name in names])
    if len(measured) == 0 or not np.all(np.isfinite(measured) & (measured > 0)):
        raise JobError(
            f"calibration: {len(measured)} measurements, not all above zero",
            "give one positive measurement per candidate",
        )
    target = np.log(measured)
    row_weights = np.ones_like(target) if weights is None else weights
    point = center.copy()

    def residual(at: Values) -> Values:
        return target - np.log(predicted(_with(start, names, at)))

    def cost(at: Values, r: Values) -> float:
        size = np.abs(r)
        loss = np.where(size < _L1_FLOOR, r * r, 2 * _L1_FLOOR * size - _L1_FLOOR**2)
        distance = float(np.sum(precision * (at - center) ** 2))
        return float(np.sum(row_weights * loss)) / sigma**2 + distance

    r = residual(point)
    best = cost(point, r)
    for _ in range(_ROUNDS):
        slopes = np.empty((len(r), len(names)))
        for column in range(len(names)):
            moved = point.copy()
            moved[column] += _STEP
            slopes[:, column] = (r - residual(moved)) / _STEP
        robust = row_weights * _L1_FLOOR / np.maximum(np.abs(r), _L1_FLOOR) / sigma**2
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
    return _with(start, names, point)


def _with(constants: Constants, names: list[str], point: Values) -> Constants:
    moved = {
        name: _from_line(name, value) for name, value in zip(names, point.tolist(), strict=True)
    }
    return dataclasses.replace(constants, **moved)


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
