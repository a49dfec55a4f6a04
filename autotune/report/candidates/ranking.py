"""Predictions for a job's candidates: as text for a terminal, and as data."""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import groupby
from typing import Any

import numpy as np
from rich.console import Console

from autotune.cost import Prediction
from autotune.cost.errors import LEVEL, Margin
from autotune.devices.hardware import Environment, peak_flops_of
from autotune.engines.base import find_engine
from autotune.job.job import Job
from autotune.job.lengths import attended_tokens
from autotune.job.model_shape import train_flops_per_token
from autotune.planning.choices import MIN_FIT, PROBABLE
from autotune.planning.explained import Neighbour, faster_attention
from autotune.planning.from_baseline import changes_from
from autotune.planning.lattice import even_shares
from autotune.planning.learned import Learned
from autotune.planning.other_job import OtherJob
from autotune.planning.outlook import Outlook
from autotune.planning.ranking import LEAST_GAIN_ELSEWHERE, Ranking
from autotune.record.table import product_precision
from autotune.report.terminal.tables import print_told
from autotune.space.candidate import Candidate
from autotune.space.knob import knobs_of
from autotune.space.knobs import changing_knobs, describe_settings
from autotune.space.ranks import describe_ranks, machine_places
from autotune.space.rule import Violation

_PARTS = json.loads(resources.files("autotune.cost").joinpath("parts.json").read_bytes())
_TIME_PARTS: dict[str, str] = _PARTS["time"]
MEMORY_PARTS: dict[str, str] = _PARTS["memory"]
"""Field of `Memory` -> what people call it; together they are the peak."""
_OF_VARIANT = (
    *("described", "step_time_s", "fit_probability", "price_per_billion_tokens"),
    *("same_step_time_s", "same_fit_probability"),
)
"""What programs are given of a what-if, besides the change and the best there."""


def ranking_as_dict(ranking: Ranking, ranks: Sequence[int]) -> dict[str, Any]:
    """For programs: the fleet, and the candidates of some ranks (from 1).

    Every figure is predicted; the keys say so.
    """
    way = way_as_dict(ranking)
    return {
        "is_predicted": True,
        "device_name": ranking.outlook.environment.device_name,
        "world": ranking.outlook.job.world,
        "n_candidates": ranking.outlook.lattice.n_left,
        "n_grid": ranking.outlook.lattice.grid_size,
        "n_judged": ranking.outlook.lattice.n_judged,
        "n_choices": len(ranking.choices),
        "n_likely_to_fit": ranking.n_likely,
        "host_memory_bytes": ranking.outlook.host_limit_bytes,
        "no_files": ranking.outlook.engine.no_files(),
        "pred_level": LEVEL,
        "min_fit": ranking.min_fit,
        "is_min_fit_lowered": ranking.is_min_fit_lowered,
        **learned_as_dict(ranking.outlook.learned),
        "candidates": [_row(ranking, rank) for rank in ranks],
        "alternatives": [
            _row(ranking, rank) for rank in _alternatives(ranking) if rank not in ranks
        ],
        "fastest_probable": [
            {"rank": ranking.choices.rank(index), "least_fit_probability": chance}
            for index, chance in ranking.probable.items()
        ],
        "ways_to_fit": [_other_as_dict(ranking, way) for way in ranking.ways_to_fit],
        "spread_experts": [_other_as_dict(ranking, other) for other in ranking.spread_experts],
        "other_batch": ranking.other_batch and _other_as_dict(ranking, ranking.other_batch),
        "baseline": way if way and way["is_given"] else None,
        "from_baseline": way,
        "what_if": [
            {
                "change": variant.flags,
                "best": dict(variant.candidate.values),
                **{name: getattr(variant, name) for name in _OF_VARIANT},
            }
            for variant in ranking.variants
        ],
        "what_if_without_plan": dict(ranking.no_plans),
    }


