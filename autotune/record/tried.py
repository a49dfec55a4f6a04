"""Where each knob was really run: the recorded runs, and what nobody has run yet.

A record is a small file `results/recorded/knobs-*.json`: which values of which knobs trained real
steps as they were asked, on what, with which versions. `python -m tests.record_knobs` makes the
one of CPU ranks, `python -m autotune.record.tried STUDY` one of any study's trials.
"""

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.base.clock import date_of
from autotune.base.data import data_folder
from autotune.base.errors import StudyError
from autotune.base.units import format_count
from autotune.contract import KnobValue
from autotune.record.facts import environment_at
from autotune.record.study import Study, Trial
from autotune.space.candidate import format_value
from autotune.space.knob import Catalogue, Context, Knob, knobs_of, never

PAGE = "docs/knobs.md"
"""Where people read all of it."""


@dataclass(frozen=True, kw_only=True)
class RecordedRun:
    """Real training on one kind of hardware."""

    date: str
    """Day of its first trial, as `2026-11-21`."""
    accelerator: str
    """`cpu` or `cuda`."""
    device_name: str
    ranks: int
    nodes: int
    versions: Mapping[str, str]
    """Package -> version; `python` is one of them."""
    trained: Mapping[str, Sequence[KnobValue]]
    """Knob -> its values that trained, where they act; sorted."""
    engine: str = DEFAULT_ENGINE
    """Engine that trained them: another one's knob of the same name is another knob."""

    @property
    def hardware(self) -> str:
        """`2 CPU ranks`, `1 GPU`, `16 GPUs on 2 nodes`."""
        kind = "CPU rank" if self.accelerator == "cpu" else "GPU"
        nodes = f" on {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{format_count(self.ranks, kind)}{nodes}"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


@functools.cache
def recorded(engine: str = DEFAULT_ENGINE) -> tuple[RecordedRun, ...]:
    """Every recorded run of an engine."""
    files = sorted(data_folder("recorded").glob("knobs-*.json"))
    runs = (RecordedRun(**json.loads(path.read_text(encoding="utf-8"))) for path in files)
    return tuple(run for run in runs if run.engine == engine)


def is_tried(
    knob: Knob, value: KnobValue, accelerator: str, runs: Iterable[RecordedRun] | None = None
) -> bool:
    """Whether a value was run on `cpu` or `cuda`, by some runs or by all recorded ones.

    For sizes and counts any value but the default stands for all: what a size means does not
    depend on how large it is. So does one value that matches the knob's pattern.
    """
    seen = {
        tried
        for run in (recorded() if runs is None else runs)
        if run.accelerator == accelerator
        for tried in run.trained.get(knob.name, ())
    }
    if value in seen:
        return True
    if knob.pattern and re.fullmatch(knob.pattern, str(value)):
        return any(re.fullmatch(knob.pattern, str(tried)) for tried in seen)
    return _is_size(knob) and bool(seen - {knob.default})


def warning(settings: Mapping[str, KnobValue], context: Context) -> str:
    """Settings that no recorded run has tried on an accelerator of this kind, for a user.

    Args:
        settings: What somebody chose (see `autotune.space.knobs.choices_of`); defaults need no
            trial.
        context: Where, and of which engine.
    """
    runs = recorded(context.engine)
    found = [
        f"{name}={format_value(value)}"
        for name, value in settings.items()
        if not is_tried(context.knobs[name], value, context.accelerator, runs)
    ]
    where = "a GPU" if context.accelerator == "cuda" else "CPU ranks"
    return f"{', '.join(found)}: no recorded run on {where} yet ({PAGE})" if found else ""


def never_run(knob: Knob, runs: Iterable[RecordedRun] | None = None) -> list[KnobValue]:
    """Values that no recorded run has tried on any hardware; of sizes the default stands for all.

    A knob that acts nowhere is none that could be tried.
    """
    if knob.acts is never:
        return []
    others = [value for value in knob.choices or (False, True) if value != knob.default]
    if _is_size(knob):
        others = [knob.default]
    found = recorded() if runs is None else tuple(runs)
    kinds = ("cpu", "cuda")
    return [v for v in others if not any(is_tried(knob, v, kind, found) for kind in kinds)]


def summary() -> str:
    """The hardware of the recorded runs and how many values have none, for `--help`."""
    runs = recorded()
    hardware = ", ".join(sorted({run.hardware for run in runs})) or "nothing"
    gpu = "" if any(run.accelerator == "cuda" for run in runs) else ", and none on a GPU yet"
    text = f"Knobs have recorded runs on {hardware}{gpu}"
    n_never = sum(len(never_run(knob)) for knob in knobs_of(DEFAULT_ENGINE).values())
    if not n_never:
        return f"{text} ({PAGE})."
    never = format_count(n_never, "value has", "values have")
    return f"{text}. {never} none: {PAGE} says which, and so does a plan that tries them."


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
    here = environment_at(study.read_state(), spec.identity.number)
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


def _is_size(knob: Knob) -> bool:
    return knob.kind in ("int", "float") and not knob.choices


def _in_order(knob: Knob, values: Iterable[KnobValue]) -> list[KnobValue]:
    def place(value: KnobValue) -> tuple[float, Any]:
        if isinstance(value, str):
            listed = value in knob.choices
            return (knob.choices.index(value) if listed else len(knob.choices), value)
        return (float(value), "")

    return sorted(values, key=place)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        sys.stdout.write(run_of_study(Path(argument)).to_json())
