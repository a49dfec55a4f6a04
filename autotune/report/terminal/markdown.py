"""The report as Markdown, to be pasted into a README or an issue."""

import re

from autotune.base.units import format_bytes
from autotune.report.results.study import StudyReport
from autotune.report.results.verdict import describe_outcome, describe_place, describe_verdict
from autotune.report.words import format_interval, format_rate
from autotune.space.knobs import describe_candidate

_COLUMNS = ("trial", "samples/s", "95% interval", "memory", "outcome", "settings")
_LOCAL = ("table", "files", "page")
"""Facts that mean something on this machine alone."""


def render_markdown(report: StudyReport) -> str:
    """A table with a row per candidate, and the verdict as a list."""
    lines = [f"**{_escape(report.study)}**", ""]
    if place := describe_place(report):
        lines += [_escape(place), ""]
    lines += [f"| {' | '.join(_COLUMNS)} |", "|--:|--:|---|--:|---|---|"]
    for row in report.rows:
        figure = row.figure
        cells = (
            str(row.trial),
            format_rate(figure.samples_per_s if figure else None),
            format_interval(figure.low, figure.high) if figure else "-",
            format_bytes(figure.peak_memory_bytes if figure else None),
            describe_outcome(row, report),
            f"`{describe_candidate(row.candidate, report.context)}`",
        )
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    facts = [(name, text) for name, text in describe_verdict(report) if name not in _LOCAL]
    lines += [f"- {name}: {_escape(text)}" for name, text in facts]
    return "\n".join(lines) + "\n"


def _escape(text: str) -> str:
    """As text: nothing in it is taken for markup, and it stays on its line."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
