"""How far the cost model is off, on training runs that others have published.

Every figure is of one source and kind of model first, and averaged over these then, so that one
long table does not decide. With `--leave-one-out` every source is predicted by constants and
intervals that it had no part in: what a reader may expect of runs of their own. Without, by the
shipped ones, which were fitted on most of these rows. "Inside" is the share of rows that lie in
their 90% interval: the one that `plan`, `explain` and `estimate` print, and after some trials the
one that a search prints.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fit_constants import LeftOut, fit, fitted_sources, leave_one_out
from fit_errors import LEARNED_BY, Misses, accelerators_of, learn, misses_of, misses_to_learn
from numpy.typing import NDArray
from published_runs import ALIKE, Runs, read_runs

from autotune.cost.constants import Constants, load_constants
from autotune.cost.errors import Errors, LogSpread, Margin, load_errors
from autotune.cost.forecast import forecast_of
from autotune.cost.predict import Prediction, predict
from autotune.cost.residual import (
    MEMORY_PRIOR,
    MEMORY_VARIATION,
    TIME_PRIOR,
    VARIATION,
    Features,
    ResidualPrior,
    Seen,
    calibrate,
    reach_of,
)
from autotune.planning.choices import MIN_FIT

Values = NDArray[np.float64]
Flags = NDArray[np.bool_]
Line = dict[str, Any]

KINDS = ("dense", "experts")
"""Kinds of models, whose errors are told apart."""
_TRIALS = (0, 1, 5)
"""Trials after which a search's belief is asked."""
_DRAWS = 8
_MOST_LEARNED = 100
"""Rows of a draw that a search's belief is asked about."""
_IMPOSSIBLE = 0.05
"""A candidate that fits with less probability is called impossible."""
_SAFE = 0.8
"""A candidate that fits with more probability is called safe; `MIN_FIT` is what plans ask for."""
_NOISE = float(np.hypot(VARIATION, TIME_PRIOR.noise.median))
"""Deviation of log step time between runs of one configuration, as a search has it."""
_LEAST_GROUP = 4
"""Different configurations that a group needs for a rank correlation."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Runs with what was said of them."""

    runs: Runs
    misses: Misses
    step_time: LogSpread
    """How far step times may be from what was predicted."""
    peak_memory: LogSpread
    """How far peaks may be, each by its meter."""
    fits: Values
    step_time_s: Values
    predicted: Sequence[tuple[Prediction, NDArray[np.intp]]]
    """Predictions, each with the rows that it is of."""
    groups: NDArray[np.str_]
    """What was left out with each row beside its source; empty: nothing was."""

    def features(self, *, of_memory: bool) -> Features:
        """The runs as a search's belief sees them."""
        parts = []
        for said, _ in self.predicted:
            known = forecast_of(said)
            parts.append(known.peak_features if of_memory else known.features)
        order = np.argsort(np.concatenate([rows for _, rows in self.predicted]))
        joined = Features(
            shares=np.concatenate([part.shares for part in parts]),
            position=np.concatenate([part.position for part in parts]),
        )
        return joined.take(order)


def by_shipped(runs: Runs, constants: Constants) -> Judged:
    """What the shipped constants and intervals say."""
    said = predict(runs.plans, constants)
    left_out = LeftOut(predicted=(said,), rows=(np.arange(len(runs.rows)),))
    return _judged(runs, left_out, lambda rows: load_errors())


def by_others(runs: Runs, by: str) -> Judged:
    """What constants and intervals say of each group of runs that it had no part in.

    Intervals are learned as they are shipped, from misses of `LEARNED_BY`.
    """
    of_all = fit(runs.part(np.isin(runs.sources, fitted_sources())))
    left_out = {each: leave_one_out(runs, of_all, each) for each in {*LEARNED_BY, by}}
    misses = misses_to_learn(*(misses_of(runs, left_out[each]) for each in LEARNED_BY))

    def errors(rows: NDArray[np.intp]) -> Errors:
        others = ~np.isin(np.arange(len(runs.rows)), rows)
        return learn(misses, others, accelerators_of(runs, others))

    judged = _judged(runs, left_out[by], errors)
    return judged if by == "source" else replace(judged, groups=runs.alike(by))


