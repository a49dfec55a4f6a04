"""Findings for other tools: as SARIF 2.1.0, and as workflow commands of GitHub Actions.

Code scanning of GitHub and many editors read SARIF, and GitHub shows commands beside the lines:
https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html and
https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune import __version__
from autotune.base.text import visible
from autotune.check.rules_page import markdown_of, page_of
from autotune.check.run import CheckRun
from autotune.space.rule import Level

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_COMMANDS: dict[Level, str] = {"error": "error", "warning": "warning", "note": "notice"}
_UNREAD, _NOT_JUDGED = "file.unread", "file.not_judged"
_NO_RULES = {
    _UNREAD: "The file cannot be read.",
    _NOT_JUDGED: "Something that decides whether it runs could not be read.",
}
"""What is told beside the findings of rules, and what it means."""


@dataclass(frozen=True, kw_only=True)
class _Annotation:
    """A finding, what was not judged of a file, or why one is not read; with its place."""

    rule: str
    title: str
    level: Level
    message: str
    fix: str = ""
    path: Path
    line: int = 1
    column: int | None = None
    """None: it is about the file whole."""


def _annotations(run: CheckRun) -> Iterator[_Annotation]:
    for report in run.reports:
        for found in report.found:
            violation, place = found.violation, found.place
            yield _Annotation(
                rule=violation.rule,
                title=violation.rule,
                level=violation.level,
                message=violation.message,
                fix=violation.fix,
                path=place.file or report.source.path,
                line=place.line,
                column=place.column,
            )
        if report.not_judged:
            text, path = ", ".join(map(str, report.not_judged)), report.source.path
            yield _Annotation(
                rule=_NOT_JUDGED, title="not judged", level="note", message=text, path=path
            )
    for one in run.unread:
        yield _Annotation(
            rule=_UNREAD, title="cannot be read", level="error", message=str(one), path=one.path
        )


def github_lines(run: CheckRun) -> Iterator[str]:
    """A command for every finding, for what was not judged, and for every unread file."""
    for one in _annotations(run):
        places = {"file": one.path, "line": one.line, "col": one.column, "title": one.title}
        shown = ",".join(
            f"{name}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
            for name, value in places.items()
            if value is not None
        )
        is_about_rule = one.rule not in _NO_RULES
        text = f"{one.message}\nfix: {one.fix}" if is_about_rule else one.message
        yield f"::{_COMMANDS[one.level]} {shown}::{_escaped(text)}"


def _escaped(text: str) -> str:
    text = visible(text, whole="\t\r\n")
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def sarif_log(run: CheckRun) -> dict[str, Any]:
    """One run of the tool, with the rules that found something."""
    found = [*_annotations(run)]
    named = {one.rule for one in found}
    names = [*sorted(named - _NO_RULES.keys()), *(name for name in _NO_RULES if name in named)]
    results = [_result(one, names.index(one.rule)) for one in found]
    driver = {"name": "autotune", "version": __version__, "rules": [*map(_rule, names)]}
    log = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [log]}


def _rule(name: str) -> dict[str, Any]:
    if name in _NO_RULES:
        return {"id": name, "shortDescription": {"text": _NO_RULES[name]}}
    page = page_of(name)
    says = page.says or next((one.says for one in page.examples if one.says), name)
    text = markdown_of(page)
    return {
        "id": name,
        "shortDescription": {"text": says},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": page.level},
    }


def _result(one: _Annotation, rule_index: int) -> dict[str, Any]:
    texts = {_UNREAD: one.message, _NOT_JUDGED: f"Not judged: {one.message}"}
    # Relative to the folder of the run where the path is, as code scanning wants it.
    is_whole = one.path.is_absolute()
    uri = one.path.as_uri() if is_whole else quote(os.fsencode(one.path.as_posix()))
    region = {"startLine": one.line, "startColumn": one.column or 1}
    place = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": one.rule,
        "ruleIndex": rule_index,
        "level": one.level,
        "message": {"text": texts.get(one.rule, f"{one.message}. Fix: {one.fix}")},
        "locations": [{"physicalLocation": place}],
    }
