"""Findings as SARIF 2.1.0, which code scanning of GitHub and many editors read.

Its form: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune import __version__
from autotune.check import CheckReport, Found
from autotune.check.rules_page import markdown_of, page_of
from autotune.check.run import CheckRun
from autotune.space.rule import Level

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)

_UNREAD, _NOT_JUDGED = "file.unread", "file.not_judged"


def sarif_log(run: CheckRun) -> dict[str, Any]:
    """One run of the tool, with the rules that found something."""
    found = [(report, one) for report in run.reports for one in report.found]
    names = sorted({one.violation.rule for _, one in found})
    rules = [_rule(name) for name in names]
    if run.unread:
        rules.append({"id": _UNREAD, "shortDescription": {"text": "The file cannot be read."}})
    open_ = [report for report in run.reports if report.not_judged]
    if open_:
        text = "Something that decides whether it runs could not be read."
        rules.append({"id": _NOT_JUDGED, "shortDescription": {"text": text}})
    results = [_result(report, one, names.index(one.violation.rule)) for report, one in found]
    results += [
        _located(_UNREAD, len(names), "error", str(one), one.path, line=1, column=1)
        for one in run.unread
    ]
    for report in open_:
        text = f"Not judged: {', '.join(map(str, report.not_judged))}"
        place = {"line": 1, "column": 1}
        results.append(
            _located(_NOT_JUDGED, len(rules) - 1, "note", text, report.source.path, **place)
        )
    driver = {"name": "autotune", "version": __version__, "rules": rules}
    log = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [log]}


def _rule(name: str) -> dict[str, Any]:
    page = page_of(name)
    says = page.says or next((one.says for one in page.examples if one.says), name)
    text = markdown_of(page)
    return {
        "id": name,
        "shortDescription": {"text": says},
        "help": {"text": text, "markdown": text},
        "defaultConfiguration": {"level": page.level},
    }


def _result(report: CheckReport, found: Found, rule_index: int) -> dict[str, Any]:
    violation = found.violation
    return _located(
        violation.rule,
        rule_index,
        violation.level,
        f"{violation.message}. Fix: {violation.fix}",
        found.place.file or report.source.path,
        line=found.place.line,
        column=found.place.column,
    )


def _located(
    rule: str, rule_index: int, level: Level, text: str, path: Path, *, line: int, column: int
) -> dict[str, Any]:
    region = {"startLine": line, "startColumn": column}
    place = {"artifactLocation": {"uri": _uri(path)}, "region": region}
    return {
        "ruleId": rule,
        "ruleIndex": rule_index,
        "level": level,
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }


def _uri(path: Path) -> str:
    """Relative to the folder of the run where the path is, as code scanning wants it."""
    return path.as_uri() if path.is_absolute() else quote(os.fsencode(path.as_posix()))
