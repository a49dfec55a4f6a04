"""What the best changes against the baseline, as the page tells it: by knob and by key."""

import json
from collections.abc import Mapping
from typing import Any

from autotune.base.secrecy import masked
from autotune.contract import CONFIG_DIR, ContractError, read_json
from autotune.engines.base import find_engine
from autotune.report.page.charts import Standings
from autotune.report.results.details import describe_cost, describe_gain, describe_setting
from autotune.report.results.effects import Change, changes_of
from autotune.report.results.study import StudyReport


def change(report: StudyReport, standings: Standings) -> dict[str, Any] | None:
    """The knobs and the keys that differ; None while there is no best or no baseline."""
    best, baseline = standings["best"], standings["baseline"]
    if best is None or baseline is None:
        return None
    changes = changes_of(report, best.trial, baseline.trial)
    return {
        "knobs": [_knob(change) for change in changes],
        "config_keys": _keys(report, best.trial, baseline.trial),
    }


def config_of(report: StudyReport, trial: int) -> dict[str, Any] | None:
    """A trial's configuration as it ran, its secrets masked; None where it is gone or damaged."""
    engine = find_engine(report.context.engine)
    for one in report.history.trials:
        if one.spec.identity.number == trial:
            try:
                return masked(read_json(one.folder / CONFIG_DIR / engine.config_file))
            except ContractError:
                return None
    return None


def _knob(change: Change) -> dict[str, str]:
    return {
        "name": change.knob,
        "before": describe_setting(change.before),
        "after": describe_setting(change.after),
        "help": change.help,
        "brought": describe_gain(change.pairs),
        "cost": describe_cost(change.pairs),
    }


def _keys(report: StudyReport, best: int, baseline: int) -> list[dict[str, str]]:
    """Where the two configurations differ."""
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
