"""Rows of a plan: candidates that are one choice, in the order in which an expert tries them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost import Prediction
from autotune.cost.plans import Plans

Indices = NDArray[np.intp]
Reals = NDArray[np.float64]
Truth = NDArray[np.bool_]

MIN_FIT = 0.9
"""A candidate that fits less surely than this is ranked behind all that do."""
CHANCES = (0.75, 0.5)
"""Probabilities to fit of which a plan names the fastest, below `MIN_FIT`: no cliff is there."""
PROBABLE = CHANCES[-1]
"""A candidate that fits at least as likely as not probably fits."""
_LIKELY = 2 / 3
"""Probability to fit from which on a plain layout beats one that needs the host or is exotic: it
fits twice as likely as not."""
LONG_TOKENS = 16_384
"""Tokens of a sequence from which on ranks share one for a reason; below, it is exotic."""
TIE = 1.03
"""Step times within this factor are a tie, which the plainer layout wins: the model cannot tell
them apart."""
SAME = 1.01
"""Variants of a choice whose step times differ by less are one row."""
_SETTING = 0.1
"""Share of a degree that a setting counts as which others do without."""
_EXOTIC = 8
"""Degrees that one exotic one counts as: more than a plain layout can have."""
_UNPROVEN = 100
"""The same of one that hardly anybody runs or whose price nobody knows, more than several exotic
ones count as."""
_LEAST_LEAD = 1.3
"""How many times as fast as all others what is less certain has to be to come first."""
_WORTH = 1.2
"""How many times as fast what fits less surely has to be, beside what its chance costs."""
_SHARED = ("cp", "ulysses")
"""Columns of degrees in which ranks share a sequence."""
_DEGREES = {"tp": ("tp",), "pp": ("pp",), "sequence": _SHARED, "ep": ("ep",)}
"""Kind of parallelism -> columns of its degrees."""
_OF_A_CHOICE = (
    *("tp", "pp", "cp", "ulysses", "ep", "zero_stage", "micro_batch"),
    *("recompute", "recompute_every", "optimizer_tier", "param_tier", "optimizer_host_share"),
    *("fused_kernels", "matmul_flops", "grad_bytes", "optimizer_bytes"),
)
"""Columns whose values make another choice, however close the step times are: the layout, what is
sharded, recomputed and offloaded, whether the model is compiled, and the precision of products, of
gradients and of the optimizer's states."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Choices:
    """Candidates of a lattice as the rows of a plan."""

    order: Indices
    """Candidates, best first."""
    firsts: Indices
    """The best candidate of each row, rows in the order of the plan."""
    row_of: Indices
    """By candidate: its row, from 0."""
    setbacks: Indices
    """By candidate: how far it comes behind others that fit as surely, as of `ranked`."""
    min_fit: float
    """Probability to fit from which on a candidate surely does."""

    def rank(self, index: int) -> int:
        """Rank of a candidate's row, from 1."""
        return int(self.row_of[index]) + 1

    def like_first(self, indices: Indices) -> Truth:
        """Which candidates have the setbacks of the first row."""
        found: Truth = self.setbacks[indices] == self.setbacks[self.firsts[0]]
        return found

    def variants(self, rank: int) -> Indices:
        """The other candidates of a row, best first."""
        inside: Indices = self.order[self.row_of[self.order] == rank - 1]
        others: Indices = inside[inside != self.firsts[rank - 1]]
        return others

    def __len__(self) -> int:
        return len(self.firsts)


def choices_of(found: Prediction, setbacks: Indices, *, min_fit: float, splits: bool) -> Choices:
    """The rows of a plan, by what is predicted of the candidates.

    Args:
        found: What is predicted.
        setbacks: As of `ranked`.
        min_fit: Probability to fit from which on a candidate surely does.
        splits: Whether a row is of candidates within 1% of its first; else of all that are one
            choice, such as those that differ in the size of buckets, however slow some are.
    """
    order = ordered(found, setbacks, min_fit=min_fit)
    kinds = _kinds(found, setbacks, min_fit=min_fit, splits=splits)
    _, at, which = np.unique(kinds[order], return_index=True, return_inverse=True)
    place = np.empty(len(at), np.intp)
    place[np.argsort(at)] = np.arange(len(at))
    row_of = np.empty(len(order), np.intp)
    row_of[order] = place[which]
    firsts = order[np.sort(at)]
    return Choices(order=order, firsts=firsts, row_of=row_of, setbacks=setbacks, min_fit=min_fit)