def _judged(runs: Runs, left_out: LeftOut, errors: Callable[[NDArray[np.intp]], Errors]) -> Judged:
    misses = misses_of(runs, left_out)
    low, high, least, most, fits = np.zeros((5, len(runs.rows)))
    peaks = left_out.column(lambda said: said.peak_memory_bytes)
    for here in left_out.rows:
        shown: Margin = errors(here).reach_of(misses.basis)
        low[here], high[here] = shown.step_time.low[here], shown.step_time.high[here]
        least[here], most[here] = shown.peak_memory.low[here], shown.peak_memory.high[here]
        fits[here] = shown.peak_memory.below(runs.plans.memory_bytes, peaks)[here]
    return Judged(
        runs=runs,
        misses=misses,
        step_time=LogSpread(low=low, high=high),
        peak_memory=LogSpread(low=least, high=most),
        fits=fits,
        step_time_s=left_out.column(lambda said: said.step_time_s),
        predicted=tuple(zip(left_out.predicted, left_out.rows, strict=True)),
        groups=np.full(len(runs.rows), ""),
    )


def measure(judged: Judged, *, seed: int) -> Line:
    """Everything that is reported, as JSON can hold it."""
    runs = judged.runs
    lines = {
        "time": list(_lines(judged, of_memory=False, seed=seed)),
        "memory": list(_lines(judged, of_memory=True, seed=seed)),
        "rank": list(_ranks(judged)),
    }
    return {
        "rows": len(runs.rows),
        "not_predicted": runs.n_unpredicted,
        **lines,
        "mean": {
            figure: {kind: _mean([one for one in some if kind in one["of"]]) for kind in kinds}
            for figure, some in lines.items()
            for kinds in [sorted({word for one in some for word in one["of"]})]
        },
        "fit": _fit_calls(judged),
    }


def _lines(judged: Judged, *, of_memory: bool, seed: int) -> Iterator[Line]:
    """One per source and kind of model; of memory, per meter too."""
    runs, misses = judged.runs, judged.misses
    missed = np.where(runs.status == "ok", misses.peaks if of_memory else misses.times, np.nan)
    spread = judged.peak_memory if of_memory else judged.step_time
    inside = spread.holds(missed)
    features = judged.features(of_memory=of_memory)
    for source, kind, words, here in _parts(judged, by_meter=of_memory):
        rows = here & np.isfinite(missed)
        if not rows.any():
            continue
        yield {
            "source": source,
            "kind": kind,
            "of": words,
            "split": "fitted" if source in fitted_sources() else "held_out",
            "rows": int(rows.sum()),
            "median_error": float(np.median(np.abs(np.expm1(-missed[rows])))),
            "bias": float(np.median(-missed[rows])),
            "inside": float(inside[rows].mean()),
            "width": float(np.exp(np.median((spread.low + spread.high)[rows]) / 2)),
            **_after_trials(runs, rows, features, missed, of_memory=of_memory, seed=seed),
        }


def _parts(judged: Judged, *, by_meter: bool) -> Iterator[tuple[str, str, list[str], Flags]]:
    """Source, kind in words, words to average over, and the rows."""
    runs, is_mixture = judged.runs, judged.misses.basis.is_mixture
    pairs = sorted({*zip(runs.sources.tolist(), judged.groups.tolist(), strict=True)})
    for (flag, model), (source, group) in itertools.product(enumerate(KINDS), pairs):
        here = (runs.sources == source) & (judged.groups == group) & (is_mixture == bool(flag))
        words = [model, *([group] if group else [])]
        words += [] if source in fitted_sources() else ["in no fit"]
        if not by_meter:
            yield source, " ".join(words[: 1 + bool(group)]), words, here
            continue
        for meter in np.unique(runs.meters[here]).tolist():
            word = str(meter).removesuffix("_bytes").replace("peak", "total")
            yield (
                source,
                f"{model} {word} {group}".strip(),
                [*words, word],
                here & (runs.meters == meter),
            )


def _after_trials(
    runs: Runs, rows: Flags, features: Features, missed: Values, *, of_memory: bool, seed: int
) -> Line:
    """Errors and coverage that a search's belief leaves after a few trials.

    Trials are drawn among the rows of one device, several times, and the others are asked about.
    """
    prior, noise = (MEMORY_PRIOR, MEMORY_VARIATION) if of_memory else (TIME_PRIOR, _NOISE)
    found: dict[int, list[tuple[float, float, float]]] = {n: [] for n in _TRIALS}
    for device in np.unique(runs.devices[rows]):
        those = np.flatnonzero(rows & (runs.devices == device))
        for n in _TRIALS:
            if len(those) >= max(_TRIALS) + 2:
                found[n] += _believed(features.take(those), missed[those], prior, noise, n, seed)
    names = ("median_error", "inside", "width")
    return {
        f"after_{n}": dict(zip(names, np.mean(draws, axis=0).tolist(), strict=True))
        for n, draws in found.items()
        if draws
    }


