"""Learn how far off the cost model is on sources that it has not seen, and write it.

Each source that `sources.json` lists as fitted is left out in turn, and then each generation of
chips: the constants are fitted on the others and predict it. Sources that are listed as held out
are predicted by the fit on all that are fitted, and teach as well. The interval around a
prediction then holds LEVEL of the rows of a new source, on average over sources: hierarchical
conformal prediction, whose guarantee asks only that sources are exchangeable. Source: Lee, Barber
and Willett, Distribution-free inference with hierarchical data (arXiv:2306.06342), section 3.
`autotune/cost/errors.yaml` is written.

With `--constants` the constants are fitted and written first, as `fit_constants.py` does: the one
command after a change of the model. It takes about a minute of one core.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import fit_constants
import numpy as np
import yaml
from fit_constants import LeftOut, fit, fitted_sources, leave_one_out
from numpy.typing import NDArray
from published_runs import Runs, read_runs

from autotune.base.student_t import t_quantile
from autotune.cost.errors import (
    END,
    LEVEL,
    METERS,
    MODELS,
    SHIPPED,
    UPPER,
    Ends,
    Errors,
    ForecastBasis,
    RunKinds,
    Widths,
    basis_of,
)

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]

LEARNED_BY = ("source", "chip")
"""What is left out for intervals to be learned, one at a time."""
_ENOUGH_SOURCES = 5
"""Sources that make a kind; where fewer are of it, it counts as the next wider one."""
_ENOUGH_RUNS = 5
"""Runs of a framework on an accelerator that make both known: a handful says little."""
_LEAST = 0.03
"""Least distance to an end: a published figure is no better."""
_MOST = 1.0
"""Larger misses count as so large where it is learned what widens intervals."""
_MOST_WIDER = 3.0
_MOST_SKEW = 1.5
"""Ends are at most so many times as far on one side as on the other."""
_TIME_PARTS = ("experts", "doubt", "small_layers", "new_framework", "new_accelerator")
_MEMORY_PARTS = ("experts", "small_peak", "new_framework")
"""What may widen either: a chip that nobody measured changes how long kernels take, not what they
hold."""
_MOST_PEAKS = 0.97
"""Most of the peaks seen that an interval holds: without, that of ten sources has to hold 99%, so
nearly the worst of all, and peaks decide what stands first in a plan."""


@dataclass(frozen=True, kw_only=True)
class Misses:
    """Runs that were left out: log(measured / predicted), NaN where nothing was measured."""

    rows: NDArray[np.intp]
    """Which runs these are."""
    sources: NDArray[np.str_]
    basis: ForecastBasis
    meters: NDArray[np.str_]
    times: Values
    peaks: Values


def misses_of(runs: Runs, left_out: LeftOut) -> Misses:
    """How far the runs are from what was predicted of them.

    Of one that ended out of memory although it was predicted to fit, that is known at least.
    Formulas of papers are no runs, and step times of tests so small that their source says the
    host sets their pace say nothing of training.
    """
    ran = runs.status == "ok"
    times = np.log(runs.times_s / left_out.column(lambda said: said.step_time_s))
    by_meter = {m: left_out.column(lambda said, m=m: getattr(said.memory, m)) for m in METERS}
    # A run that ended out of memory wanted more than there is, by the meter of the driver.
    ended = (runs.status == "OOM") & (by_meter[METERS[-1]] < runs.plans.memory_bytes)
    meters = np.where(ended, METERS[-1], runs.meters)
    measured = np.where(ended, runs.plans.memory_bytes, runs.peaks_bytes)
    peaks = np.select([meters == meter for meter in METERS], list(by_meter.values()))
    return Misses(
        rows=np.arange(len(runs.rows)),
        sources=runs.sources,
        basis=_basis(runs, left_out),
        meters=meters,
        times=np.where(ran & ~runs.host_bound, times, np.nan),
        peaks=np.where(ran | ended, np.log(measured / peaks), np.nan),
    )


def misses_to_learn(*left_out: Misses) -> Misses:
    """Misses of runs that were left out in several ways, together.

    Those of sources alone have hardly a chip that no other source has; with those of chips, what
    nobody measured is learned from all runs.
    """
    n = sum(len(misses.rows) for misses in left_out)
    return Misses(**_joined([vars(misses) for misses in left_out], np.arange(n)))


def _basis(runs: Runs, left_out: LeftOut) -> ForecastBasis:
    """What the predictions rest on: what is known of each source is from the others."""
    parts = []
    for said, rows in zip(left_out.predicted, left_out.rows, strict=True):
        here = np.zeros(len(runs.rows), bool)
        here[rows] = True
        others = Errors(
            sources=0,
            step_time=_NONE,
            peak_memory=_NONE,
            accelerators=accelerators_of(runs, ~here),
        )
        parts.append(basis_of(said, runs.part(here).facts(others)))
    order = np.argsort(np.concatenate(left_out.rows))
    found: ForecastBasis = _joined(parts, order)
    return found


def _joined(parts: Sequence[Any], order: NDArray[np.intp]) -> Any:
    """Parts of rows together, in an order: arrays, and those in mappings and tuples."""
    first = parts[0]
    if isinstance(first, ForecastBasis):
        return ForecastBasis(**_joined([vars(part) for part in parts], order))
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts], order) for name in first}
    if isinstance(first, tuple):
        return tuple(_joined(each, order) for each in zip(*parts, strict=True))
    return np.concatenate(parts)[order]


def accelerators_of(runs: Runs, which: Flags) -> dict[str, list[str]]:
    """Framework -> accelerators that it ran often on."""
    ran = (
        which & (runs.status == "ok") & (np.isfinite(runs.times_s) | np.isfinite(runs.peaks_bytes))
    )
    ran = ran & ~runs.host_bound & (runs.sources == runs.repositories)
    accelerators = np.array([accelerator.name for accelerator in runs.accelerators])
    found = {}
    for name in np.unique(runs.frameworks[ran]):
        its = accelerators[(runs.frameworks == name) & ran]
        names, counts = np.unique(its, return_counts=True)
        if often := names[counts >= _ENOUGH_RUNS].tolist():
            found[str(name)] = often
    return found


def learn(misses: Misses, which: Flags, accelerators: dict[str, list[str]]) -> Errors:
    """Intervals from the misses of some runs: `which` has an element for each run there is."""
    basis, which = misses.basis, which[misses.rows]
    times = _learned(misses, which, misses.times, "time", basis.time_kinds(), _TIME_PARTS)
    return Errors(
        sources=_count(misses.sources[which]),
        step_time=times,
        peak_memory=_learned(
            misses, which, misses.peaks, "memory", basis.memory_kinds(), _MEMORY_PARTS
        ),
        accelerators=accelerators,
    )


def _learned(
    misses: Misses,
    which: Flags,
    missed: Values,
    figure: str,
    kinds: RunKinds,
    names: tuple[str, ...],
) -> Widths:
    basis = misses.basis
    rows = which & np.isfinite(missed)
    # Dense models and mixtures of one source weigh as two.
    models = np.where(basis.is_mixture, " experts", "")
    sources, missed = np.char.add(misses.sources, models)[rows], missed[rows]
    is_time = figure == "time"
    low, high = basis.open_time if is_time else basis.open_memory
    slower = np.log(basis.slower)[rows] if is_time else 0.0
    beyond = _beyond(missed, low[rows], high[rows], slower)
    parts = {name: basis.parts[name][rows] for name in names}
    wider = _wider(np.minimum(np.abs(beyond), _MOST), parts, sources)
    scaled = beyond / Widths(kinds={}, wider=wider).scale(parts)
    most = 1.0 if is_time else _MOST_PEAKS
    found = {"all": _ends(scaled, sources, most)}
    each = np.array(kinds.names)[kinds.which][rows]
    prefixes = {" ".join(k.split()[:n]) for k in kinds.names for n in range(1, len(k.split()) + 1)}
    for prefix in sorted(prefixes):
        here = np.array([f"{kind} ".startswith(f"{prefix} ") for kind in each], bool)
        wider_kind = found[Widths(kinds=found, wider=wider).nearest(prefix)]
        if is_time and _count(sources[here]) < _ENOUGH_SOURCES and prefix in MODELS:
            found[prefix] = _of_few(wider_kind, _count(sources[here]))
        elif _count(sources[here]) >= _ENOUGH_SOURCES:
            ends = _blend(_ends(scaled[here], sources[here], most), wider_kind)
            known = found.get(prefix.replace("unknown", "known"), ends)
            found[prefix] = _no_narrower(ends, known)
    learned = Widths(kinds=found, wider=wider)
    as_known = replace(
        basis,
        is_known=np.ones(len(which), bool),
        parts={**basis.parts, "new_framework": np.zeros(len(which))},
    )
    kinds = as_known.time_kinds() if is_time else as_known.memory_kinds()
    below, above = (reached[rows] for reached in learned.ends(kinds, as_known))
    needed = _of_frameworks(np.maximum(beyond / above, -beyond / below), basis.frameworks[rows])
    most_wider = 1.0 + wider.get("new_framework", 0.0)
    own = {name: round(min(size, most_wider), 3) for name, size in needed.items()}
    return learned.model_copy(update={"frameworks": own})


def _of_frameworks(sizes: Values, frameworks: NDArray[np.str_]) -> dict[str, float]:
    """How many times as wide as of a known framework the runs of each need: only where more.

    `sizes` are misses over the distance to the end on their side.
    """
    found = {}
    for name in np.unique(frameworks).tolist():
        own = sizes[frameworks == name]
        if len(own) >= _ENOUGH_RUNS and (needed := float(np.quantile(own, LEVEL))) > 1.0:
            found[name] = round(needed, 3)
    return found


def _blend(own: Ends, wider: Ends) -> Ends:
    """Ends of a kind: halfway to the next wider kind's where it has too few sources for LEVEL."""
    if own.sources * (1 - LEVEL) >= LEVEL:
        return own
    return Ends(
        low=round((own.low + wider.low) / 2, 3),
        high=round((own.high + wider.high) / 2, 3),
        sources=own.sources,
    )