def way_as_dict(ranking: Ranking) -> dict[str, Any] | None:
    """For programs: the baseline that a search would have, and what leads from it to the best.

    None: nothing that a search would begin with is forecast to fit.
    """
    baseline, first = ranking.baseline, int(ranking.choices.firsts[0])
    if baseline is None:
        return None
    candidate, expected = baseline.candidate, baseline.prediction
    figures = figures_as_dict(ranking.outlook, candidate, expected, 0, baseline.reach)
    before_s, before_bytes = figures["pred_step_time_s"], figures["pred_peak_memory_bytes"]
    gain = before_s / float(ranking.prediction.step_time_s[first])
    spread = ranking.reach.take(np.array([first])).step_time.over(baseline.reach.step_time)
    return {
        "candidate": dict(candidate.values),
        "described": baseline.described,
        "is_given": bool(baseline.path),
        "path": baseline.path,
        "not_carried": {name: list(pair) for name, pair in baseline.notes.items()},
        **figures,
        "pred_gain_of_best": gain,
        "pred_gain_of_best_low": gain * float(np.exp(-spread.high[0])),
        "pred_gain_of_best_high": gain * float(np.exp(spread.low[0])),
        "pred_gain_probability": float(spread.below(1.0, np.array([1 / gain]))[0]),
        "changes": [
            {
                "before": baseline.candidate.get(change.knob),
                **neighbour_as_dict(change),
                "pred_gain": before_s / change.step_time_s,
                "pred_memory_change_bytes": change.peak_memory_bytes - before_bytes,
            }
            for change in changes_from(baseline, ranking)
        ],
    }


def neighbour_as_dict(neighbour: Neighbour) -> dict[str, Any]:
    """For programs: one knob at another value, and what is forecast of that."""
    return {
        "knob": neighbour.knob,
        "value": neighbour.value,
        "taken_along": dict(neighbour.along),
        "violations": violations_as_dicts(neighbour.violations),
        "pred_step_time_s": neighbour.step_time_s,
        "pred_peak_memory_bytes": neighbour.peak_memory_bytes,
        "pred_fit_probability": neighbour.fit_probability,
        "changes_training": neighbour.changes_training,
    }


def violations_as_dicts(found: Sequence[Violation]) -> list[dict[str, str]]:
    """For programs: what rules say of a candidate."""
    return [
        {name: getattr(violation, name) for name in ("rule", "message", "fix")}
        for violation in found
    ]


def print_ranking(console: Console, ranking: Ranking, *, top: int) -> None:
    """Print the best candidates, and how other fleets compare."""
    print_told(console, "ranking", ranking_values(ranking, top=top))


def ranking_values(ranking: Ranking, *, top: int) -> dict[str, Any]:
    """What the templates of a plan tell of."""
    job, found = ranking.outlook.job, ranking.prediction
    engine = find_engine(job.engine)
    context, knobs = ranking.outlook.lattice.context, knobs_of(job.engine)
    base = {n: v for n, v in context.base.items() if n not in context.settled}
    is_above_host = found.host_memory_bytes > ranking.outlook.host_limit_bytes
    counts = ... if is_above_host.all() else ~is_above_host
    best, firsts = ranking.shown(top), ranking.choices.firsts
    more = [rank for rank in _alternatives(ranking) if rank not in best]
    return {
        "ranking": ranking,
        "job": job,
        "base": describe_settings({n: v for n, v in base.items() if v != knobs[n].default}, knobs),
        "best": [_shown(ranking, rank) for rank in best],
        "more": [_shown(ranking, rank) for rank in more],
        "first_s": float(found.step_time_s[int(ranking.order[0])]),
        "has_front": any(firsts[rank - 1] in ranking.on_front for rank in (*best, *more)),
        "likeliest": float(found.fit_probability.max()),
        "probable": PROBABLE,
        "least_fit": MIN_FIT,
        "n_above_host": int(is_above_host.sum()),
        "least_bytes": float(found.peak_memory_bytes[counts].min()),
        "allowed_bytes": job.memory_limit_bytes or ranking.outlook.environment.device_memory_bytes,
        "savings": [] if ranking.n_likely else list(engine.unused_savings(ranking.candidates)),
        "least_gain_elsewhere": LEAST_GAIN_ELSEWHERE,
        "even_shares": even_shares(ranking.outlook.lattice.context),
        "way": way_as_dict(ranking),
        **_of_first(ranking, [*best, *more]),
    }


