"""Words of the documentation are those that the program prints."""

import re
from pathlib import Path

from autotune.contract import Outcome

DOCS = Path(__file__).resolve().parents[2] / "docs"


def row_of(page: str, name: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return next(line for line in text.splitlines() if line.startswith(f"| {name} |"))


def test_the_glossary_explains_every_outcome() -> None:
    named = re.findall(r"`(\w+)`", row_of("glossary.md", "outcome"))
    assert named == [outcome.value for outcome in Outcome]


def test_the_first_steps_name_outcomes_as_the_table_shows_them() -> None:
    named = set(re.findall(r"`([^`]+)`", row_of("start.md", "`outcome`")))
    assert named - {"outcome", "best", "baseline"} <= {outcome.value for outcome in Outcome}
