"""Predictions for a job's candidates: as text for a terminal, and as data."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_bytes, format_count, format_rate, format_seconds
from autotune.cost import Prediction
from autotune.cost.errors import LEVEL, Margin
from autotune.devices.hardware import Environment
from autotune.engines.base import find_engine
from autotune.job.job import Job
from autotune.planning.choices import PROBABLE
from autotune.planning.learned import Learned
from autotune.planning.other_job import OtherJob
from autotune.planning.ranking import PredictedBaseline, Ranking
from autotune.report.terminal.tables import SettingsCell, plain_table, print_facts
from autotune.space.candidate import Candidate, format_value
from autotune.space.knob import knobs_of
from autotune.space.knobs import changing_knobs
from autotune.space.ranks import describe_ranks, machine_places

_TIME_PARTS = {
    "matmul_s": "matrix products",
    "attention_s": "attention",
    "elementwise_s": "element-wise kernels",
    "logits_s": "logits and loss",
    "recompute_s": "recomputation",
    "optimizer_s": "optimizer",
    "tensor_comm_s": "tensor parallel communication",
    "expert_comm_s": "expert parallel communication",
    "context_comm_s": "sequence parallel communication",
    "pipeline_comm_s": "pipeline sends",
    "data_comm_s": "gradients and parameters between ranks",
    "offload_s": "offload",
    "bubble_s": "pipeline bubble",
    "pages_s": "pages cleared by the kernel",
    "host_s": "host: launches and the loop",
}
MEMORY_PARTS = {
    "params_bytes": "parameters",
    "grads_bytes": "gradients",
    "optimizer_bytes": "optimizer states",
    "activations_bytes": "activations",
    "logits_bytes": "logits",
    "buckets_bytes": "communication buckets",
    "gathered_bytes": "gathered parameters",
    "workspace_bytes": "workspace",
    "fragmentation_bytes": "fragmentation",
    "context_bytes": "driver and libraries",
}
"""Field of `Memory` -> what people call it; together they are the peak."""


def ranking_as_dict(ranking: Ranking, ranks: Sequence[int]) -> dict[str, Any]:
    """For programs: the fleet, and the candidates of some ranks (from 1).

    Every figure is predicted; the keys say so.
    """
    return {
        "is_predicted": True,
        "device_name": ranking.environment.device_name,
        "world": ranking.job.world,
        "n_candidates": ranking.lattice.n_left,
        "n_grid": ranking.lattice.grid_size,
        "n_judged": ranking.lattice.n_judged,
        "n_choices": len(ranking.choices),
        "n_likely_to_fit": ranking.n_likely,
        "no_files": ranking.no_files,
        "pred_level": LEVEL,
        **learned_as_dict(ranking.learned),
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
        "baseline": _baseline_as_dict(ranking),
        "what_if": [
            {**dataclasses.asdict(variant), "best": ranking.candidates[variant.best].values}
            for variant in ranking.variants
        ],
    }


def _legal(ranking: Ranking) -> str:
    """How many candidates there are, and how many of them are known to be legal."""
    lattice = ranking.lattice
    if lattice.is_counted:
        return f"{lattice.n_left} legal candidates of {ranking.home}"
    n_allowed = lattice.n_judged - len(lattice.refused_places)
    return (
        f"of {lattice.grid_size} candidates of {ranking.home} the rules refuse "
        f"{lattice.grid_size - lattice.n_left} and allow the first {n_allowed}; of those left"
    )


def print_ranking(console: Console, ranking: Ranking, *, top: int) -> None:
    """Print the best candidates, and how other fleets compare."""
    job, environment = ranking.job, ranking.environment
    lines = (
        f"predicted, nothing was run: {job.model.name}, {job.seq_len} tokens, global batch "
        f"{job.global_batch}, {job.precision}, on {job.world} x {environment.device_name}",
        f"{_legal(ranking)}, {ranking.n_likely} fit with a probability of "
        f"{ranking.min_fit:.0%} or more; "
        f"{format_count(len(ranking.choices), 'distinct choice')}",
    )
    console.print(Text("\n".join(lines)), soft_wrap=False)
    best = [rank for rank in range(1, top + 1) if rank <= len(ranking.choices)]
    more = [rank for rank in _alternatives(ranking) if rank not in best]
    shown = [int(ranking.choices.firsts[rank - 1]) for rank in (*best, *more)]
    console.print(_table(ranking, best, more))
    if any(map(ranking.is_on_front, (*best, *more))):
        print_facts(console, [("*", "no other candidate that fits is both faster and smaller")])
    if not ranking.n_likely:
        name = "too large" if _likeliest(ranking) < PROBABLE else "no sure fit"
        print_facts(console, [(name, _too_large(ranking))])
    print_facts(console, no_files_facts(ranking.no_files))
    if (other := ranking.other_batch) is not None:
        why = (
            f"{job.global_batch} is no multiple of {job.world}, so no candidate shares it among "
            "all ranks as data"
        )
        print_facts(console, [("global batch", _faster(ranking, other, why))])
    for there in ranking.spread_experts:
        why = "every rank gathers all experts of every layer"
        print_facts(console, [("experts", _faster(ranking, there, why))])
    for index in shown[:1]:
        seconds, sizes = parts_of(ranking.prediction, index)
        print_facts(
            console,
            [
                *lengths_facts(job),
                ("time of 1", shares(seconds)),
                ("memory of 1", shares(sizes)),
                *host_facts(ranking.prediction, index),
                ("interval of 1", _interval(ranking, index)),
                *_evidence_facts(ranking, index),
                *routing_facts(ranking.reach, index),
                *_training_facts(ranking, index),
                *needs_facts(ranking.needs(ranking.candidates[index])),
                *rank_facts(ranking.candidates[index], ranking.environment),
                *_variants_facts(ranking),
                *_asks_facts(ranking, [*best, *more]),
                *_search_facts(ranking, [*best, *more]),
            ],
        )
    if ranking.baseline is not None:
        print_facts(console, _baseline_facts(ranking, ranking.baseline))
    if ranking.variants:
        console.print(_variants(ranking))


def _too_large(ranking: Ranking) -> str:
    """What nothing fits into, and what could be changed."""
    least = format_bytes(float(ranking.prediction.peak_memory_bytes.min()))
    there = format_bytes(ranking.environment.device_memory_bytes)
    text = (
        f"no candidate is likely to fit: the smallest needs {least}, and an accelerator has "
        f"{there}. "
    )
    if (chance := _likeliest(ranking)) >= PROBABLE:
        text = (
            f"no candidate fits with {ranking.min_fit:.0%} or more, the likeliest with "
            f"{chance:.0%}: the smallest is forecast at {least} of {there}. "
        )
    if ways := ranking.ways_to_fit:
        return f"{text}The smallest changes with which one fits: " + "; ".join(
            f"{way.flags} ({way.described}, {way.fit_probability:.0%})" for way in ways
        )
    knobs = find_engine(ranking.job.engine).unused_savings(ranking.candidates)
    changes = ["more accelerators (--world)", "larger ones (--what-if gpu=NAME)", *knobs]
    return f"{text}Take {', '.join(changes[:-1])} or {changes[-1]}"


def _likeliest(ranking: Ranking) -> float:
    """Probability to fit of the candidate that does most surely."""
    return float(ranking.prediction.fit_probability.max())


def _alternatives(ranking: Ranking) -> list[int]:
    """Ranks that stand in every plan: what probably fits, and the best of each kind."""
    alone = [*ranking.probable, *([] if ranking.unchanged is None else [ranking.unchanged])]
    ranks = [ranking.choices.rank(index) for index in alone]
    kinds = sorted(ranking.choices.rank(index) for index in ranking.best_of.values())
    return list(dict.fromkeys([*ranks, *kinds]))


def _search_facts(ranking: Ranking, shown: Sequence[int]) -> list[tuple[str, str]]:
    """Shown rows that a search which is told no space does not try, and what makes it."""
    search = ranking.default_search
    if search is None:
        return []
    candidates = {
        rank: ranking.candidates[int(ranking.choices.firsts[rank - 1])] for rank in shown
    }
    tried = [rank for rank, candidate in candidates.items() if search.has(candidate)]
    if len(tried) == len(shown):
        return []
    left = {rank: candidates[rank] for rank in shown if rank not in tried}
    parts = [f"{_rows(tried)} of these" if tried else "none of these rows"]
    for name, held in search.homes(list(left.values())).items():
        ranks = [rank for rank, candidate in left.items() if candidate in held]
        left = {rank: candidate for rank, candidate in left.items() if rank not in ranks}
        parts.append(f"--space {name} has {_rows(ranks)}")
    if left:
        parts.append(
            f"no shipped space has {_rows(list(left))}: name their knobs and values in a space of "
            "your own (docs/spaces.md)"
        )
    return [("search", f"by default tries {search.tries}: {'; '.join(parts)}")]


def _faster(ranking: Ranking, other: OtherJob, why: str) -> str:
    """What another job gains over the first row, and why that has to be slower."""
    return (
        f"{why}; with {other.flags}, {other.described} is predicted to train "
        f"{_speedup(ranking, other):.2g} times as many samples/s as rank 1"
    )


def _speedup(ranking: Ranking, other: OtherJob) -> float:
    """Tokens/s of another job over those of the first row."""
    first_s = float(ranking.prediction.step_time_s[int(ranking.order[0])])
    return other.speedup(ranking.job, first_s)


def _other_as_dict(ranking: Ranking, other: OtherJob) -> dict[str, Any]:
    return {
        "flags": other.flags,
        "described": other.described,
        "fit_probability": other.fit_probability,
        "speedup": _speedup(ranking, other),
    }


def rank_facts(candidate: Candidate, environment: Environment) -> list[tuple[str, str]]:
    """Where the ranks of a candidate lie on machines of a kind, and how far its groups reach."""
    places = machine_places(candidate.world, environment.n_devices)
    lines = describe_ranks(candidate, places)
    return [("" if n else "ranks", line.removeprefix("ranks ")) for n, line in enumerate(lines)]


def host_facts(prediction: Prediction, index: int) -> list[tuple[str, str]]:
    """What offload takes of the hosts' memory; nothing where nothing is offloaded there."""
    node_bytes = float(prediction.host_memory_bytes[index])
    if not node_bytes:
        return []
    rank_bytes = float(np.ravel(prediction.take(np.array([index])).memory.host_bytes)[0])
    return [
        (
            "host memory",
            f"{format_bytes(rank_bytes)} per rank, {format_bytes(node_bytes)} per node",
        )
    ]