def _shown(ranking: Ranking, rank: int) -> dict[str, Any]:
    """A row, and why it is there, and what varies in it."""
    index, times_s = int(ranking.choices.firsts[rank - 1]), ranking.prediction.step_time_s
    return {
        **_row(ranking, rank),
        "described": ranking.described(index),
        "chance": ranking.probable.get(index),
        "gain": times_s[int(ranking.choices.firsts[0])] / times_s[index],
        "trains_otherwise": index == ranking.otherwise,
    }


def forecast_values(
    outlook: Outlook, candidate: Candidate, prediction: Prediction, index: int, reach: Margin
) -> dict[str, Any]:
    """What `forecast_facts.j2` tells of a candidate, which is `index` in its prediction."""
    job = outlook.job
    seconds, sizes = parts_of(prediction, index)
    return {
        "job": job,
        "seconds": seconds,
        "sizes": sizes,
        "host_bytes": host_bytes(prediction, index),
        "host_limit_bytes": outlook.host_limit_bytes,
        "is_host_known": outlook.is_host_known,
        "lengths": job.lengths.describe(job.global_batch),
        "ends": reach.around(prediction, index),
        "figures": figures_as_dict(outlook, candidate, prediction, index, reach),
        "evidence": reach.evidence_at(index),
        "router": _of_router(reach, index),
        "length_doubt": outlook.length_doubt,
        "level": LEVEL,
        "learned": outlook.learned,
        "changes": changes_of(candidate, job),
        "ranks": rank_lines(candidate, outlook.environment),
    }


def changes_of(candidate: Candidate, job: Job) -> dict[str, str]:
    """Knob of a candidate with which something else is trained -> what that is."""
    knobs = knobs_of(job.engine)
    return {name: knobs[name].changes_training for name in changing_knobs(candidate, knobs)}


def _of_first(ranking: Ranking, shown: Sequence[int]) -> dict[str, Any]:
    """What `ranking.j2` tells, where rows of some ranks are shown."""
    index, otherwise = int(ranking.choices.firsts[0]), ranking.otherwise
    candidate, lattice = ranking.candidates[index], ranking.outlook.lattice
    return {
        **forecast_values(ranking.outlook, candidate, ranking.prediction, index, ranking.reach),
        "otherwise": None
        if otherwise is None
        else {
            "rank": ranking.choices.rank(otherwise),
            "step_time_s": float(ranking.prediction.step_time_s[otherwise]),
            "described": ranking.described(otherwise),
            "changes": changes_of(ranking.candidates[otherwise], ranking.outlook.job),
        },
        "needs": ranking.outlook.needs(candidate),
        "is_spread": bool(np.max(ranking.prediction.plans.ep) > 1),
        "refusals": [
            lattice.examples[rule][1].message for rule, _ in lattice.refused.most_common()
        ],
        "faster_attention": faster_attention(ranking.outlook, candidate),
        "asks": _asks(ranking, shown),
        "gathering": list(ranking.outlook.engine.spread_experts(candidate)),
        "search": _searched(ranking, shown),
    }


def _alternatives(ranking: Ranking) -> list[int]:
    """Ranks that stand in every plan: what probably fits, and the best of each kind."""
    alone = [*ranking.probable, *([] if ranking.otherwise is None else [ranking.otherwise])]
    ranks = [ranking.choices.rank(index) for index in alone]
    kinds = sorted(ranking.choices.rank(index) for index in ranking.best_of.values())
    return list(dict.fromkeys([*ranks, *kinds]))


