"""Rows of a plan: candidates that are one choice, in the order in which an expert tries them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Prediction
from autotune.cost.plans import Plans

Indices = NDArray[np.intp]

MIN_FIT = 0.9
"""A candidate that fits less surely than this is ranked behind all that do."""
PROBABLE = 0.5
"""A candidate that fits at least as likely as not probably fits."""
LONG_TOKENS = 16_384
"""Tokens of a sequence from which on ranks share one for a reason; below, it is exotic."""
_TIE = 1.03
"""Step times within this factor are a tie, which the plainer layout wins: the model cannot tell
them apart."""
SAME = 1.01
"""Variants of a choice whose step times differ by less are one row."""
_EXOTIC = 8
"""Degrees that one exotic one counts as: more than a plain layout can have."""
_SHARED = ("cp", "ulysses")
"""Columns of degrees in which ranks share a sequence."""
_DEGREES = {"tp": ("tp",), "pp": ("pp",), "sequence": _SHARED, "ep": ("ep",)}
"""Kind of parallelism -> columns of its degrees."""
_OF_A_CHOICE = (
    *("tp", "pp", "cp", "ulysses", "ep", "zero_stage", "micro_batch"),
    *("recompute", "recompute_every", "optimizer_tier", "param_tier"),
    *("fused_kernels", "matmul_flops"),
)
"""Columns whose values make another choice, however close the step times are: the layout, what is
sharded, recomputed and offloaded, whether the model is compiled, and the precision of products."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """Candidates of a lattice as the rows of a plan."""

    order: Indices
    """Candidates, best first."""
    firsts: Indices
    """The best candidate of each row, rows in the order of the plan."""
    row_of: Indices
    """By candidate: its row, from 0."""

    def rank(self, index: int) -> int:
        """Rank of a candidate's row, from 1."""
        return int(self.row_of[index]) + 1

    def variants(self, rank: int) -> Indices:
        """The other candidates of a row, best first."""
        inside: Indices = self.order[self.row_of[self.order] == rank - 1]
        return inside[inside != self.firsts[rank - 1]]

    def __len__(self) -> int:
        return len(self.firsts)


def choices_of(found: Prediction, *, min_fit: float, splits: bool) -> Choices:
    """The rows of a plan, by what is predicted of the candidates.

    Args:
        found: What is predicted.
        min_fit: Probability to fit from which on a candidate surely does.
        splits: Whether a row is of candidates within 1% of its first; else of all that are one
            choice, such as those that differ in the size of buckets, however slow some are.
    """
    order = _ordered(found, min_fit=min_fit)
    kinds = _kinds(found, min_fit=min_fit, splits=splits)
    _, at, which = np.unique(kinds[order], return_index=True, return_inverse=True)
    place = np.empty(len(at), np.intp)
    place[np.argsort(at)] = np.arange(len(at))
    row_of = np.empty(len(order), np.intp)
    row_of[order] = place[which]
    firsts = order[np.sort(at)]
    return Choices(order=order, firsts=_representatives(found, firsts, row_of), row_of=row_of)


def first_of(found: Prediction, *, min_fit: float) -> int:
    """The candidate of the first row alone."""
    return int(_ordered(found, min_fit=min_fit)[0])


def ranked(
    times_s: NDArray[np.float64],
    peaks_bytes: NDArray[np.float64],
    fit: NDArray[np.float64],
    *,
    min_fit: float,
    strain: NDArray[np.float64] | None = None,
) -> Indices:
    """Indices of candidates, fastest first; after them those that may not fit, surest first.

    Of times within 3% the candidate with less `strain` comes first, as of `strain_of`; an exotic
    one comes behind all others, unless it is faster by more. Of candidates that surely do not fit,
    the smallest come first.
    """
    fits = fit >= min_fit
    sure, unsure = np.flatnonzero(fits), np.flatnonzero(~fits)
    order = unsure[np.lexsort((times_s[unsure], peaks_bytes[unsure], -fit[unsure]))]
    keys = [times_s[sure]]
    if strain is not None and len(sure):
        is_exotic = strain[sure] >= _EXOTIC
        least_s = keys[0][~is_exotic if not is_exotic.all() else slice(None)].min()
        ties = np.floor(np.log(keys[0] / least_s) / np.log(_TIE))
        keys += [strain[sure], ties, is_exotic & (keys[0] > least_s / _TIE)]
    return np.concatenate([sure[np.lexsort(keys)], order])


def strain_of(plans: Plans) -> NDArray[np.float64]:
    """How far each candidate is from a plain layout: the fewer degrees above 1, the plainer.

    What is offloaded counts as a degree. Exotic are sequences that are shared below 16k tokens,
    and tensor parallelism that leaves the linked devices.
    """
    n = len(plans)
    strain = np.zeros(n)
    for columns in _DEGREES.values():
        for name in columns:
            strain += _column(plans, name) > 1
    for name in _SHARED:
        strain += _EXOTIC * ((_column(plans, name) > 1) & (plans.seq_len < LONG_TOKENS))
    strain += _EXOTIC * (_column(plans, "tp") > plans.nvlink_domain)
    strain += _column(plans, "optimizer_tier") > 0
    return strain + (_column(plans, "param_tier") > 0)