def lengths_facts(job: Job) -> list[tuple[str, str]]:
    """What samples of other lengths than `seq_len` tokens mean to predictions."""
    text = job.lengths.describe(job.global_batch)
    if job.lengths.kind == "packed":
        text = f"{text} of {job.seq_len} tokens"
    elif text:
        text += "; time is of micro-batches padded to their longest sample, memory of the longest"
    return [("lengths", text)] if text else []


def routing_facts(reach: Margin, index: int) -> list[tuple[str, str]]:
    """What a forecast assumes of the router."""
    return [("routing", f"assumed to {text}") for text in _of_router(reach, index)]


def evidence_in_words(reach: Margin, index: int) -> str:
    """What intervals rest on; empty where trials here taught them."""
    evidence = reach.evidence_at(index)
    return f"learned from others' runs; {evidence}" if evidence else ""


def assumptions(reach: Margin, index: int) -> list[str]:
    """The same for programs."""
    evidence = reach.evidence_at(index)
    return _of_router(reach, index) + ([f"intervals: {evidence}"] if evidence else [])


def _of_router(reach: Margin, index: int) -> list[str]:
    """What a forecast takes the router to do; empty where nothing depends on it."""
    slower = reach.slower_at(index)
    if slower <= 1:
        return []
    return [
        "give all experts as many tokens; where it does not, steps take up to "
        f"{slower:g} times as long, which the upper end of the interval allows for"
    ]