def _of_few(wider: Ends, sources: int) -> Ends:
    """Ends of models of which hardly a source has any: what few have in common may be chance.

    Those of all models, by the quantile of Student's t of so many sources over the normal one.
    """
    least = END * _MOST_WIDER
    times = min(least, t_quantile(UPPER, sources - 1) if sources > 1 else least) / END
    low, high = round(wider.low * times, 3), round(wider.high * times, 3)
    return Ends(low=low, high=high, sources=sources)


def _no_narrower(unknown: Ends, known: Ends) -> Ends:
    """What nobody measured is no surer than what somebody did."""
    return unknown.model_copy(
        update={"low": max(unknown.low, known.low), "high": max(unknown.high, known.high)}
    )


def _beyond(missed: Values, low: Values, high: Values, slower: Values | float) -> Values:
    """Misses beyond what is open: what the learned part of an interval has to reach."""
    up = np.maximum(missed - slower, 0.0)
    down = np.maximum(-missed, 0.0)
    up, down = (np.sqrt(np.maximum(x**2 - o**2, 0.0)) for x, o in ((up, high), (down, low)))
    found: Values = up - down
    return found


def _wider(sizes: Values, parts: dict[str, Values], sources: NDArray[np.str_]) -> dict[str, float]:
    """How much wider intervals are where a part holds: least squares of the sizes of misses.

    Every source weighs alike, and no share is below zero: the best of all subsets of the parts.
    """
    root = np.sqrt(_weights(sources))
    names = list(parts)
    best, found = np.inf, dict.fromkeys(names, 0.0)
    for n in range(len(names) + 1):
        for kept in combinations(names, n):
            columns = np.stack([np.ones(len(sizes)), *(parts[name] for name in kept)], axis=1)
            some, *_ = np.linalg.lstsq(columns * root[:, None], sizes * root, rcond=None)
            left = float(np.sum((root * (sizes - columns @ some)) ** 2))
            if (some > 0).all() and left < best:
                shares = np.minimum(some[1:] / some[0], _MOST_WIDER).round(3).tolist()
                best, found = (
                    left,
                    {**dict.fromkeys(names, 0.0), **dict(zip(kept, shares, strict=True))},
                )
    return found


