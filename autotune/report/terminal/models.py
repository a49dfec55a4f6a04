"""The shipped models in a terminal."""

from collections.abc import Sequence

from rich.console import Console

from autotune.job.published import Preset
from autotune.report.terminal.tables import plain_table


def print_models(console: Console, models: Sequence[Preset]) -> None:
    """Print a row per model."""
    table = plain_table("*model", ">params", ">layers", ">hidden", ">tokens", "*config.json of")
    for model in models:
        table.add_row(
            model.name,
            _count(model.n_params),
            str(model.n_layers),
            str(model.hidden),
            str(model.longest),
            model.repository or "nobody: small, for tests and demos",
        )
    console.print(table)


def _count(n_params: int | None) -> str:
    if n_params is None:
        return "-"
    return f"{n_params / 1e9:.3g}B" if n_params >= 999.5e6 else f"{n_params / 1e6:.3g}M"
