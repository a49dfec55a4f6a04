"""Pages of the site that the code tells: knobs, rules, columns of the table."""

from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.base.templates import Templates
from autotune.check.rules_page import all_names, markdown_of, page_of
from autotune.engines.base import installed_engines
from autotune.record.table import SUMMARY, TABLE_VERSION, schema_of
from autotune.record.tried import recorded
from autotune.report.knobs_page import facts_of
from autotune.space.knob import knobs_of


def knobs() -> str:
    """Every knob of every engine that trains."""
    drives = [plugin.name for plugin in installed_engines() if plugin.is_driven]
    names = [DEFAULT_ENGINE, *(name for name in drives if name != DEFAULT_ENGINE)]
    text = Templates().text("report/text/knobs.md.j2", {"engines": [*map(_of_engine, names)]})
    return f"{text.rstrip()}\n"


def _of_engine(engine: str) -> dict[str, Any]:
    """An engine's runs, and its knobs with their facts."""
    runs = recorded(engine)
    facts = [(knob, facts_of(knob, runs)) for knob in knobs_of(engine).values()]
    return {"name": engine.capitalize(), "runs": runs, "knobs": facts}


def rules() -> str:
    """Every rule of `check`."""
    sections = "\n".join(markdown_of(page_of(name)) for name in all_names())
    return Templates().text("report/text/rules.md.j2", {}) + sections


def table() -> str:
    """Every column with its type, unit and meaning."""
    values = {"columns": schema_of(DEFAULT_ENGINE), "summary": SUMMARY, "version": TABLE_VERSION}
    return Templates().text("report/text/table.md.j2", values)
