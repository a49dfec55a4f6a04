"""A study with outcomes of every kind, and with names that would run if they were not escaped."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from autotune.contract import CONFIG_DIR, Outcome, Phase, TrialResult, TrialSpec
from autotune.record.study import Study
from tests.report.diagnosed import collective, diagnosis
from tests.report.test_terminal import finished
from tests.search.scripted import fault, ok, rate_of, realistic

EVIL = '</script><script>window.evil = 1</script><img src=x onerror="window.evil = 2">\'&'


def varied(spec: TrialSpec) -> TrialResult:
    """As `realistic`, with runs that differ and with faults of every kind here and there."""
    knobs = spec.identity.knobs
    key = (knobs["zero.stage"], knobs["micro_batch"], spec.workload.settings["recompute"])
    faults = {
        (3, 1, "none"): Outcome.NONFINITE,
        (3, 2, "none"): Outcome.INVALID,
        (3, 4, "full"): Outcome.TIMEOUT,
        (2, 1, "full"): Outcome.CRASH,
        (1, 1, "full"): Outcome.COMM,
    }
    if key in faults:
        return fault(spec, faults[key], f"{faults[key].value}: {EVIL}")
    result = realistic(spec)
    if not result.outcome.is_measured:
        return result
    # One per cent to either side, by the number of the trial: runs differ, and always alike.
    jitter = 1 + ((spec.identity.number * 37) % 21 - 10) / 1000
    boost = 1.25 if knobs["zero.stage"] == 1 else 1.0
    peak = float(result.peak_memory_bytes or 0)
    return dataclasses.replace(
        ok(spec, rate_of(spec) * jitter * boost, peak=peak),
        losses=[7.0 - 0.02 * step for step in range(20)],
        diagnosis=diagnosis(collective(4096), communication=0.3, host=0.1),
        phases_s={phase.value: (0.5 + i) / 5 for i, phase in enumerate(Phase)},
        versions={"python": "3.11.9", "torch": "2.13.0", "deepspeed": EVIL},
    )


def wide_study(folder: Path, **job_changes: Any) -> Study:
    """Thirty candidates, most of the lattice."""
    study = finished(folder, varied, trials=30, **job_changes)
    for trial in study.trials():
        config = {
            "zero_optimization": {"stage": trial.spec.identity.knobs["zero.stage"]},
            "note": EVIL,
        }
        file = trial.folder / CONFIG_DIR / "ds_config.json"
        file.write_text(json.dumps(config), encoding="utf-8")
    return study
