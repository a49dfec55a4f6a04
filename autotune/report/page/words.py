"""Words of the page: the one for what a search chose, and sentences."""

from autotune.report.results.study import StudyReport


def capitalized(text: str) -> str:
    """A text as a sentence begins; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]


def best_word(report: StudyReport) -> str:
    """What the objective makes of the chosen one: on a front it is no `best`, but the knee."""
    return "knee" if report.objective.wish.name == "pareto" else "best"