def _believed(
    features: Features, missed: Values, prior: ResidualPrior, noise: float, n: int, seed: int
) -> Iterator[tuple[float, float, float]]:
    """Median error, share inside and factor to the end of the interval, of each draw of trials."""
    for draw in range(_DRAWS):
        order = np.random.default_rng((seed, draw)).permutation(len(missed))
        known, rest = order[:n], order[n:][:_MOST_LEARNED]
        believed = calibrate(
            features.take(rest), Seen.here(features.take(known), missed[known]), prior
        )
        left = missed[rest] - believed.mean
        reach = reach_of(believed.deviation, noise, n_measured=n)
        yield (
            float(np.median(np.abs(np.expm1(-left)))),
            float(np.mean(np.abs(left) <= reach)),
            float(np.exp(np.median(reach))),
        )


def _ranks(judged: Judged) -> Iterator[Line]:
    """Within each group that a search would choose from, averaged over those of a source.

    The correlation is Spearman's. Regret is how many times as long as the fastest run the first
    pick takes, and the best of the first three.
    """
    runs, is_mixture = judged.runs, judged.misses.basis.is_mixture
    ran = (runs.status == "ok") & np.isfinite(runs.times_s)
    by_source: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    part, predicted, is_mixture = runs.part(ran), judged.step_time_s[ran], is_mixture[ran]
    for members in part.groups():
        # The same configuration measured several times is one.
        unique, which = np.unique(np.round(predicted[members], 9), return_inverse=True)
        if len(unique) < _LEAST_GROUP:
            continue
        means = np.bincount(which, weights=part.times_s[members]) / np.bincount(which)
        correlation = float(np.corrcoef(np.arange(len(unique)), _rank(means))[0, 1])
        regrets = (means[0] / means.min(), means[:3].min() / means.min())
        key = (str(part.sources[members[0]]), KINDS[int(is_mixture[members[0]])])
        by_source.setdefault(key, []).append((correlation, *map(float, regrets)))
    for (source, kind), values in sorted(by_source.items()):
        means = np.mean(values, axis=0).tolist()
        yield {
            "source": source,
            "kind": kind,
            "of": [kind],
            "groups": len(values),
            **dict(zip(("spearman", "regret_first", "regret_of_three"), means, strict=True)),
            "median_regret_first": float(np.median([value[1] for value in values])),
        }


def _rank(values: Values) -> Values:
    return np.argsort(np.argsort(values)).astype(np.float64)


def _fit_calls(judged: Judged) -> Line:
    """What P(fits) says of runs that ran, and of those that ran out of memory."""
    runs = judged.runs
    ran, oom = runs.status == "ok", runs.status == "OOM"
    calls = {
        "ran_called_impossible": ran & (judged.fits < _IMPOSSIBLE),
        "oom_called_safe": oom & (judged.fits > _SAFE),
        "oom_promised": oom & (judged.fits >= MIN_FIT),
    }
    found: Line = {"ran": int(ran.sum()), "oom": int(oom.sum())}
    for name, which in calls.items():
        found[name] = int(which.sum())
        found[f"{name}_ids"] = [runs.rows[i]["id"] for i in np.flatnonzero(which)]
    return found | {"ran_not_promised": int((ran & (judged.fits < MIN_FIT)).sum())}


_MEANS = (
    "median_error",
    "inside",
    "width",
    "spearman",
    "regret_first",
    "median_regret_first",
    "regret_of_three",
)


def _mean(lines: list[Line]) -> Line:
    """Averages of some lines; after trials, of those that have them."""
    found: Line = {"lines": len(lines)}
    for name in _MEANS:
        if values := [line[name] for line in lines if name in line]:
            found[name] = float(np.mean(values))
    for after in (f"after_{n}" for n in _TRIALS):
        if some := [line[after] for line in lines if after in line]:
            found[after] = _mean(some)
    return found