def _searched(ranking: Ranking, shown: Sequence[int]) -> dict[str, Any] | None:
    """Shown rows that a search which is told no space tries, and what makes it try the others.

    None: it tries all of them.
    """
    if (search := ranking.outlook.default_search) is None:
        return None
    firsts = ranking.choices.firsts
    tried = [rank for rank in shown if search.has(ranking.candidates[int(firsts[rank - 1])])]
    if len(tried) == len(shown):
        return None
    return {"tries": search.words, "tried": _rows(tried)}


def _other_as_dict(ranking: Ranking, other: OtherJob) -> dict[str, Any]:
    first_s = float(ranking.prediction.step_time_s[int(ranking.order[0])])
    return {
        "flags": other.flags,
        "described": other.described,
        "fit_probability": other.fit_probability,
        "speedup": other.speedup(ranking.outlook.job, first_s),
    }


def rank_lines(candidate: Candidate, environment: Environment) -> list[str]:
    """Where the ranks of a candidate lie on machines of a kind, and how far its groups reach."""
    places = machine_places(candidate.world, environment.n_devices)
    return [line.removeprefix("ranks ") for line in describe_ranks(candidate, places)]


def host_bytes(prediction: Prediction, index: int) -> tuple[float, float] | None:
    """What offload takes of a host's memory, per rank and per node; None: nothing is there."""
    node_bytes = float(prediction.host_memory_bytes[index])
    rank_bytes = np.ravel(prediction.take(np.array([index])).memory.host_bytes)[0]
    return (float(rank_bytes), node_bytes) if node_bytes else None


def assumptions(outlook: Outlook, reach: Margin, index: int) -> list[str]:
    """What a forecast takes for granted, for programs."""
    evidence, router = reach.evidence_at(index), _of_router(reach, index)
    learned = f"intervals: {evidence}" if evidence else ""
    left_out = " and ".join(outlook.job.model.left_out)
    alone = f"the text model alone, without the {left_out} model" if left_out else ""
    return [*filter(None, [alone, outlook.length_doubt, router, learned])]


def _of_router(reach: Margin, index: int) -> str:
    """What a forecast takes the router to do; empty where nothing depends on it."""
    slower = reach.slower_at(index)
    if slower <= 1:
        return ""
    return (
        "give all experts as many tokens; where it does not, steps take up to "
        f"{slower:g} times as long, which the upper end of the interval allows for"
    )


def learned_as_dict(learned: Learned | None) -> dict[str, int]:
    """Trials that corrected predictions, for programs."""
    return {
        "n_trials_learned_from": 0 if learned is None else learned.n_trials,
        "n_trials_of_this_job": 0 if learned is None else learned.n_here,
    }


