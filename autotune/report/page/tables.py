"""The tables of a study's page besides its trials: what the best changes, evidence, versions."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from autotune.base.secrecy import scrubbed
from autotune.base.templates import canonical_json
from autotune.base.units import format_bytes, format_rate, format_seconds
from autotune.contract import CONFIG_DIR, ContractError, Outcome, Phase, Role, read_json
from autotune.engines.base import find_engine
from autotune.record.answer import Standing
from autotune.record.spread import is_figure
from autotune.record.study import Trial, results
from autotune.report.explain.trial import describe, explain, rows_of
from autotune.report.story import Story
from autotune.search.confirm import comparison_of, last_comparison
from autotune.search.history import CandidateTrials, evidence_of
from autotune.space.candidate import candidate_of
from autotune.space.knobs import describe_candidate, describe_change

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


MOST_ROWS = 100
"""Trials that a page lists; the study's table has all of them."""
_MOST_DETAILS = 100_000
"""Characters of all details together: a page of a long study stays one that a mail takes."""


def trials(story: Story) -> list[dict[str, Any]]:
    """The first `MOST_ROWS` trials in the order of the answer, those of a candidate together.

    The first of a candidate holds the figure that the candidate is judged by.
    """
    words = {"best": story.best_word, "baseline": "baseline", "drifts": "drifts"}
    sides = (("baseline", story.baseline), ("best", story.best))
    # Where one trial is both, it is the best.
    marks = {standing.trial: name for name, standing in sides if standing is not None}
    is_final = any(row.compared for row in story.rows)
    last = last_comparison(story.history.trials)
    found: list[dict[str, Any]] = []
    for row in story.ranked_rows:
        if len(found) >= MOST_ROWS:
            break
        settings = settings_of_row(story, row)
        kin = next((n for t in row.trials if (n := marks.get(t.number))), "")
        heads = {row.trial, *marks}
        is_earlier = 0 <= last_comparison(row.trials) < last
        left_out = "not in the last comparison" if is_earlier else "not compared"
        of_candidate = sorted(row.trials, key=lambda t: (t.number not in heads, t.number))
        for place, trial in enumerate(of_candidate):
            result, number = trial.result, trial.number
            mark = marks.get(number, "drifts" if story.drifts(row) else "")
            found.append(
                {
                    "number": number,
                    "mark": mark,
                    "word": words.get(mark, ""),
                    "is_again": place > 0,
                    "again_of": kin if place > 0 else "",
                    "role": _role(trial, story, last),
                    "outcome": result.outcome.value if result else story.in_flight_word,
                    "row": row,
                    "figure": row.figure if place == 0 else None,
                    "left_out": left_out if is_final else "",
                    "rate": result.samples_per_s if result and is_figure(result) else None,
                    "peak_bytes": row.figure.peak_memory_bytes
                    if row.figure and place == 0
                    else result and result.peak_memory_bytes,
                    "predicted": trial.spec.provenance.predicted,
                    "global_batch": trial.spec.layout.global_batch,
                    "settings": settings,
                    "evidence": _evidence_of(trial),
                }
            )
    return found[:MOST_ROWS]


def details(story: Story, rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What a row opens, by the trial's number; in the order of the rows as far as there is room.

    Configurations of those beyond it stand in the trials' folders alone.
    """
    table, left, found = rows_of(story.frame), _MOST_DETAILS, {}
    for row in rows:
        trial = story.trial(row["number"])
        if trial is None:
            continue
        config = config_of(story, trial.number) if left > 0 else None
        explained = explain(story, trial.number, table.get(trial.number, {}))
        found[str(trial.number)] = one = {
            "settings": describe_candidate(candidate_of(trial.spec), story.context),
            "config": "" if config is None else canonical_json(config),
            "phases": _phases(trial),
            "facts": [] if explained is None else list(map(list, describe(explained))),
            "evidence": row["evidence"],
            "folder": str(trial.folder),
        }
        left -= sum(len(str(value)) for value in one.values())
    return found


def _role(trial: Trial, story: Story, last: int) -> str:
    """Why it was run, `last` being the first round of the last comparison.

    What was tried on the way to the baseline is told apart from it, and so are runs of an earlier
    comparison, which count for no figure.
    """
    identity = trial.spec.identity
    if identity.role is Role.BASELINE:
        baseline = story.facts.baseline.candidate_hash
        is_other = baseline is not None and identity.candidate_hash != baseline
        return "towards the baseline" if is_other else "baseline"
    if identity.confirm_round is None:
        return identity.role.value
    first = comparison_of(trial)
    text = f"{identity.role.value}, round {identity.confirm_round - first + 1}"
    return text if first == last else f"{text} of an earlier comparison"


def _evidence_of(trial: Trial) -> str:
    result = trial.result
    if result is None:
        return trial.problem
    parts = []
    if result.outcome is not Outcome.OK:
        parts.append(evidence_of(result))
    if result.outcome.is_measured and result.disturbed:
        parts.append(f"disturbed: {result.disturbed}")
    return "; ".join(parts) or trial.problem


def _phases(trial: Trial) -> list[tuple[str, str]]:
    spent = {} if trial.result is None else trial.result.phases_s
    return [
        (phase.value, format_seconds(s)) for phase in Phase if (s := spent.get(phase.value, 0.0))
    ]