def show(found: Line) -> None:
    """Print it as text."""
    print(f"{found['rows']} rows, and {found['not_predicted']} that cannot be predicted")
    for figure, title in (("time", "step time"), ("memory", "peak memory")):
        print(f"{title}: rows, median error, share inside the interval and how far it reaches")
        for line in found[figure]:
            print(f"  {line['source']:40} {line['kind']:17} {line['rows']:4} {_figures(line)}")
        for kind, mean in found["mean"][figure].items():
            print(f"  mean over {mean['lines']:2} sources: {kind:36} {_figures(mean)}")
    print("rank within a model, its devices and its batch: groups, Spearman's correlation, regret")
    for line in found["rank"]:
        print(f"  {line['source']:40} {line['kind']:17} {line['groups']:4} {_regrets(line)}")
    for kind, mean in found["mean"]["rank"].items():
        print(f"  mean over {mean['lines']:2} sources: {kind:36} {_regrets(mean)}")
    calls = found["fit"]
    print(
        f"fits: {calls['ran_called_impossible']} of {calls['ran']} runs that ran are called "
        f"impossible {calls['ran_called_impossible_ids']}; {calls['oom_called_safe']} of "
        f"{calls['oom']} that ran out of memory safe {calls['oom_called_safe_ids']}; a plan "
        f"promises {calls['oom_promised']} of these {calls['oom_promised_ids']}, and not "
        f"{calls['ran_not_promised']} of those that ran"
    )


def show_markdown(found: Line) -> None:
    """Print the tables of `docs/cost.md`."""
    for figure, title in (("time", "step time"), ("memory", "peak memory")):
        print(f"| source | kind | runs | {title} | inside | after 1 trial | after 5 |")
        print("|---|---|---|---|---|---|---|")
        for line in found[figure]:
            star = "" if line["split"] == "fitted" else " *"
            first = f"| {line['source'].split('/')[-1]}{star} | {line['kind']} | {line['rows']} |"
            print(f"{first} {_cells(line)} |")
        for kind, mean in found["mean"][figure].items():
            print(f"| mean of {mean['lines']} sources | {kind} | | {_cells(mean)} |")
        print()
    regrets = "regret of the first | in the median group | of the best of three"
    print(f"| source | kind | groups | correlation | {regrets} |")
    print("|---|---|---|---|---|---|---|")
    for line in found["rank"]:
        regrets = " | ".join(
            f"{line[name]:.2f}"
            for name in ("regret_first", "median_regret_first", "regret_of_three")
        )
        name, kind = line["source"].split("/")[-1], line["kind"]
        print(f"| {name} | {kind} | {line['groups']} | {line['spearman']:.2f} | {regrets} |")


def _cells(line: Line) -> str:
    cells = [f"{line['median_error']:.1%} | {line['inside']:.0%} of x{line['width']:.2f}"]
    for after in (line.get(f"after_{n}") for n in _TRIALS[1:]):
        cells.append(
            f"{after['median_error']:.1%}, {after['inside']:.0%} of x{after['width']:.2f}"
            if after
            else ""
        )
    return " | ".join(cells)


def _figures(line: Line) -> str:
    text = f"{line['median_error']:6.1%} {line['inside']:4.0%} x{line['width']:.2f}"
    for n in _TRIALS:
        if after := line.get(f"after_{n}"):
            text += f" | {n} trials {after['median_error']:6.1%} {after['inside']:4.0%} "
            text += f"x{after['width']:.2f}"
    return text


def _regrets(line: Line) -> str:
    return (
        f"{line['spearman']:5.2f}  first {line['regret_first']:.3f} "
        f"(median group {line['median_regret_first']:.3f})  best of three "
        f"{line['regret_of_three']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--constants", type=Path, help="other constants than the shipped ones")
    parser.add_argument("--seed", type=int, default=0, help="which rows a search has tried")
    parser.add_argument(
        "--leave-one-out",
        nargs="?",
        const="source",
        choices=ALIKE,
        help="fit anew for every source that is left out, or for all runs of a kind of chip, an "
        "engine or a family of models; about a minute",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--markdown", action="store_true", help="the tables of docs/cost.md")
    options = parser.parse_args()
    runs = read_runs(options.published, with_open=True)
    constants = load_constants(options.constants) if options.constants else load_constants()
    judged = (
        by_others(runs, options.leave_one_out)
        if options.leave_one_out
        else by_shipped(runs, constants)
    )
    found = measure(judged, seed=options.seed)
    if options.json:
        print(json.dumps(found))
    else:
        show_markdown(found) if options.markdown else show(found)


if __name__ == "__main__":
    main()
