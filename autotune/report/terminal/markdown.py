"""The report as Markdown, to be pasted into a README or an issue."""

import re

from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import CELLS, describe_cells, describe_place, describe_verdict
from autotune.space.knobs import describe_candidate

_LOCAL = ("table", "files", "page")
"""Facts that mean something on this machine alone."""


def render_markdown(report: StudyReport) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    lines = [f"**{_escape(report.study)}**", ""]
    if place := describe_place(report):
        lines += [_escape(place), ""]
    lines += [f"| {' | '.join([*CELLS, 'settings'])} |", "|--:|--:|---|--:|---|---|"]
    for row in report.rows:
        settings = f"`{describe_candidate(row.candidate, report.context)}`"
        lines.append(f"| {' | '.join([*describe_cells(row, report), settings])} |")
    lines.append("")
    facts = [(name, text) for name, text in describe_verdict(report) if name not in _LOCAL]
    lines += [f"- {name}: {_escape(text)}" for name, text in facts]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """As text: nothing in it is taken for markup, and it stays on its line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
