"""Words of the page: the one for what a search chose, and sentences."""

from autotune.report.results.study import StudyReport
from autotune.report.words import chosen_word


def capitalized(text: str) -> str:
    """A text as a sentence begins; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]


def best_word(report: StudyReport) -> str:
    """See `chosen_word`."""
    return chosen_word(report.objective.wish.name)
