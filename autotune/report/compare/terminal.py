"""A comparison of studies in a terminal."""

from rich.console import Console
from rich.text import Text

from autotune.base.telling import tell
from autotune.report.compare import tables
from autotune.report.compare.comparison import StudyComparison
from autotune.report.compare.kinds import describe_kinds
from autotune.report.terminal.tables import plain_table, print_facts


def print_comparison(console: Console, comparison: StudyComparison) -> None:
    """Print the verdicts, then the outcomes, the bests, their knobs and what they share."""
    for verdict in comparison.verdicts:
        console.print(Text(verdict.sentence, style="bold"))
    print_facts(console, [(name, str(s.folder)) for name, s in comparison.stories.items()])
    console.print()
    _print(console, tables.outcomes(comparison))
    _print(console, tables.bests(comparison))
    if comparison.kinds:
        print_facts(console, describe_kinds(comparison.kinds))
        console.print()
    if len(comparison.shared_knobs):
        _print(console, tables.knobs(comparison))
    if apart := comparison.own_knobs:
        console.print("knobs that act in some of the bests alone")
        print_facts(console, apart)
        console.print()
    if comparison.candidates.empty:
        console.print("no candidate was measured for the same job in two of them")
        return
    _print(console, tables.candidates(comparison))
    ((_, about),) = tell("ratios", {"first": next(iter(comparison.stories))})
    console.print(Text(about, style="dim"))


def _print(console: Console, cells: tables.ComparisonTable) -> None:
    # Settings alone may wrap: a figure that is cut short is a wrong one.
    headers = [f"*{name}" if name == "settings" else name for name in cells.columns]
    headers = [f">{name}" if i in cells.numbers else name for i, name in enumerate(headers)]
    table = plain_table(*headers)
    for row in cells.rows:
        table.add_row(*map(Text, row))
    console.print(table)
    console.print()