def parts_of(prediction: Prediction, index: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes of a candidate by part in words, largest first, without empty ones."""
    one = prediction.take(np.array([index]))
    seconds, peak_bytes = float(one.step_time_s[0]), float(one.peak_memory_bytes[0])
    return _parts(one.times, _TIME_PARTS, seconds), _parts(one.memory, MEMORY_PARTS, peak_bytes)


def _parts(side: object, names: Mapping[str, str], total: float) -> dict[str, float]:
    """The parts, which add up to the figure as trials have corrected it."""
    known = {words: float(getattr(side, name)[0]) for name, words in names.items()}
    scale = total / sum(known.values())
    largest_first = sorted(known, key=lambda words: -known[words])
    return {words: known[words] * scale for words in largest_first if known[words] > 0}


def figures_as_dict(
    outlook: Outlook, candidate: Candidate, prediction: Prediction, index: int, reach: Margin
) -> dict[str, Any]:
    """Predictions for one candidate, with the ends of their intervals, for programs."""
    job, step_time_s = outlook.job, float(prediction.step_time_s[index])
    attended = attended_tokens(job.lengths.as_spec(), job.global_batch, job.seq_len)
    flops = train_flops_per_token(job.model.shape, attended) * job.tokens_per_batch / job.world
    precision = product_precision(candidate, job.precision)
    peak_flops = peak_flops_of(precision, outlook.environment, outlook.table)
    low_s, high_s, low_bytes, high_bytes = reach.around(prediction, index)
    return {
        "pred_step_time_s": step_time_s,
        "pred_step_time_low_s": low_s,
        "pred_step_time_high_s": high_s,
        "pred_samples_per_s": job.global_batch / step_time_s,
        "pred_tokens_per_s_per_gpu": job.tokens_per_batch / step_time_s / job.world,
        "pred_tflops_per_gpu": flops / step_time_s / 1e12,
        "pred_mfu_precision": peak_flops and precision,
        "pred_mfu": peak_flops and flops / step_time_s / peak_flops,
        "pred_mfu_low": peak_flops and flops / high_s / peak_flops,
        "pred_mfu_high": peak_flops and flops / low_s / peak_flops,
        "pred_peak_memory_bytes": float(prediction.peak_memory_bytes[index]),
        "pred_peak_memory_low_bytes": low_bytes,
        "pred_peak_memory_high_bytes": high_bytes,
        "pred_fit_probability": float(prediction.fit_probability[index]),
        "pred_host_memory_bytes": float(prediction.host_memory_bytes[index]),
    }


def parts_as_dict(prediction: Prediction, index: int) -> dict[str, Any]:
    """Parts of its step time and memory, for programs."""
    seconds, sizes = parts_of(prediction, index)
    return {"pred_time_parts_s": seconds, "pred_memory_parts_bytes": sizes}


def _row(ranking: Ranking, rank: int) -> dict[str, Any]:
    index = int(ranking.choices.firsts[rank - 1])
    found, outlook = ranking.prediction, ranking.outlook
    figures = figures_as_dict(outlook, ranking.candidates[index], found, index, ranking.reach)
    hours = 1e9 / figures["pred_tokens_per_s_per_gpu"] / 3600
    return {
        "rank": rank,
        "n_variants": len(ranking.choices.variants(rank)),
        "n_variants_within_1_percent": len(ranking.close_variants(rank)),
        "best_of": [kind for kind, best in ranking.best_of.items() if best == index],
        "asks": list(ranking.outlook.asks(ranking.candidates[index])),
        "is_tried_by_default": ranking.outlook.default_search is None
        or ranking.outlook.default_search.has(ranking.candidates[index]),
        "candidate": dict(ranking.candidates[index].values),
        **figures,
        "pred_gpu_hours_per_billion_tokens": hours,
        "pred_price_per_billion_tokens": outlook.token_price(figures["pred_step_time_s"]),
        "is_on_front": index in ranking.on_front,
        "needs": list(ranking.outlook.needs(ranking.candidates[index])),
        "changes_training": [*changes_of(ranking.candidates[index], ranking.outlook.job)],
        "assumed": assumptions(ranking.outlook, ranking.reach, index),
        **parts_as_dict(found, index),
    }


def _asks(ranking: Ranking, shown: Sequence[int]) -> dict[str, str]:
    """What shown rows ask of the user beside their settings -> the rows; empty: all of them."""
    firsts = ranking.choices.firsts
    ranks: dict[str, list[int]] = {}
    for rank in shown:
        for asked in ranking.outlook.asks(ranking.candidates[int(firsts[rank - 1])]):
            ranks.setdefault(asked, []).append(rank)
    return {
        asked: "" if len(found) == len(shown) else _rows(found) for asked, found in ranks.items()
    }


def _rows(ranks: Sequence[int]) -> str:
    """`rows 1, 4 to 6`, for ranks in any order; empty for none."""
    if not ranks:
        return ""
    runs = groupby(enumerate(sorted(ranks)), key=lambda numbered: numbered[1] - numbered[0])
    parts = [[rank for _, rank in run] for _, run in runs]
    texts = [
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part))
        for part in parts
    ]
    return f"row{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"