def ordered(found: Prediction, setbacks: Indices | None = None, *, min_fit: float) -> Indices:
    """The candidates by what is predicted of them, as of `ranked`, best first."""
    return ranked(
        found.step_time_s,
        found.peak_memory_bytes,
        found.fit_probability,
        min_fit=min_fit,
        strain=strain_of(found.plans),
        setbacks=setbacks,
    )


def ranked(
    times_s: Reals,
    peaks_bytes: Reals,
    fit: Reals,
    *,
    min_fit: float,
    strain: Reals | None = None,
    setbacks: Indices | None = None,
) -> Indices:
    """Indices of candidates: those that surely fit, fastest first, then all others.

    Of those that surely fit, the ones with fewer `setbacks` come first. Of those that probably
    fit, a chance that is less by a tenth has to be worth a fifth of the time. The rest come surest
    first, and of those that surely do not fit, the smallest. Of times within 3% the candidate with
    less `strain` comes first, as of `strain_of`, and of equals the surer, by twentieths; an exotic
    one comes behind all others, unless it is faster by more, and an unproven one unless it is 1.3
    times as fast.
    """
    sure = np.flatnonzero(fit >= min_fit)
    probable = np.flatnonzero((fit < min_fit) & (fit >= PROBABLE))
    rest = np.flatnonzero(fit < min(min_fit, PROBABLE))
    strain = np.zeros(len(fit)) if strain is None else strain
    levels = np.zeros(len(fit), np.intp) if setbacks is None else setbacks
    surest = [sure[levels[sure] == level] for level in np.unique(levels[sure])]
    return np.concatenate(
        [
            *(rows[_fastest_first(times_s[rows], strain[rows], fit[rows])] for rows in surest),
            probable[_fastest_first(times_s[probable] / fit[probable] ** 2, strain[probable])],
            rest[np.lexsort((times_s[rest], peaks_bytes[rest], -fit[rest]))],
        ]
    )


def _fastest_first(times_s: Reals, strain: Reals, fit: Reals | float = 1.0) -> Indices:
    is_exotic, is_unproven = strain >= _EXOTIC, strain >= _UNPROVEN
    least_s = times_s[is_exotic == is_exotic.all()].min(initial=np.inf)  # of plain ones, if any
    ties = np.floor(np.log(times_s / least_s) / np.log(TIE))
    behind = np.zeros(len(times_s), np.intp)
    for level, (group, lead) in enumerate(((is_exotic, TIE), (is_unproven, _LEAST_LEAD)), 1):
        behind[group & (times_s > times_s[~group].min(initial=np.inf) / lead)] = level
    risk = np.broadcast_to(-np.floor(20 * np.asarray(fit)), len(times_s))
    return np.lexsort((times_s, risk, strain, ties, behind))


def strain_of(plans: Plans) -> Reals:
    """How far each candidate is from a plain layout: the fewer degrees above 1, the plainer.

    What is offloaded counts as a degree, and a pipeline as a second one, for its stages and chunks
    have to be laid out. So does what is asked of the training script: a model that compiles, CUDA
    graphs, the loss in chunks, recomputation of every K-th layer. Stages of several sizes and an
    allocator decide among equals.
    """
    strain = np.zeros(len(plans))
    for name in ("tp", "pp", "pp", *_SHARED, "ep", "recompute_every"):
        strain += _column(plans, name) > 1
    for name in ("param_tier", "launch_free", "loss_chunk_tokens"):
        strain += _column(plans, name) > 0
    strain += _column(plans, "optimizer_tier") + _column(plans, "optimizer_host_share") > 0
    strain += _SETTING * (_column(plans, "most_stage_layers") > 0)
    strain += _SETTING * (_column(plans, "fragments") < 1)
    for weight, is_so in _doubts(plans).values():
        strain += weight * is_so
    return strain


