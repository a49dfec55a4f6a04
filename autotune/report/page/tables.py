"""The tables of a study's page besides its trials: what the best changes, evidence, versions."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from autotune.base.secrecy import scrubbed
from autotune.base.units import format_bytes, format_rate
from autotune.contract import CONFIG_DIR, ContractError, Outcome, read_json
from autotune.engines.base import find_engine
from autotune.record.answer import Standing
from autotune.record.study import results
from autotune.report.story import Story
from autotune.search.history import CandidateTrials, evidence_of
from autotune.space.knobs import describe_change

_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?: ?(?:[KMGT]i?)?B\b)?")
"""A number, and the unit of a size: 981 GiB and 1.03 TiB differ in figures alone."""


_MOST_PICKS = 8
_FIGURES = (
    ("tokens_per_s", "tokens/s", "{:,.0f}".format),
    ("tflops_per_device", "TFLOP/s per accelerator", format_rate),
    ("mfu", "MFU", "{:.1%}".format),
)
"""Columns of the table that grow with the speed, and how the page calls and spells them."""


def figures(story: Story) -> list[tuple[str, str, str]]:
    """What the baseline and the best reach, each figure in one row; empty without a best."""
    best = story.best
    if best is None:
        return []
    rows = {int(row["trial"]): row for row in story.frame.to_dict("records")}
    sides = [None if story.is_both else story.baseline, best]
    rates = [format_rate(side.samples_per_s) if side else "" for side in sides]
    peaks = [format_bytes(side.peak_memory_bytes) if side else "" for side in sides]
    found = [("samples/s", *rates), ("peak memory", *peaks)]
    for column, name, spelled in _FIGURES:
        values = [_scaled(rows, side, column) if side else None for side in sides]
        if values[1] is not None:
            texts = [spelled(value) if value is not None else "" for value in values]
            found.append((name, *texts))
    return [(name, before, after) for name, before, after in found]


def _scaled(
    rows: Mapping[int, Mapping[Any, Any]], standing: Standing, column: str
) -> float | None:
    """A figure of a trial's row, at the speed of its standing: that may rest on more runs."""
    row = rows.get(standing.trial, {})
    value, rate = row.get(column), row.get("samples_per_s")
    if value is None or rate is None or pd.isna(value) or pd.isna(rate) or not rate:
        return None
    return float(value) * standing.samples_per_s / float(rate)


def picks(story: Story) -> list[dict[str, Any]]:
    """The Pareto front as choices by the memory there is; empty for other objectives."""
    if story.objective.wish.name != "pareto":
        return []
    best, base = story.best, story.baseline
    front = story.front
    every = max(1, -(-len(front) // _MOST_PICKS))
    shown = [
        row for i, row in enumerate(front) if i % every == 0 or (best and row.trial == best.trial)
    ]
    return [
        {
            "row": row,
            "gain": row.rate / base.samples_per_s if base else None,
            "is_best": best is not None and row.trial == best.trial,
            "settings": settings_of_row(story, row),
        }
        for row in shown
    ]


def settings_of_row(story: Story, row: CandidateTrials) -> str:
    """What differs from the baseline's settings; without a baseline, all of them."""
    baseline = story.baseline_row
    before = None if baseline is None else baseline.candidate
    return describe_change(row.candidate, before, story.context)


def config_keys(story: Story) -> list[dict[str, str]]:
    """Keys of the configurations of the best and the baseline that differ."""
    if story.best is None or story.baseline is None:
        return []
    knob_of = find_engine(story.context.engine).knob_of
    best_config, baseline_config = (
        config_of(story, s.trial) for s in (story.best, story.baseline)
    )
    if best_config is None or baseline_config is None:
        return []
    after, before = dict(_flat(best_config)), dict(_flat(baseline_config))
    changed = (key for key in sorted({*before, *after}) if before.get(key) != after.get(key))
    return [
        {"name": k, "before": _json(before, k), "after": _json(after, k), "knob": knob_of(k)}
        for k in changed
    ]


def config_of(story: Story, trial: int) -> dict[str, Any] | None:
    """A trial's configuration as it ran, its secrets withheld; None: gone or damaged."""
    engine, one = find_engine(story.context.engine), story.trial(trial)
    if one is None:
        return None
    try:
        config: dict[str, Any] = scrubbed(read_json(one.folder / CONFIG_DIR / engine.config_file))
        return config
    except ContractError:
        return None


def _flat(config: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat += _flat(value, f"{prefix}{key}.")
        else:
            flat.append((f"{prefix}{key}", value))
    return flat


def _json(flat: Mapping[str, Any], key: str) -> str:
    return json.dumps(flat[key], sort_keys=True) if key in flat else "not set"


def evidence(story: Story) -> list[dict[str, str]]:
    """The lines that outcomes were read from, those alike together, the most frequent first.

    Lines are alike where they differ in figures alone: the first stands for all.
    """
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for result in results(story.history.trials):
        if result.outcome is not Outcome.OK:
            text = evidence_of(result)
            key = (result.outcome.value, _FIGURE.sub("0", text))
            groups.setdefault(key, []).append((result.number, text))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return [
        {
            "outcome": outcome,
            "n": str(len(found)),
            "trials": ", ".join(str(number) for number, _ in found),
            "evidence": found[0][1],
            "is_first": "such as " if len({text for _, text in found}) > 1 else "",
        }
        for (outcome, _), found in ordered
    ]


def unreadable(story: Story) -> list[tuple[str, str]]:
    """Trials whose files are damaged, and what is wrong with them."""
    damaged = story.frame[story.frame["problem"].notna()]
    return [
        (f"trial {number}", str(problem))
        for number, problem in zip(damaged["trial"], damaged["problem"], strict=True)
    ]


def provenance(story: Story) -> list[tuple[str, str]]:
    """Versions and devices, all of them where a study went on after an upgrade."""
    frame = story.frame
    columns = [c for c in frame.columns if c.startswith("version.")] + ["device_name"]
    facts = [
        (column.removeprefix("version.").replace("_name", ""), ", ".join(seen))
        for column in columns
        if (seen := sorted(set(frame[column].dropna().astype(str))))
    ]
    return [*facts, ("folder", str(story.folder))]
