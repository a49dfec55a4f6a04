"""Constants that fit measured steps or peaks better, without leaving what is known of them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.cost.activations import activations_of
from autotune.cost.constants import Constants
from autotune.cost.memory import memory_of
from autotune.cost.plans import Column, Plans
from autotune.cost.sizes import sizes_of
from autotune.cost.step import step_times

Values = NDArray[np.float64]

TIME_PRIORS: Mapping[str, float] = {
    "matmul_share": 0.4,
    "matmul_traffic": 0.4,
    "low_precision_share": 0.6,
    "grouped_traffic": 0.5,
    "routed_traffic": 0.5,
    # A count of kernels: the few mixtures of another framework must not double it for all.
    "routing_kernels": 0.4,
    "expert_launch_s": 0.7,
    "all_to_all_share": 0.5,
    "attention_share": 0.4,
    "attention_backward_share": 0.4,
    "attention_start_tokens": 0.5,
    "memory_share": 0.1,
    "unfused_traffic": 0.1,
    "score_traffic_bytes": 0.4,
    "launch_s": 0.1,
    "skew_share": 0.4,
    "micro_batch_s": 0.7,
    "cut_s": 0.5,
    "send_s": 0.7,
    "step_s": 0.2,
    "nvlink_share": 0.4,
    "network_share": 0.5,
    "host_link_share": 0.5,
    "nvlink_latency_s": 0.4,
    "network_latency_s": 0.4,
    "network_step_s": 0.5,
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

_ROUNDS = 20
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

    _check(measured)
    names = list(priors)
    center, precision = _prior(start, priors)
    figures = _figures_by_constants(plans, meters)
    point = _most_probable(
        np.log(measured),
        lambda at: np.log(figures(_with(start, names, at))),
        center,
        precision,
        sigma=sigma,
        weights=weights,
    )
    return _with(start, names, point)


def calibrate_with_shares(
    plans: Plans,
    measured_s: Values,
    start: Constants,
    kinds: NDArray[np.int_],
    *,
    share_sigma: float,
    sigma: float = 0.05,
    weights: Values | None = None,
) -> tuple[Constants, Values]:
    """Constants of the step time, and with them the share that each kind of device holds.

    Args:
        plans: What ran, with the `sustained_share` of a device whose kind holds all.
        measured_s: Seconds per optimizer step.
        start: What is known before.
        kinds: The kind of each row's device, from 0; a negative one holds all, by definition.
        share_sigma: How far the logarithm of a kind's share may be from 0, known before.
        sigma: Noise of log(measured / predicted) that remains.
        weights: One per row; alike by default.

    Raises:
        JobError: There is not one positive measurement per candidate.
    """
    _check(measured_s)
    names = list(TIME_PRIORS)
    center, precision = _prior(start, TIME_PRIORS)
    n, n_kinds = len(names), int(kinds.max(initial=-1)) + 1
    is_of = kinds[:, None] == np.arange(n_kinds)

    seconds = _times_by_constants(plans)

    def log_step_s(at: Values) -> Values:
        return np.log(
            seconds(_with(start, names, at[:n]), plans.sustained_share * np.exp(is_of @ at[n:]))
        )

    def share_slopes(at: Values, now: Values) -> Values:
        # A row has one share, so all of them move at once.
        moved = at.copy()
        moved[n:] += _STEP
        slope: Values = ((log_step_s(moved) - now) / _STEP)[:, None] * is_of
        return slope

    point = _most_probable(
        np.log(measured_s),
        log_step_s,
        np.concatenate([center, np.zeros(n_kinds)]),
        np.concatenate([precision, np.full(n_kinds, share_sigma**-2)]),
        sigma=sigma,
        weights=weights,
        further_slopes=share_slopes,
    )
    return _with(start, names, point[:n]), np.exp(point[n:])


def _check(measured: Values) -> None:
    if len(measured) == 0 or not np.all(np.isfinite(measured) & (measured > 0)):
        raise JobError(
            f"calibration: {len(measured)} measurements, not all above zero",
            "give one positive measurement per candidate",
        )


def _prior(start: Constants, priors: Mapping[str, float]) -> tuple[Values, Values]:
    """Center and precision of the coordinates of the fit."""
    return _point(start, list(priors)), np.array([sigma**-2 for sigma in priors.values()])


def _point(constants: Constants, names: Sequence[str]) -> Values:
    """Constants as coordinates of the fit."""
    return np.array([_to_line(name, getattr(constants, name)) for name in names])


def _times_by_constants(plans: Plans) -> Callable[[Constants, Column | None], Values]:
    """Step times in seconds as a function of the constants: what they do not move is kept.

    Its second argument stands for the column `sustained_share`; None: as the plans have it.
    Samples of a published row have one length.
    """
    sizes = sizes_of(plans)

    def seconds(c: Constants, sustained_share: Column | None = None) -> Values:
        shares = {} if sustained_share is None else {"sustained_share": sustained_share}
        times = step_times(dataclasses.replace(plans, **shares), sizes, c)
        return np.broadcast_to(times.step_s, len(plans))

    return seconds


def _figures_by_constants(
    plans: Plans, meters: Sequence[str] | None
) -> Callable[[Constants], Values]:
    """Step times, or with `meters` what each meter shows."""
    if meters is None:
        seconds = _times_by_constants(plans)
        return lambda c: seconds(c, None)
    sizes = sizes_of(plans)
    activations = activations_of(plans, sizes)
    rows = {meter: np.flatnonzero(np.equal(meters, meter)) for meter in dict.fromkeys(meters)}

    def read(c: Constants) -> Values:
        # Of the stage that a published figure is of.
        memory = memory_of(plans, sizes, activations, c, watched=True)
        found = np.empty(len(plans))
        for meter, which in rows.items():
            found[which] = np.broadcast_to(getattr(memory, meter), len(plans))[which]
        return found

    return read


def _most_probable(
    target: Values,
    predicted: Callable[[Values], Values],
    center: Values,
    precision: Values,
    *,
    sigma: float,
    weights: Values | None,
    further_slopes: Callable[[Values, Values], Values] | None = None,
) -> Values:
    """The point that fits best, by logarithms of figures; the search begins at the center.

    `further_slopes` gives the slopes of the last coordinates; those of the others are finite
    differences of `predicted`.
    """
    row_weights = np.ones_like(target) if weights is None else weights
    point = center.copy()

    def cost(at: Values, r: Values) -> float:
        size = np.abs(r)
        loss = np.where(size < _L1_FLOOR, r * r, 2 * _L1_FLOOR * size - _L1_FLOOR**2)
        distance = float(np.sum(precision * (at - center) ** 2))
        return float(np.sum(row_weights * loss)) / sigma**2 + distance

    now = predicted(point)
    best = cost(point, target - now)
    for _ in range(_ROUNDS):
        further = further_slopes(point, now) if further_slopes else np.empty((len(now), 0))
        slopes = np.empty((len(now), len(point) - further.shape[1]))
        for column in range(slopes.shape[1]):
            moved = point.copy()
            moved[column] += _STEP
            slopes[:, column] = (predicted(moved) - now) / _STEP
        slopes = np.concatenate([slopes, further], axis=1)
        r = target - now
        robust = row_weights * _L1_FLOOR / np.maximum(np.abs(r), _L1_FLOOR) / sigma**2
        normal = slopes.T @ (robust[:, None] * slopes) + np.diag(precision)
        pull = slopes.T @ (robust * r) - precision * (point - center)
        move = np.linalg.solve(normal, pull)
        gained = False
        for shorter in (1.0, 0.5, 0.25, 0.1):
            candidate = point + shorter * move
            found = predicted(candidate)
            at = cost(candidate, target - found)
            if at < best:
                gained = best - at > 1e-4 * best
                point, now, best = candidate, found, at
                break
        if not gained:
            break
    return point


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
