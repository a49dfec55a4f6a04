"""Where knobs were really run, as a record: of any study's trials.

python -m tests.record_tried results/STUDY > results/recorded/knobs-DEVICES-STUDY.json
"""

import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from autotune.base.clock import date_of
from autotune.base.errors import StudyError
from autotune.contract import KnobValue
from autotune.record.study import Study, Trial
from autotune.record.tried import RecordedRun
from autotune.space.knob import Catalogue, Knob, knobs_of


def as_json(run: RecordedRun) -> str:
    """The text of a record's file."""
    return json.dumps(dataclasses.asdict(run), indent=2) + "\n"


def run_of(
    trained: Iterable[Mapping[str, KnobValue]],
    *,
    knobs: Catalogue,
    started_at_s: float,
    **hardware: Any,
) -> RecordedRun:
    """A record of trials on the same hardware.

    Args:
        trained: The knobs of each trial that trained as it was asked.
        knobs: The engine's, in their order.
        started_at_s: Unix time of the first.
        hardware: The other fields of the record.
    """
    values: dict[str, set[KnobValue]] = {}
    for chosen in trained:
        for name, value in chosen.items():
            values.setdefault(name, set()).add(value)
    return RecordedRun(
        date=date_of(started_at_s, "%Y-%m-%d"),
        trained={name: _in_order(knobs[name], values[name]) for name in knobs if name in values},
        **hardware,
    )


def run_of_study(folder: Path) -> RecordedRun:
    """A record of a study's trials that were measured and ran what was asked.

    Raises:
        StudyError: The folder is no study, or none of its trials was measured.
    """
    study = Study(folder.parent, folder.name)
    good = [trial for trial in study.trials() if _counts(trial)] if folder.is_dir() else []
    if not good:
        raise StudyError(f"{folder}: no trial there was measured", "name the folder of a study")
    last, spec = good[-1].result, good[-1].spec
    assert last is not None  # `_counts` saw to it
    here = study.facts().environment_at(spec.identity.number)
    return run_of(
        [trial.spec.identity.knobs for trial in good],
        knobs=knobs_of(spec.engine.name),
        engine=spec.engine.name,
        started_at_s=min(trial.result.started_at_s for trial in good if trial.result),
        accelerator=spec.layout.accelerator,
        device_name="" if here is None else here.device_name,
        ranks=spec.layout.world,
        nodes=len({device.rpartition(":")[0] for device in last.devices}),
        versions=last.versions,
    )


def _counts(trial: Trial) -> bool:
    result = trial.result
    is_full = trial.spec.identity.fidelity is None
    return result is not None and result.outcome.is_measured and not result.differences and is_full


def _in_order(knob: Knob, values: Iterable[KnobValue]) -> list[KnobValue]:
    def place(value: KnobValue) -> tuple[float, Any]:
        if isinstance(value, str):
            listed = value in knob.choices
            return (knob.choices.index(value) if listed else len(knob.choices), value)
        return (float(value), "")

    return sorted(values, key=place)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(as_json(run_of_study(Path(argument))))
