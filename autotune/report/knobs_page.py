"""A knob for people: `autotune knobs NAME`, and its section in the page of the site."""

from collections.abc import Sequence

from autotune.base.templates import Templates
from autotune.contract import KnobValue
from autotune.record.tried import RecordedRun, is_tried, never_run, recorded
from autotune.space.candidate import format_value
from autotune.space.knob import Knob, never


def section_of(engine: str, knob: Knob) -> str:
    """One knob's section of the page."""
    values = {"knob": knob, "facts": facts_of(knob, recorded(engine))}
    return Templates().text("report/text/knob.md.j2", values)


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
    others = {value for found in values.values() for value in found} - {knob.default}
    if not any(is_tried(knob, value, "cuda", runs) for value in others):
        has_default = is_tried(knob, knob.default, "cuda", runs)
        parts.append("**on a GPU the default alone**" if has_default else "**never on a GPU**")
    return "; ".join(parts)


def facts_of(knob: Knob, runs: Sequence[RecordedRun]) -> dict[str, str]:
    """What is known of a knob, by name; an empty text says nothing."""
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