def training_facts(candidate: Candidate, engine: str) -> list[tuple[str, str]]:
    """Knobs of a candidate with which something else is trained, and what they change."""
    changing = changing_knobs(candidate, knobs_of(engine))
    if not changing:
        return []
    knobs = knobs_of(engine)
    said = dict.fromkeys(knobs[name].changes_training for name in changing)
    return [("changes training", f"{' '.join(changing)}: {'; '.join(said)}")]


def _training_facts(ranking: Ranking, index: int) -> list[tuple[str, str]]:
    facts = training_facts(ranking.candidates[index], ranking.job.engine)
    if (other := ranking.unchanged) is None:
        return facts
    seconds = format_seconds(float(ranking.prediction.step_time_s[other]))
    described = ranking.describe(ranking.candidates[other])
    rank = ranking.choices.rank(other)
    return [*facts, ("without it", f"rank {rank}, {seconds}: {described}")]


def needs_facts(packages: Sequence[str]) -> list[tuple[str, str]]:
    """What nodes must have that nobody looked at; nothing for this machine."""
    return [("nodes need", ", ".join(packages))] if packages else []


def asks_facts(asked: Sequence[str]) -> list[tuple[str, str]]:
    """What a candidate asks of the user beside its settings."""
    return [("it needs", "; ".join(asked))] if asked else []


