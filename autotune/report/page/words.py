"""Words and units of the page: every size in GiB, and the word for what a search chose."""

from autotune.report.results.study import StudyReport

GIB = 2**30


def gib(size_bytes: float | None) -> str:
    """A size in GiB with three significant digits, so that any two compare; `-`: unknown."""
    if size_bytes is None or size_bytes != size_bytes:
        return "-"
    size = size_bytes / GIB
    return f"{size:,.0f} GiB" if abs(size) >= 1000 else f"{size:#.3g}".rstrip(".") + " GiB"


def capitalized(text: str) -> str:
    """A text as a sentence begins; the rest of it stays as it is."""
    return text[:1].upper() + text[1:]


def best_word(report: StudyReport) -> str:
    """What the objective makes of the chosen one: on a front it is no `best`, but the knee."""
    return "knee" if report.objective.wish.name == "pareto" else "best"
