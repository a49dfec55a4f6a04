"""How far the cost model is off, on training runs that others have published.

Errors are taken per source and device first and then averaged over them, so that one long table
does not decide. `benchmarks/sources.json` says which sources the constants were fitted on; with
`--leave-one-out` every source is predicted by constants and intervals that it had no part in.
Coverage is the share of rows that lie within the interval that `plan`, `explain` and `estimate`
print, and after five rows within the one that a search prints.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from fit_constants import beyond, leave_one_out, peaks_by_meter
from fit_errors import coverage, misses_of
from numpy.typing import NDArray
from published_runs import SPLIT, Runs, read_runs

from autotune.base.student_t import t_quantile
from autotune.cost.calibrate import calibrate_constants
from autotune.cost.constants import Constants, load_constants
from autotune.cost.errors import UPPER
from autotune.cost.forecast import forecast
from autotune.cost.predict import Prediction, predict
from autotune.cost.residual import (
    MEMORY_PRIOR,
    MEMORY_VARIATION,
    PRIOR_DEGREES,
    TIME_PRIOR,
    Features,
    ResidualPrior,
    Seen,
    calibrate,
)

Values = NDArray[np.float64]

KINDS = ("dense", "experts")
"""Kinds of models, whose errors are told apart."""
_CALIBRATION_ROWS = 5
_CALIBRATION_SIGMA = 0.03
_DRAWS = 8
_MOST_LEARNED = 100
"""Rows of a draw that a search's belief is asked about."""
_IMPOSSIBLE = 0.05
"""A candidate that fits with less probability is called impossible."""
_SAFE = 0.2
"""A candidate that does not fit with less probability than this is called safe."""
_NOISE = 0.03
"""Deviation of log step time between runs of one configuration, published with 1 to 5%."""
_LEAST_GROUP = 4
"""Different configurations that a group needs for a rank correlation."""
NEAR_PRIORS = {
    "matmul_share": 0.15,
    "memory_share": 0.2,
    "unfused_traffic": 0.2,
    "launch_s": 0.3,
    "micro_batch_s": 0.5,
    "step_s": 0.7,
    "nvlink_share": 0.3,
    "network_share": 0.5,
    "network_latency_s": 0.5,
    "overlap_share": 0.5,
    "scale_jitter": 0.5,
    "low_precision_share": 0.3,
    "attention_share": 0.2,
}
"""What a few rows of one source may move: how its software and its network differ."""


def errors(predicted: Values, measured: Values) -> Values:
    """|predicted / measured - 1|."""
    return np.abs(predicted / measured - 1.0)


def measure(runs: Runs, constants: Constants, *, seed: int) -> dict[str, Any]:
    """Everything that is reported, as JSON can hold it."""
    split = json.loads(SPLIT.read_text(encoding="utf-8"))
    predicted = predict(runs.plans, constants)
    ran = (runs.status == "ok") & np.isfinite(runs.times_s)
    lines = list(_time_lines(runs, predicted, ran, constants, seed=seed))
    for line in lines:
        line["split"] = "fitted" if line["source"] in split["fitted"] else "held_out"
    return {
        "rows": len(runs.rows),
        "not_predicted": runs.n_unpredicted,
        "time": lines,
        "time_mean_of_medians": {
            part: _summary([line for line in lines if line["split"] == part])
            for part in ("fitted", "held_out")
        },
        "time_all": _summary(lines),
        "rank": _ranks(runs.part(ran), predicted.step_time_s[ran]),
        "memory": _memory_lines(runs, predicted, constants, seed=seed),
        "fit": _fit_calls(runs, predicted),
    }