def no_files_facts(why: str) -> list[tuple[str, str]]:
    """Why a forecast is all that there is."""
    return [("no files", f"are made for this, it is a forecast alone: {why}")] if why else []


def _interval(ranking: Ranking, index: int) -> str:
    """The intervals of one candidate in words."""
    low_s, high_s, low_bytes, high_bytes = ranking.reach.around(ranking.prediction, index)
    return (
        f"{format_seconds(low_s)} to {format_seconds(high_s)}, {format_bytes(low_bytes)} to "
        f"{format_bytes(high_bytes)}; such intervals hold {held_in_words(ranking.learned)}"
    )


def _evidence_facts(ranking: Ranking, index: int) -> list[tuple[str, str]]:
    text = evidence_in_words(ranking.reach, index)
    return [("intervals", text)] if text else []


def held_in_words(learned: Learned | None) -> str:
    """What intervals hold, in words."""
    if learned is None:
        return f"{LEVEL:.0%} of runs that the model has not seen"
    own = f"{learned.n_here} of this job" if learned.n_here else "none of this job"
    return f"{LEVEL:.0%} of runs here, by {learned.n_trials} trials on these devices, {own}"


def learned_as_dict(learned: Learned | None) -> dict[str, int]:
    """Trials that corrected predictions, for programs."""
    return {
        "n_trials_learned_from": 0 if learned is None else learned.n_trials,
        "n_trials_of_this_job": 0 if learned is None else learned.n_here,
    }


def _baseline_as_dict(ranking: Ranking) -> dict[str, Any] | None:
    own = ranking.baseline
    if own is None:
        return None
    return {
        "path": own.path,
        "candidate": own.candidate.values,
        **figures_as_dict(ranking.job, own.prediction, 0, own.reach),
        "pred_gain_of_best": _gain_of_best(ranking, own),
        "not_carried": {name: list(pair) for name, pair in own.notes.items()},
    }


def _baseline_facts(ranking: Ranking, own: PredictedBaseline) -> list[tuple[str, str]]:
    found = own.prediction
    step_time_s = float(found.step_time_s[0])
    facts = [
        (
            "baseline",
            f"{own.path}: {own.described}: {format_seconds(step_time_s)} a step, "
            f"{format_bytes(found.peak_memory_bytes[0])}, fits with a probability of "
            f"{found.fit_probability[0]:.0%}; rank 1 is predicted to be "
            f"{_gain_of_best(ranking, own):.2f} times as fast",
        )
    ]
    for name, (theirs, ours) in own.notes.items():
        shown = "nothing" if ours is None else ours
        facts.append(("", f"{name} {theirs}: no knob carries it; predicted with {shown}"))
    return facts


def _gain_of_best(ranking: Ranking, own: PredictedBaseline) -> float:
    best_s = ranking.prediction.step_time_s[int(ranking.order[0])]
    return float(own.prediction.step_time_s[0] / best_s)


