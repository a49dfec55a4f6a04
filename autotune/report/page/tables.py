"""The tables of a study's page: what the best changes, the trials and what bounds them."""

import json
from collections.abc import Mapping
from typing import Any

import pandas as pd

from autotune.base.secrecy import scrubbed
from autotune.base.units import format_bytes
from autotune.contract import CONFIG_DIR, ContractError, Outcome, read_json
from autotune.engines.base import find_engine
from autotune.record.spread import is_figure
from autotune.record.study import Trial
from autotune.report.explain.predictions import predicted_memory, predicted_rate
from autotune.report.explain.trial import describe, explain, rows_of
from autotune.report.page.charts import Standings
from autotune.report.results.details import describe_cost, describe_gain, describe_setting
from autotune.report.results.effects import changes_of
from autotune.report.results.rows import describe_evidence
from autotune.report.results.study import StudyReport
from autotune.report.words import format_interval, format_rate
from autotune.space.candidate import candidate_of
from autotune.space.knobs import describe_candidate


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
    """The lines that outcomes were read from, equal ones together, the most frequent first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for trial in report.history.trials:
        result = trial.result
        if result is not None and result.outcome is not Outcome.OK:
            key = (result.outcome.value, _said_by(trial))
            groups.setdefault(key, []).append(trial.spec.identity.number)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[1]))
    return [
        {"outcome": outcome, "trials": ", ".join(map(str, numbers)), "evidence": evidence}
        for (outcome, evidence), numbers in ordered
    ]


def _said_by(trial: Trial) -> str:
    result = trial.result
    if result is None:
        return trial.problem
    said = []
    if result.outcome is not Outcome.OK:
        said.append(describe_evidence(result))
    if result.outcome.is_measured and result.disturbed:
        said.append(f"disturbed: {result.disturbed}")
    return "; ".join(said) or trial.problem


def trials(report: StudyReport, standings: Standings) -> list[dict[str, str]]:
    """Every trial of the record, by number."""
    marks = {s.trial: name for name, s in standings.items() if s is not None}
    return [_trial(trial, report, marks) for trial in report.history.trials]


def _trial(trial: Trial, report: StudyReport, marks: Mapping[int, str]) -> dict[str, str]:
    spec, result = trial.spec, trial.result
    identity = spec.identity
    rate = None if result is None else result.samples_per_s
    interval = ""
    if result is not None and is_figure(result):
        predicted = report.history.spread.interval([result])
        interval = format_interval(predicted.low, predicted.high)
    peak_bytes = None if result is None else result.peak_memory_bytes
    its_round = "" if identity.confirm_round is None else f", round {identity.confirm_round}"
    return {
        "number": str(identity.number),
        "mark": marks.get(identity.number, ""),
        "role": f"{identity.role.value}{its_round}",
        "outcome": "running" if result is None else result.outcome.value,
        "rate": "" if rate is None else format_rate(rate),
        "interval": interval,
        "memory": "" if peak_bytes is None else format_bytes(peak_bytes),
        "predicted_rate": predicted_rate(spec),
        "predicted_memory": predicted_memory(spec),
        "settings": describe_candidate(candidate_of(spec), report.context),
        "evidence": _said_by(trial),
    }


def explanations(report: StudyReport, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Every trial that had a diagnostic pass, explained."""
    rows = rows_of(frame)
    numbers = [trial.spec.identity.number for trial in report.history.trials]
    found = [explain(report, number, rows.get(number, {})) for number in numbers]
    return [
        {
            "trial": str(each.trial),
            "bound": "unknown" if each.bottleneck is None else each.bottleneck.bound.value,
            "settings": describe_candidate(candidate_of(each.spec), report.context),
            "facts": describe(each),
        }
        for each in found
        if each is not None
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
