"""The report as Markdown, to be pasted into a README or an issue."""

from autotune.base.text import markdown, markdown_code
from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import CELLS, describe_cells, describe_place, describe_verdict
from autotune.space.knobs import describe_candidate

_LOCAL = ("table", "files", "page")
"""Facts that mean something on this machine alone."""


def render_markdown(report: StudyReport) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    lines = [f"**{markdown(report.study)}**", ""]
    if place := describe_place(report):
        lines += [markdown(place), ""]
    lines += [f"| {' | '.join([*CELLS, 'settings'])} |", "|--:|--:|---|--:|---|---|"]
    for row in report.ranked_rows:
        settings = markdown_code(describe_candidate(row.candidate, report.context))
        lines.append(f"| {' | '.join([*map(markdown, describe_cells(row, report)), settings])} |")
    lines.append("")
    facts = [(name, text) for name, text in describe_verdict(report) if name not in _LOCAL]
    lines += [f"- {name}: {markdown(text)}" for name, text in facts]
    return "\n".join(lines) + "\n"
