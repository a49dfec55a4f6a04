"""Where each knob was really run: the recorded runs, and what nobody has run yet.

A record is a small file `results/recorded/knobs-*.json`: which values of which knobs trained real
steps as they were asked, on what, with which versions. `python -m tests.record_knobs` makes the
one of CPU ranks, `python -m tests.record_tried STUDY` one of any study's trials.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune import DEFAULT_ENGINE
from autotune.base.data import data_folder
from autotune.base.units import format_count
from autotune.contract import KnobValue
from autotune.space.candidate import format_value
from autotune.space.knob import Context, Knob, never

PAGE = "autotune knobs NAME"
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
    return f"{', '.join(found)}: no run of autotune's own on {where} yet ({PAGE})" if found else ""


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


def _is_size(knob: Knob) -> bool:
    return knob.kind in ("int", "float") and not knob.choices