def _time_lines(
    runs: Runs, predicted: Prediction, ran: NDArray[np.bool_], constants: Constants, *, seed: int
) -> Iterable[dict[str, Any]]:
    """One per source, device and whether states are offloaded."""
    for source in np.unique(runs.sources):
        for device in np.unique(runs.devices[runs.sources == source]):
            for offloads in (False, True):
                mask = ran & (runs.sources == source) & (runs.devices == device)
                mask &= runs.offloads == offloads
                if not mask.any():
                    continue
                error = errors(predicted.step_time_s[mask], runs.times_s[mask])
                after = _calibrated_errors(runs.part(mask), constants, seed=seed)
                said = forecast(runs.plans.take(mask), constants)
                reach = runs.reach(predicted).step_time[mask]
                ratio = predicted.step_time_s[mask] / runs.times_s[mask]
                yield {
                    "source": str(source),
                    "device": str(device) + (" offload" if offloads else ""),
                    "rows": int(mask.sum()),
                    "bias": float(
                        np.median(np.log(predicted.step_time_s[mask] / runs.times_s[mask]))
                    ),
                    "median_error": float(np.median(error)),
                    "p90_error": float(np.quantile(error, 0.9)),
                    "calibrated_median_error": None if after is None else float(np.median(after)),
                    "calibrated_p90_error": (
                        None if after is None else float(np.quantile(after, 0.9))
                    ),
                    "coverage": float(np.mean(np.abs(np.log(ratio)) <= np.log(reach))),
                    **_learned(said.features, -np.log(ratio), TIME_PRIOR, _NOISE, seed=seed),
                }


def _calibrated_errors(runs: Runs, constants: Constants, *, seed: int) -> Values | None:
    """Of the rows that are left after five that calibrate; None where fewer than two are.

    Which five is drawn several times, and the errors of all draws count: one draw says little.
    """
    n = len(runs.rows)
    if n < _CALIBRATION_ROWS + 2:
        return None
    found = []
    for draw in range(_DRAWS):
        order = np.random.default_rng((seed, draw)).permutation(n)
        known, rest = order[:_CALIBRATION_ROWS], order[_CALIBRATION_ROWS:]
        fitted = calibrate_constants(
            runs.plans.take(known),
            runs.times_s[known],
            constants,
            sigma=_CALIBRATION_SIGMA,
            priors=NEAR_PRIORS,
        )
        after = predict(runs.plans.take(rest), fitted).step_time_s
        found.append(errors(after, runs.times_s[rest]))
    return np.concatenate(found)


def _learned(
    features: Features, misses: Values, prior: ResidualPrior, noise: float, *, seed: int
) -> dict[str, float | None]:
    """What a search says of the rows left after five that it ran: its belief about the errors.

    None where fewer than two rows are left.
    """
    n = len(misses)
    names = ("learned_median_error", "learned_coverage", "learned_width")
    if n < _CALIBRATION_ROWS + 2:
        return dict.fromkeys(names)
    far, inside, reaches = [], [], []
    quantile = t_quantile(UPPER, PRIOR_DEGREES + _CALIBRATION_ROWS)
    for draw in range(_DRAWS):
        order = np.random.default_rng((seed, draw)).permutation(n)
        known, rest = order[:_CALIBRATION_ROWS], order[_CALIBRATION_ROWS:][:_MOST_LEARNED]
        seen = Seen.here(features.take(known), misses[known])
        believed = calibrate(features.take(rest), seen, prior)
        reach = quantile * np.hypot(believed.deviation, noise)
        left = misses[rest] - believed.mean
        far.append(np.abs(np.expm1(-left)))
        inside.append(np.abs(left) <= reach)
        reaches.append(np.exp(reach))
    figures = (
        float(np.median(np.concatenate(far))),
        float(np.mean(np.concatenate(inside))),
        float(np.median(np.concatenate(reaches))),
    )
    return dict(zip(names, figures, strict=True))


def _ranks(runs: Runs, predicted: Values) -> dict[str, Any]:
    """Spearman's correlation within each group that a search would choose from, by source."""
    by_source: dict[str, list[float]] = {}
    for members in runs.groups():
        # The same configuration measured several times is one.
        unique, which = np.unique(np.round(predicted[members], 9), return_inverse=True)
        if len(unique) < _LEAST_GROUP:
            continue
        means = np.bincount(which, weights=runs.times_s[members]) / np.bincount(which)
        value = float(np.corrcoef(_rank(unique), _rank(means))[0, 1])
        by_source.setdefault(str(runs.sources[members[0]]), []).append(value)
    return {
        source: {
            "groups": len(values),
            "mean_spearman": float(np.mean(values)),
            "median_spearman": float(np.median(values)),
            "least_spearman": float(np.min(values)),
        }
        for source, values in sorted(by_source.items())
    }


def _rank(values: Values) -> Values:
    return np.argsort(np.argsort(values)).astype(np.float64)


