"""Findings as workflow commands of GitHub Actions, which shows them beside the lines.

Their form: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from collections.abc import Iterator

from autotune.base.text import visible
from autotune.check.run import CheckRun
from autotune.space.rule import Level

_COMMANDS: dict[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}


def github_lines(run: CheckRun) -> Iterator[str]:
    """A command for every finding, for what was not judged, and for every unread file."""
    for report in run.reports:
        for found in report.found:
            violation = found.violation
            yield _command(
                _COMMANDS[violation.level],
                f"{violation.message}\nfix: {violation.fix}",
                file=str(found.place.file or report.source.path),
                line=str(found.place.line),
                col=str(found.place.column),
                title=violation.rule,
            )
        if report.not_judged:
            yield _command(
                "notice",
                ", ".join(map(str, report.not_judged)),
                file=str(report.source.path),
                line="1",
                title="not judged",
            )
    for one in run.unread:
        yield _command("error", str(one), file=str(one.path), line="1", title="cannot be read")


def _command(name: str, message: str, **properties: str) -> str:
    shown = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {shown}::{_data(message)}"


def _data(text: str) -> str:
    text = visible(text, whole="\t\r\n")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
