"""A long list of names: in columns on a terminal, one to a line elsewhere."""

from collections.abc import Sequence

from rich.columns import Columns
from rich.console import Console
from rich.text import Text


def print_names(console: Console, names: Sequence[str]) -> None:
    """Print names; a pipe gets one to a line, as other tools read them."""
    if console.is_terminal:
        texts = [Text(name) for name in names]
        console.print(Columns(texts, padding=(0, 2), column_first=True))
    else:
        console.out("\n".join(names), highlight=False)