def _doubts(plans: Plans) -> dict[str, tuple[float, Truth]]:
    """Why candidates are exotic or unproven -> the degrees that counts as, and for which."""
    cp, tp, ulysses, host = (_column(plans, n) for n in ("cp", "tp", "ulysses", "param_tier"))
    is_short = np.asarray(plans.seq_len) < LONG_TOKENS
    is_open = _column(plans, "optimizer_tier") + plans.host_link_measured == 0
    sequence = "ranks share a sequence of less than 16k tokens"
    brought = f"{sequence} by Ulysses, which the training script has to bring"
    unprobed = "parameters alone are on the host, over a link that was not probed"
    return {
        sequence: (_EXOTIC, (cp > 1) & is_short),
        "tensor parallelism leaves the linked devices": (_EXOTIC, tp > plans.nvlink_domain),
        brought: (_UNPROVEN, (ulysses > 1) & is_short),
        unprobed: (_UNPROVEN, (host > 0) & is_open),
    }


def reasons_behind(plans: Plans) -> dict[str, float]:
    """Why the first comes behind plainer ones -> how many times as fast it has to be to lead."""
    return {
        words: _LEAST_LEAD if weight >= _UNPROVEN else TIE
        for words, (weight, is_so) in _doubts(plans).items()
        if np.ravel(is_so)[0]
    }


def is_exotic(plans: Plans) -> Truth:
    """Which candidates come behind all others that are about as fast, as of `ranked`."""
    return np.asarray(strain_of(plans) >= _EXOTIC)


def best_probable(found: Prediction, choices: Choices, *, min_fit: float) -> dict[int, float]:
    """Candidates that only probably fit, and are faster than all that do more surely.

    They have the setbacks of the first row.

    Returns:
        The fastest row of those that fit with each of the probabilities of `CHANCES` at least,
        with that probability. Empty: none is faster by more than a tie.
    """
    firsts = choices.firsts[choices.like_first(choices.firsts)]
    fit, times_s = found.fit_probability[firsts], found.step_time_s[firsts]
    best: dict[int, float] = {}
    is_surer = fit >= min_fit
    if not is_surer.any():
        is_surer = np.arange(len(firsts)) == 0
    for chance in CHANCES:
        rows = (fit >= chance) & (fit < min_fit)
        rows &= times_s * TIE < times_s[is_surer].min()
        if rows.any():
            at = firsts[rows]
            best[int(at[ordered(found.take(at), min_fit=0.0)[0]])] = chance
            is_surer |= rows
    return best


def worthwhile_fit(found: Prediction, choices: Choices, baseline: Prediction | None) -> float:
    """Probability to fit that is asked of the first row where the user asks for none.

    It is that of the choices, or a smaller one at which the fastest is so much faster that the
    chance is worth it, as of `ranked`, and some of the prediction's error too. An unproven row is
    no reason. Beside a first row that needs the host or is exotic, a plainer one that likely fits
    is worth any gain. Where a baseline that probably fits is faster than the first row, it is that
    of the row that is no slower than it and most worth its chance.
    """
    fit, times_s = found.fit_probability, found.step_time_s
    first, wanted = int(choices.firsts[0]), choices.min_fit
    if fit[first] < wanted:
        return wanted
    for index, chance in best_probable(found, choices, min_fit=wanted).items():
        gain = times_s[first] / times_s[index]
        is_proven = strain_of(found.plans.take(np.array([index])))[0] < _UNPROVEN
        if is_proven and gain * (fit[index] / fit[first]) ** 2 >= _WORTH:
            first, wanted = index, chance
    strain, uses_host = strain_of(found.plans), _uses_host(found.plans)
    rows = choices.firsts[choices.like_first(choices.firsts)]
    if uses_host[first] or strain[first] >= _EXOTIC:
        is_plainer = ~uses_host & (strain < min(strain[first], _EXOTIC))
        is_worth = is_plainer & (fit >= _LIKELY) & (times_s * TIE < times_s[first])
        first = next((int(row) for row in rows if is_worth[row]), first)
        wanted = min(wanted, np.floor(20 * fit[first]) / 20)  # down to a twentieth
    if baseline is not None and baseline.step_time_s[0] * TIE < times_s[first]:
        is_worth = (times_s <= baseline.step_time_s[0]) & (fit >= PROBABLE) & (strain < _EXOTIC)
        as_fast = rows[is_worth[rows] & (baseline.fit_probability[0] >= PROBABLE)]
        if len(as_fast):
            chance = fit[as_fast[np.argmax(fit[as_fast] ** 2 / times_s[as_fast])]]
            wanted = min(wanted, np.floor(20 * chance) / 20)
    return float(wanted)


