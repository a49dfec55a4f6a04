"""The facts of a story, as tests ask for them."""

from autotune.report.story import Story
from autotune.report.telling import Fact
from autotune.report.verdict import verdict_of


def facts_of(story: Story) -> list[Fact]:
    """Those above the table, and those below it."""
    verdict = verdict_of(story)
    return [*verdict.facts, *verdict.notes]