def best_probable(found: Prediction, choices: Choices, *, min_fit: float) -> int | None:
    """The best candidate that only probably fits, by rows; it is faster than all that surely do.

    None: none is faster by more than a tie.
    """
    firsts = choices.firsts
    fit, times_s = found.fit_probability[firsts], found.step_time_s[firsts]
    is_sure = fit >= min_fit
    fastest_s = times_s[is_sure].min() if is_sure.any() else times_s[0]
    rows = firsts[(fit >= PROBABLE) & ~is_sure & (times_s * _TIE < fastest_s)]
    if not len(rows):
        return None
    return int(rows[first_of(found.take(rows), min_fit=0.0)])


def best_of_kinds(found: Prediction, choices: Choices) -> dict[str, int]:
    """Kind in words -> its best candidate: of each ZeRO stage, and of each kind of layout.

    Kinds of which nothing probably fits have none, nor has a sequence that is shared below 16k
    tokens.
    """
    firsts = choices.firsts[found.fit_probability[choices.firsts] >= PROBABLE]
    plans = found.plans.take(firsts)
    stages = _column(plans, "zero_stage")
    best: dict[str, int] = {}
    for stage in np.unique(stages):
        best[f"ZeRO stage {int(stage)}"] = int(firsts[np.argmax(stages == stage)])
    is_split = np.array(
        [
            np.logical_or.reduce([_column(plans, name) > 1 for name in columns])
            for columns in _DEGREES.values()
        ]
    )
    is_exotic = is_split[list(_DEGREES).index("sequence")] & (plans.seq_len < LONG_TOKENS)
    for kind in np.unique(is_split[:, ~is_exotic], axis=1).T:
        names = [name for name, is_in in zip(_DEGREES, kind, strict=True) if is_in]
        at = np.argmax((is_split == kind[:, None]).all(axis=0) & ~is_exotic)
        best[" and ".join(names) or "data parallel alone"] = int(firsts[at])
    return best


def _ordered(found: Prediction, *, min_fit: float) -> Indices:
    return ranked(
        found.step_time_s,
        found.peak_memory_bytes,
        found.fit_probability,
        min_fit=min_fit,
        strain=strain_of(found.plans),
    )


def _kinds(found: Prediction, *, min_fit: float, splits: bool) -> NDArray[np.intp]:
    """A number per candidate, equal for those that are one row."""
    fit = found.fit_probability
    keys = np.where(fit >= min_fit, 2.0, np.where(fit >= PROBABLE, 1.0, 0.0))
    # Factors by chance: no two combinations have the same sum.
    factors = np.random.default_rng(0).random(len(_OF_A_CHOICE))
    for name, factor in zip(_OF_A_CHOICE, factors, strict=True):
        column = _column(found.plans, name)
        keys += column * (factor / max(1.0, float(column.max())))
    _, kinds = np.unique(keys, return_inverse=True)
    return _split(kinds, found.step_time_s) if splits else kinds


def _split(kinds: NDArray[np.intp], times_s: NDArray[np.float64]) -> NDArray[np.intp]:
    """Each kind cut where the step time is more than 1% above that of the part's first."""
    parts = np.zeros(len(kinds), np.intp)
    left, n_parts = np.arange(len(kinds)), 0
    while len(left):
        least_s = np.full(int(kinds.max()) + 1, np.inf)
        np.minimum.at(least_s, kinds[left], times_s[left])
        is_in = times_s[left] < SAME * least_s[kinds[left]]
        parts[left[is_in]] = n_parts
        left, n_parts = left[~is_in], n_parts + 1
    return kinds * n_parts + parts


def _representatives(found: Prediction, firsts: Indices, row_of: Indices) -> Indices:
    """By row, the candidate that stands for it: its first.

    Of a row that only probably fits it is the surest of those within 1% of the fastest.
    """
    fit, times_s = found.fit_probability, found.step_time_s
    least_s = np.full(len(firsts), np.inf)
    np.minimum.at(least_s, row_of, times_s)
    fast = np.flatnonzero(times_s < SAME * least_s[row_of])
    surest = fast[np.lexsort((times_s[fast], -fit[fast], row_of[fast]))]
    _, at = np.unique(row_of[surest], return_index=True)
    is_probable = (fit[firsts] >= PROBABLE) & (fit[firsts] < MIN_FIT)
    return np.where(is_probable, surest[at], firsts)


def _column(plans: Plans, name: str) -> NDArray[np.float64]:
    return np.broadcast_to(np.asarray(getattr(plans, name), np.float64), len(plans))