def _weights(sources: NDArray[np.str_]) -> Values:
    """Every source weighs alike."""
    _, which, counts = np.unique(sources, return_inverse=True, return_counts=True)
    found: Values = 1.0 / counts[which]
    return found


def _ends(missed: Values, sources: NDArray[np.str_], most: float) -> Ends:
    """Ends that hold LEVEL of a further source, as far from one another as the misses are."""
    order = np.argsort(missed)
    reached = np.cumsum(_weights(sources)[order])
    reached /= reached[-1]
    below, above = (
        float(missed[order][min(np.searchsorted(reached, at), len(order) - 1)])
        for at in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
    )
    low, high = max(_LEAST, -below), max(_LEAST, above)
    low, high = max(low, high / _MOST_SKEW), max(high, low / _MOST_SKEW)
    times = conformal(np.maximum(missed / high, -missed / low), sources, LEVEL, most)
    return Ends(
        low=round(max(_LEAST, low * times), 3),
        high=round(max(_LEAST, high * times), 3),
        sources=_count(sources),
    )


def _count(sources: NDArray[np.str_]) -> int:
    """Sources, of whatever models."""
    return len({source.partition(" ")[0] for source in sources.tolist()})


def conformal(misses: Values, sources: NDArray[np.str_], level: float, most: float = 1.0) -> float:
    """The size that holds `level` of a further source's misses, on average over such sources.

    Every source weighs 1 / (k + 1), shared among its rows; the rest stands for a source that is
    infinitely far off. Fewer sources than the level asks for promise nothing: then half of what
    the level leaves out is left out of the rows there are. No more than `most` of them are held.
    """
    names, which, counts = np.unique(sources, return_inverse=True, return_counts=True)
    k = len(names)
    wanted = level * (k + 1) / k
    wanted = min(most, wanted if wanted < 1 else (1 + level) / 2)
    order = np.argsort(misses)
    reached = np.cumsum(1.0 / (k * counts[which])[order]) >= wanted - 1e-9
    return float(misses[order][np.flatnonzero(reached)[0]])


_NONE = Widths(kinds={"all": Ends(low=0.0, high=0.0, sources=0)}, wider={})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--constants", action="store_true", help="write the constants first")
    parser.add_argument("--dry-run", action="store_true", help="print, write nothing")
    options = parser.parse_args()
    runs = read_runs(options.published, with_open=True)
    fitted = fit(runs.part(np.isin(runs.sources, fitted_sources())))
    if options.constants:
        fit_constants.show(fitted)
    left_out = (leave_one_out(runs, fitted, by) for by in LEARNED_BY)
    misses = misses_to_learn(*(misses_of(runs, each) for each in left_out))
    errors = learn(
        misses, np.ones(len(runs.rows), bool), accelerators_of(runs, runs.sources != "")
    )
    print(errors.model_dump_json(indent=2))
    if options.dry_run:
        return
    if options.constants:
        fit_constants.write(fitted)
    head = "# Written by benchmarks/fit_errors.py; autotune/cost/errors.py says what it is.\n"
    SHIPPED.write_text(head + yaml.safe_dump(errors.model_dump(), sort_keys=True))


if __name__ == "__main__":
    main()