def _memory_lines(
    runs: Runs, predicted: Prediction, constants: Constants, *, seed: int
) -> list[dict[str, Any]]:
    """One per source, status and meter: formula values apart from measured ones."""
    found = []
    known = np.isfinite(runs.peaks_bytes)
    for source in np.unique(runs.sources[known]):
        for status in ("ok", "ok_analytic"):
            for meter in np.unique(runs.meters[known]):
                mask = known & (runs.sources == source) & (runs.meters == meter)
                mask &= runs.status == status
                if not mask.any():
                    continue
                peaks = peaks_by_meter(runs, predicted)[mask]
                reach = runs.reach(predicted).peak_memory[mask]
                if status == "ok_analytic":
                    peaks = _analytic(predicted, mask)
                error = errors(peaks, runs.peaks_bytes[mask])
                misses = np.log(runs.peaks_bytes[mask] / peaks)
                # A formula says how it counts.
                spare = runs.spare(predicted)[mask] if status == "ok" else np.ones(len(peaks))
                beyond_said = beyond(runs.peaks_bytes[mask], peaks, spare)
                said = forecast(runs.plans.take(mask), constants)
                features = said.memory_features or said.features
                found.append(
                    {
                        "source": str(source),
                        "meter": "formula" if status == "ok_analytic" else str(meter),
                        "rows": int(mask.sum()),
                        "bias": float(np.median(np.log(peaks / runs.peaks_bytes[mask]))),
                        "median_error": float(np.median(error)),
                        "p90_error": float(np.quantile(error, 0.9)),
                        "coverage": float(np.mean(np.abs(beyond_said) <= np.log(reach))),
                        **_learned(features, misses, MEMORY_PRIOR, MEMORY_VARIATION, seed=seed),
                    }
                )
    return found


def _analytic(predicted: Prediction, mask: NDArray[np.bool_]) -> Values:
    """What formulas of papers count: states and activations."""
    m = predicted.memory
    parts = (m.params_bytes, m.grads_bytes, m.optimizer_bytes, m.activations_bytes, m.logits_bytes)
    return np.sum([np.asarray(part)[mask] for part in parts], axis=0)


def _fit_calls(runs: Runs, predicted: Prediction) -> dict[str, Any]:
    ran, oom = runs.status == "ok", runs.status == "OOM"
    fits = predicted.fit_probability
    impossible = ran & (fits < _IMPOSSIBLE)
    safe = oom & (1.0 - fits < _SAFE)
    return {
        "ran": int(ran.sum()),
        "ran_called_impossible": int(impossible.sum()),
        "ran_called_impossible_ids": [runs.rows[i]["id"] for i in np.flatnonzero(impossible)],
        "oom": int(oom.sum()),
        "oom_called_safe": int(safe.sum()),
        "oom_called_safe_ids": [runs.rows[i]["id"] for i in np.flatnonzero(safe)],
    }


