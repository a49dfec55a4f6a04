"""The facts of a story and what is printed, as tests ask for them."""

import io
import re
from collections.abc import Callable
from typing import Any

from rich.console import Console

from autotune.base.templates import Fact, Templates
from autotune.report.page.page import render_page
from autotune.report.story import Story
from autotune.report.verdict import verdict_of


def printed(show: Callable[..., object], *shown: Any, width: int = 80, **more: Any) -> str:
    """What a function prints to a console of a width, whatever the environment says of it."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, _environ={"TERM": "xterm"})
    show(console, *shown, **more)
    return out.getvalue()


def macro(name: str, *values: Any) -> str:
    """What a macro of the figures tells."""
    figures = Templates()._environment.get_template("report/text/figures.j2").module
    return str(getattr(figures, name)(*values)).strip()


def facts_of(story: Story) -> list[Fact]:
    """Those above the table, and those below it."""
    verdict = verdict_of(story)
    return [*verdict.facts, *verdict.notes]


def cells_of(story: Story, name: str) -> dict[int, str]:
    """What the page's table of trials says in one class of its cells, by the trial's number."""
    rows = re.findall(r'<tr data-trial="(\d+)"(.*?)</tr>', render_page(story, Templates()), re.S)
    found = {int(number): re.search(rf'{name}">(.*?)</span>', row) for number, row in rows}
    return {number: cell[1] if cell else "" for number, cell in found.items()}