def parts_of(prediction: Prediction, index: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds and bytes of a candidate by part in words, largest first, without empty ones."""
    one = prediction.take(np.array([index]))
    seconds, peak_bytes = float(one.step_time_s[0]), float(one.peak_memory_bytes[0])
    return _parts(one.times, _TIME_PARTS, seconds), _parts(one.memory, MEMORY_PARTS, peak_bytes)


def _parts(side: object, names: Mapping[str, str], total: float) -> dict[str, float]:
    """The parts, which add up to the figure as trials have corrected it."""
    said = {words: float(getattr(side, name)[0]) for name, words in names.items()}
    scale = total / sum(said.values())
    found = {words: part * scale for words, part in said.items()}
    return {
        words: found[words] for words in sorted(found, key=lambda w: -found[w]) if found[words] > 0
    }


def shares(parts: Mapping[str, float], most: int = 4) -> str:
    """`matrix products 52%, attention 20%`, the largest ones."""
    total = sum(parts.values()) or 1.0
    return ", ".join(f"{name} {part / total:.0%}" for name, part in list(parts.items())[:most])


def figures_as_dict(job: Job, prediction: Prediction, index: int, reach: Margin) -> dict[str, Any]:
    """Predictions for one candidate, with the ends of their intervals, for programs."""
    step_time_s = float(prediction.step_time_s[index])
    low_s, high_s, low_bytes, high_bytes = reach.around(prediction, index)
    return {
        "pred_step_time_s": step_time_s,
        "pred_step_time_low_s": low_s,
        "pred_step_time_high_s": high_s,
        "pred_samples_per_s": job.global_batch / step_time_s,
        "pred_tokens_per_s_per_gpu": _tokens_per_s(job, step_time_s),
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
    found = ranking.prediction
    return {
        "rank": rank,
        "n_variants": len(ranking.choices.variants(rank)),
        "n_variants_within_1_percent": len(ranking.close_variants(rank)),
        "best_of": _best_of(ranking, index),
        "asks": list(ranking.asks(ranking.candidates[index])),
        "is_tried_by_default": ranking.default_search is None
        or ranking.default_search.has(ranking.candidates[index]),
        "candidate": ranking.candidates[index].values,
        **figures_as_dict(ranking.job, found, index, ranking.reach),
        "pred_gpu_hours_per_billion_tokens": _gpu_hours(ranking, index),
        "pred_price_per_billion_tokens": _price(ranking, index),
        "is_on_front": ranking.is_on_front(rank),
        "needs": list(ranking.needs(ranking.candidates[index])),
        "changes_training": changing_knobs(
            ranking.candidates[index], knobs_of(ranking.job.engine)
        ),
        "assumed": assumptions(ranking.reach, index),
        **parts_as_dict(found, index),
    }


def _best_of(ranking: Ranking, index: int) -> list[str]:
    """Kinds of which a candidate is the best one."""
    return [kind for kind, best in ranking.best_of.items() if best == index]


def _notes(ranking: Ranking, rank: int) -> list[str]:
    """What is worth saying of a row: why it is there, and what varies in it."""
    index = int(ranking.choices.firsts[rank - 1])
    notes, times_s = [], ranking.prediction.step_time_s
    if chance := ranking.probable.get(index):
        gain = times_s[int(ranking.choices.firsts[0])] / times_s[index]
        notes.append(
            f"the fastest that fits with {chance:.0%} or more, {gain:.2f} times as fast as rank 1"
        )
    elif rank == 1 and ranking.probable and ranking.n_likely:
        notes.append(f"the fastest that fits with {ranking.min_fit:.0%} or more")
    if index == ranking.unchanged:
        notes.append("the best that trains the same numbers")
    if rank > 1 and (kinds := _best_of(ranking, index)):
        notes.append(f"the best of {', '.join(kinds)}")
    if close := len(ranking.close_variants(rank)):
        notes.append(f"{format_count(close, 'variant')} within 1%")
    return ["; ".join(notes)] if notes else []


_LEAST_SAVING = 0.03
"""Part of the peak that a variant has to save to be named."""


def _variants_facts(ranking: Ranking) -> list[tuple[str, str]]:
    """The variants of the first row, and the smallest of them where it is smaller."""
    close, every = ranking.close_variants(1), ranking.choices.variants(1)
    if not len(every):
        return []
    text = f"{len(close)} within 1%, {len(every) - len(close)} slower"
    peaks, index = ranking.prediction.peak_memory_bytes, int(ranking.choices.firsts[0])
    smallest = min(close, key=lambda other: float(peaks[other]), default=index)
    if peaks[smallest] < (1 - _LEAST_SAVING) * peaks[index]:
        own, other = (ranking.candidates[int(each)].values for each in (index, smallest))
        changed = [f"{n}={format_value(v)}" for n, v in other.items() if own.get(n) != v]
        text += f"; {' '.join(changed)} takes {format_bytes(peaks[smallest])}"
    return [("variants of 1", text)]


def _asks_facts(ranking: Ranking, shown: Sequence[int]) -> list[tuple[str, str]]:
    """What shown rows ask of the user beside their settings, each with its rows."""
    firsts = ranking.choices.firsts
    rows: dict[str, list[int]] = {}
    for rank in shown:
        for asked in ranking.asks(ranking.candidates[int(firsts[rank - 1])]):
            rows.setdefault(asked, []).append(rank)
    every = len(shown)
    texts = [
        f"{asked} ({'all rows' if len(ranks) == every else _rows(ranks)})"
        for asked, ranks in rows.items()
    ]
    return [("rows need", "; ".join(texts))] if texts else []


def _rows(ranks: Sequence[int]) -> str:
    """`rows 1, 4 to 6`, for ranks in any order."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    texts = [
        f"{part[0]} to {part[-1]}" if len(part) > 2 else ", ".join(map(str, part))
        for part in parts
    ]
    return f"row{'s' if len(ranks) > 1 else ''} {', '.join(texts)}"


