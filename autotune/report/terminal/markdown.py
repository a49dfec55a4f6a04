"""The report as Markdown, to be pasted into a README or an issue; a gate for a comment of CI."""

from autotune.base.telling import tell
from autotune.base.templates import Templates
from autotune.record.gate import Gate
from autotune.report.parts import tables_in, tell_parts
from autotune.report.story import Story
from autotune.report.verdict import verdict_of
from autotune.space.knobs import describe_candidate

_LOCAL = ("table", "files", "page", "next")
"""Facts that mean something on this machine alone."""


def render_markdown(story: Story) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    verdict = verdict_of(story)
    described = [(r, describe_candidate(r.candidate, story.context)) for r in story.ranked_rows]
    rows = {"story": story, "rows": described, "last": "settings", "has_evidence": False}
    values = {
        "story": story,
        "title": verdict.title,
        "table": tables_in(tell_parts("candidates", rows))["candidates"],
        "facts": [fact for fact in (*verdict.facts, *verdict.notes) if fact[0] not in _LOCAL],
    }
    return Templates().text("report/text/study.md.j2", values)


def gate_in_markdown(gate: Gate) -> str:
    """The verdict of a gate, and its facts as a list."""
    (_, verdict), *facts = tell("gate", {"gate": gate})
    values = {"gate": gate, "verdict": verdict, "facts": facts}
    return Templates().text("report/text/gate.md.j2", values)
