"""The report as Markdown, to be pasted into a README or an issue."""

from autotune.base.templates import Templates
from autotune.report.story import CELLS, Story
from autotune.report.verdict import verdict_of
from autotune.space.knobs import describe_candidate

_LOCAL = ("table", "files", "page", "next")
"""Facts that mean something on this machine alone."""


def render_markdown(story: Story) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    verdict = verdict_of(story)
    values = {
        "story": story,
        "title": verdict.title,
        "columns": CELLS,
        "rows": [
            (story.cells(row), describe_candidate(row.candidate, story.context))
            for row in story.ranked_rows
        ],
        "facts": [fact for fact in (*verdict.facts, *verdict.notes) if fact[0] not in _LOCAL],
    }
    return Templates().text("report/text/study.md.j2", values)