def _table(ranking: Ranking, best: Sequence[int], more: Sequence[int]) -> Table:
    prices = [] if ranking.price_per_hour is None else [">*per 1e9 tokens"]
    table = plain_table(">rank", ">step", ">tokens/s/GPU", ">peak", ">fits", *prices, "*candidate")
    found = ranking.prediction
    for rank in (*best, *more):
        if more and rank == more[0]:
            table.add_section()
        index = int(ranking.choices.firsts[rank - 1])
        price = _price(ranking, index)
        probability = found.fit_probability[index]
        table.add_row(
            f"{rank}{'*' if ranking.is_on_front(rank) else ' '}",
            format_seconds(found.step_time_s[index]),
            format_rate(_tokens_per_s(ranking.job, found.step_time_s[index])),
            format_bytes(found.peak_memory_bytes[index]),
            Text(f"{probability:.0%}", style="" if probability >= ranking.min_fit else "yellow"),
            *([] if price is None else [f"{price:.2f}"]),
            SettingsCell(ranking.describe(ranking.candidates[index]), notes=_notes(ranking, rank)),
        )
    return table


def _variants(ranking: Ranking) -> Table:
    best = int(ranking.order[0])
    base_s = float(ranking.prediction.step_time_s[best])
    table = plain_table("what if", ">step", ">against", ">*the best as it is", "*the best there")
    described = SettingsCell(ranking.describe(ranking.candidates[best]))
    table.add_row("as it is", format_seconds(base_s), "1.00x", "", described)
    for variant in ranking.variants:
        same = "does not fit" if variant.same_fit_probability < ranking.min_fit else ""
        table.add_row(
            variant.change,
            format_seconds(variant.step_time_s),
            f"{base_s / variant.step_time_s:.2f}x",
            same or format_seconds(variant.same_step_time_s),
            SettingsCell(ranking.describe(ranking.candidates[variant.best])),
        )
    return table


def _tokens_per_s(job: Job, step_time_s: float) -> float:
    """Tokens that one accelerator trains."""
    return job.tokens_per_batch / step_time_s / job.world


def _gpu_hours(ranking: Ranking, index: int) -> float:
    """Accelerator hours per billion tokens."""
    return 1e9 / _tokens_per_s(ranking.job, float(ranking.prediction.step_time_s[index])) / 3600


def _price(ranking: Ranking, index: int) -> float | None:
    """Price of a billion tokens."""
    if ranking.price_per_hour is None:
        return None
    return _gpu_hours(ranking, index) * ranking.price_per_hour