def _uses_host(plans: Plans) -> Truth:
    tiers = ("optimizer_tier", "param_tier", "optimizer_host_share")
    return np.asarray(np.logical_or.reduce([_column(plans, name) > 0 for name in tiers]))


def best_of_kinds(found: Prediction, choices: Choices) -> dict[str, int]:
    """Kind in words -> its best candidate: of each ZeRO stage, and of each kind of layout.

    Kinds of which nothing probably fits have none, nor has a sequence that is shared below 16k
    tokens, nor a stage where one rank has all.
    """
    firsts = choices.firsts[found.fit_probability[choices.firsts] >= PROBABLE]
    plans = found.plans.take(firsts)
    stages, best = _column(plans, "zero_stage"), dict[str, int]()
    for stage in np.unique(stages) if _shares(plans).any() else ():
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


def _kinds(found: Prediction, setbacks: Indices, *, min_fit: float, splits: bool) -> Indices:
    """A number per candidate, equal for those that are one row.

    A variant that fits less surely is a row of its own only where it is faster than those that do
    more surely: nobody would try it otherwise.
    """
    fit, times_s = found.fit_probability, found.step_time_s
    keys = setbacks * np.sqrt(2.0)
    # Factors by chance: no two combinations have the same sum.
    factors = np.random.default_rng(0).random(len(_OF_A_CHOICE))
    for name, factor in zip(_OF_A_CHOICE, factors, strict=True):
        column = _zero_stage(found.plans) if name == "zero_stage" else _column(found.plans, name)
        keys += column * (factor / max(1.0, float(column.max())))
    _, kinds = np.unique(keys, return_inverse=True)
    chances = [chance for chance in (min_fit, *CHANCES) if chance <= min_fit]
    n_reached = np.add.reduce([(fit >= chance).astype(np.intp) for chance in chances])
    sureness = n_reached.copy()
    """How many of the chances a candidate reaches; that of a surer variant where it joins one."""
    for level in range(len(chances), 0, -1):
        is_level = sureness == level
        best_s = np.full(int(kinds.max()) + 1, np.inf)
        np.minimum.at(best_s, kinds[is_level], times_s[is_level])
        is_beaten = best_s[kinds] < (SAME if splits else TIE) * times_s
        sureness[(sureness < level) & is_beaten] = level
    _, kinds = np.unique(kinds * (len(chances) + 1) + sureness, return_inverse=True)
    return _split(kinds, times_s, n_reached == sureness) if splits else kinds


def _split(kinds: Indices, times_s: Reals, may_be_first: Truth) -> Indices:
    """Each kind cut where the step time is more than 1% above that of the part's first."""
    parts = np.zeros(len(kinds), np.intp)
    left, n_parts = np.arange(len(kinds)), 0
    while len(left):
        least_s = np.full(int(kinds.max()) + 1, np.inf)
        firsts = left[may_be_first[left]]
        np.minimum.at(least_s, kinds[firsts], times_s[firsts])
        is_in = times_s[left] < SAME * least_s[kinds[left]]
        parts[left[is_in]] = n_parts
        left, n_parts = left[~is_in], n_parts + 1
    return kinds * n_parts + parts


def _zero_stage(plans: Plans) -> Reals:
    """The ZeRO stage of each candidate; 0 where one rank has all and offloads nothing."""
    return np.where(_shares(plans) | _uses_host(plans), _column(plans, "zero_stage"), 0.0)


def _shares(plans: Plans) -> Truth:
    """Which candidates have ranks that a ZeRO stage shards states over."""
    return np.asarray(_column(plans, "dp") * _column(plans, "cp") * _column(plans, "ulysses") > 1)


def _column(plans: Plans, name: str) -> Reals:
    return np.broadcast_to(np.asarray(getattr(plans, name), np.float64), len(plans))
