"""Every knob for people: `autotune knobs NAME`, and the page of the site."""

from collections.abc import Sequence
from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.base.templates import Templates
from autotune.contract import KnobValue
from autotune.engines.base import installed_engines
from autotune.record.tried import RecordedRun, is_tried, never_run, recorded
from autotune.space.candidate import format_value
from autotune.space.knob import Knob, knobs_of, never


def section_of(engine: str, knob: Knob) -> str:
    """One knob's section of the page."""
    values = {"knob": knob, "facts": _facts(knob, recorded(engine))}
    return Templates().text("report/text/knob.md.j2", values)


def documentation() -> str:
    """The whole page."""
    drives = [plugin.name for plugin in installed_engines() if plugin.is_driven]
    names = [DEFAULT_ENGINE, *(name for name in drives if name != DEFAULT_ENGINE)]
    text = Templates().text("report/text/knobs.md.j2", {"engines": [*map(_of_engine, names)]})
    return f"{text.rstrip()}\n"


def _of_engine(engine: str) -> dict[str, Any]:
    """An engine's runs, and its knobs with their facts."""
    runs = recorded(engine)
    knobs = [(knob, _facts(knob, runs)) for knob in knobs_of(engine).values()]
    return {"name": engine.capitalize(), "runs": runs, "knobs": knobs}


def tried_on(knob: Knob, runs: Sequence[RecordedRun]) -> str:
    """The honest limit of a knob, in a line: `2 CPU ranks (none, cpu); **never on a GPU**`."""
    if knob.acts is never:
        return "nothing: there is nothing to see"
    values: dict[str, list[KnobValue]] = {}
    for run in runs:
        known = values.setdefault(run.hardware, [])
        known += [value for value in run.trained.get(knob.name, ()) if value not in known]
    parts = [f"{hardware} ({_listed(found)})" for hardware, found in values.items() if found]
    if not parts:
        return "**nothing yet**"
    missing = [value for value in never_run(knob, runs) if value != knob.default]
    if missing:
        parts.append(f"**never: {_listed(missing)}**")
    if not _is_on_gpu(knob, runs):
        parts.append("**never on a GPU**")
    return "; ".join(parts)


def _is_on_gpu(knob: Knob, runs: Sequence[RecordedRun]) -> bool:
    values = (value for run in runs for value in run.trained.get(knob.name, ()))
    return any(v != knob.default and is_tried(knob, v, "cuda", runs) for v in values)


def _facts(knob: Knob, runs: Sequence[RecordedRun]) -> dict[str, str]:
    default = format_value(knob.default)
    for (other, where), value in knob.default_when.items():
        default += f"; {format_value(value)} at {other.rpartition('.')[2]} {format_value(where)}"
    return {
        "values": knob.values_in_words,
        "default": default,
        "acts": knob.scope,
        "changes training": knob.changes_training,
        "needs CUDA": _listed(knob.needs_cuda),
        "tried on": tried_on(knob, runs),
        "decided in": f"`{knob.source}`",
    }


def _listed(values: Sequence[KnobValue]) -> str:
    return ", ".join(map(format_value, values))
