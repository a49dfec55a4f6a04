"""The way from the baseline to the best in a terminal: a row per step."""

from rich.console import Console
from rich.text import Text

from autotune.record.worth import Ladder
from autotune.report.results.worth import ladder_facts, ladder_tables
from autotune.report.terminal.tables import plain_table, print_facts


def print_ladder(console: Console, ladder: Ladder) -> None:
    """Print the steps up, each change alone and each as the last one, and what interacts."""
    where = f"{ladder.study}: from the baseline to {ladder.target}, {ladder.n_rounds} rounds"
    console.print(Text(f"{where}, {ladder.device_name}", style="bold"), soft_wrap=False)
    for one in ladder_tables(ladder):
        title, *figures = one["columns"]
        table = plain_table(f"*{title}", *(f">{name}" for name in figures))
        for row in one["rows"]:
            table.add_row(*row)
        console.print(table)
        console.print()
    print_facts(console, ladder_facts(ladder))
