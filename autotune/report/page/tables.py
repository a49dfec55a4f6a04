"""The tables of a study's page besides its trials: what the best changes, evidence, versions."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pandas as pd

from autotune.base.secrecy import scrubbed
from autotune.contract import CONFIG_DIR, ContractError, Outcome, read_json
from autotune.engines.base import find_engine
from autotune.report.page.charts import Standings
from autotune.report.results.details import describe_cost, describe_gain, describe_setting
from autotune.report.results.effects import changes_of
from autotune.report.results.rows import describe_evidence
from autotune.report.results.study import StudyReport

_FIGURE = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?: ?(?:[KMGT]i?)?B\b)?")
"""A number, and the unit of a size: 981 GiB and 1.03 TiB differ in figures alone."""


def change(report: StudyReport, standings: Standings) -> dict[str, Any] | None:
    """The knobs and the keys that differ; None while there is no best or no baseline."""
    best, baseline = standings["best"], standings["baseline"]
    if best is None or baseline is None:
        return None
    return {
        "knobs": [
            {
                "name": one.knob,
                "before": describe_setting(one.before),
                "after": describe_setting(one.after),
                "help": one.help,
                "brought": describe_gain(one.pairs),
                "cost": describe_cost(one.pairs),
            }
            for one in changes_of(report, best.trial, baseline.trial)
        ],
        "config_keys": _keys(report, best.trial, baseline.trial),
    }


def config_of(report: StudyReport, trial: int) -> dict[str, Any] | None:
    """A trial's configuration as it ran, its secrets withheld; None: gone or damaged."""
    engine, one = find_engine(report.context.engine), report.trial(trial)
    if one is None:
        return None
    try:
        config: dict[str, Any] = scrubbed(read_json(one.folder / CONFIG_DIR / engine.config_file))
        return config
    except ContractError:
        return None


def guarded(report: StudyReport) -> list[tuple[str, str]]:
    """What the convergence guard says, as (name, text)."""
    return [(name, f"trial {n}, {said}") for name, (n, said) in report.guarded.items()]


def _keys(report: StudyReport, best: int, baseline: int) -> list[dict[str, str]]:
    """Differences of the two configurations."""
    knob_of = find_engine(report.context.engine).knob_of
    ours, theirs = config_of(report, best), config_of(report, baseline)
    if ours is None or theirs is None:
        return []
    after, before = dict(_flat(ours)), dict(_flat(theirs))
    return [
        {
            "name": key,
            "before": _json(before, key),
            "after": _json(after, key),
            "knob": knob_of(key),
        }
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


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


def evidence(report: StudyReport) -> list[dict[str, str]]:
    """The lines that outcomes were read from, those alike together, the most frequent first.

    Lines are alike where they differ in figures alone: the first stands for all.
    """
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for trial in report.history.trials:
        result = trial.result
        if result is not None and result.outcome is not Outcome.OK:
            said = describe_evidence(result)
            key = (result.outcome.value, _FIGURE.sub("0", said))
            groups.setdefault(key, []).append((trial.spec.identity.number, said))
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return [
        {
            "outcome": outcome,
            "n": str(len(found)),
            "trials": ", ".join(str(number) for number, _ in found),
            "evidence": found[0][1],
            "is_first": "such as " if len({said for _, said in found}) > 1 else "",
        }
        for (outcome, _), found in ordered
    ]


def unreadable(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Trials whose files are damaged, and what is wrong with them."""
    damaged = frame[frame["problem"].notna()]
    return [
        (f"trial {number}", str(problem))
        for number, problem in zip(damaged["trial"], damaged["problem"], strict=True)
    ]


def provenance(report: StudyReport, frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Versions and devices, all of them where a study went on after an upgrade."""
    columns = [c for c in frame.columns if c.startswith("version.")] + ["device_name"]
    facts = [
        (column.removeprefix("version.").replace("_name", ""), ", ".join(seen))
        for column in columns
        if (seen := sorted(set(frame[column].dropna().astype(str))))
    ]
    return [*facts, ("folder", str(report.folder))]