def _summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Averages over sources and devices; those with offload are left out."""
    kept = [line for line in lines if not line["device"].endswith("offload")]
    after = [line["calibrated_median_error"] for line in kept]
    after = [value for value in after if value is not None]
    learned = [line for line in kept if line["learned_coverage"] is not None]
    return {
        "lines": len(kept),
        "coverage": _mean([line["coverage"] for line in lines]),
        "learned_median_error": _mean([line["learned_median_error"] for line in learned]),
        "learned_coverage": _mean([line["learned_coverage"] for line in learned]),
        "median_error": _mean([line["median_error"] for line in kept]),
        "calibrated_median_error": _mean(after),
    }


def _mean(values: list[float]) -> float | None:
    return float(np.mean(values)) if values else None


def measure_left_out(runs: Runs) -> dict[str, Any]:
    """Each source and kind by constants and intervals that the source had no part in."""
    left_out = leave_one_out(runs)
    misses = misses_of(runs, left_out)
    lines = []
    for source, kind in ((s, k) for k in KINDS for s in np.unique(runs.sources)):
        here = (runs.sources == source) & (misses.is_mixture == (kind == "experts"))
        times, peaks = misses.times[here], misses.peaks[here]
        if not (np.isfinite(times) | np.isfinite(peaks)).any():
            continue
        held = coverage(misses, here)
        ran = here & (runs.status == "ok") & np.isfinite(runs.times_s)
        ranks = _ranks(runs.part(ran), left_out.times_s[ran])
        lines.append(
            {
                "source": str(source),
                "kind": kind,
                "rows": int(np.isfinite(times).sum()),
                "median_error": _median_error(
                    left_out.times_s[here] / runs.times_s[here], np.isfinite(times)
                ),
                "coverage": held[0],
                "peaks": int(np.isfinite(peaks).sum()),
                "memory_median_error": _median_error(
                    left_out.peaks_bytes[here] / runs.peaks_bytes[here], np.isfinite(peaks)
                ),
                "memory_coverage": held[1],
                "rank": ranks.get(str(source)),
            }
        )
    return {
        "lines": lines,
        "mean": {
            kind: {
                name: _mean_of([line for line in lines if line["kind"] == kind], name)
                for name in _LEFT_OUT_FIGURES
            }
            for kind in KINDS
        },
    }


_LEFT_OUT_FIGURES = ("median_error", "coverage", "memory_median_error", "memory_coverage")


def _median_error(ratio: Values, known: NDArray[np.bool_]) -> float:
    return float(np.median(np.abs(ratio[known] - 1.0))) if known.any() else float("nan")


def _mean_of(lines: list[dict[str, Any]], name: str) -> float:
    return float(np.nanmean([line[name] for line in lines]))


def show_left_out(found: dict[str, Any]) -> None:
    print("each source left out: step time, and peak memory (rows, median error, coverage)")
    for line in found["lines"]:
        rank = line["rank"]
        print(
            f"  {line['source']:40} {line['kind']:7} {line['rows']:4} {line['median_error']:6.1%} "
            f"{line['coverage']:6.1%}   {line['peaks']:3} {line['memory_median_error']:6.1%} "
            f"{line['memory_coverage']:6.1%}"
            + (f"   rank {rank['mean_spearman']:.2f} of {rank['groups']}" if rank else "")
        )
    for kind, mean in found["mean"].items():
        print(
            f"  mean over sources, {kind}: {mean['median_error']:.1%}, coverage "
            f"{mean['coverage']:.1%}; memory {mean['memory_median_error']:.1%}, coverage "
            f"{mean['memory_coverage']:.1%}"
        )


def show(found: dict[str, Any]) -> None:
    print(f"{found['rows']} rows, and {found['not_predicted']} that cannot be predicted")
    print("step time: |predicted / measured - 1|, before and after calibration on five rows")
    for line in found["time"]:
        after = line["calibrated_median_error"]
        shown = ""
        if after is not None:
            p90 = line["calibrated_p90_error"]
            shown = f"  after {after:6.1%} p90 {p90:6.1%}{_in_a_search(line)}"
        print(
            f"  {line['split']:8} {line['source']:32} {line['device']:14} {line['rows']:4} rows  "
            f"median {line['median_error']:6.1%} p90 {line['p90_error']:6.1%} "
            f"bias {line['bias']:+.2f} inside {line['coverage']:4.0%}{shown}"
        )
    for part, summary in (*found["time_mean_of_medians"].items(), ("all", found["time_all"])):
        print(f"  {part}: {summary}")
    print("rank correlation within a model, its devices and its batch")
    for source, line in found["rank"].items():
        print(f"  {source:32} {line}")
    print("peak memory")
    for line in found["memory"]:
        print(
            f"  {line['source']:32} {line['meter']:16} {line['rows']:4} rows  median "
            f"{line['median_error']:6.1%} p90 {line['p90_error']:6.1%} bias {line['bias']:+.2f} "
            f"inside {line['coverage']:4.0%}{_in_a_search(line)}"
        )
    print(f"memory calls: {found['fit']}")


def _in_a_search(line: dict[str, Any]) -> str:
    if line["learned_coverage"] is None:
        return ""
    return (
        f", in a search {line['learned_median_error']:6.1%} inside "
        f"{line['learned_coverage']:4.0%} of x{line['learned_width']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--published", type=Path, required=True, help="folder of the tables")
    parser.add_argument("--constants", type=Path, help="other constants than the shipped ones")
    parser.add_argument("--seed", type=int, default=0, help="which rows calibrate")
    parser.add_argument(
        "--leave-one-out",
        action="store_true",
        help="fit anew for every source that is left out; takes minutes",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    options = parser.parse_args()
    constants = load_constants(options.constants) if options.constants else load_constants()
    runs = read_runs(options.published)
    if options.leave_one_out:
        left_out = measure_left_out(runs)
        print(json.dumps(left_out)) if options.json else show_left_out(left_out)
        return
    found = measure(runs, constants, seed=options.seed)
    print(json.dumps(found)) if options.json else show(found)


if __name__ == "__main__":
    main()
