"""The shipped models in a terminal."""

from collections.abc import Sequence

from rich.console import Console

from autotune.job.published import Preset
from autotune.report.terminal.tables import plain_table

_FIGURES = 34
"""Columns of a terminal that the figures and the gaps of a row take."""


def print_models(console: Console, models: Sequence[Preset]) -> None:
    """Print a row per model."""
    table = plain_table("*model", ">params", ">layers", ">hidden", ">tokens", "*config.json of")
    room = console.width - _FIGURES - max((len(model.name) for model in models), default=0)
    for model in models:
        source = model.repository or "nobody: small, for tests and demos"
        table.add_row(
            model.name,
            _count(model.n_params),
            str(model.n_layers),
            str(model.hidden),
            str(model.longest),
            source if len(source) <= room else source.replace("/", "/\n"),
        )
    console.print(table)


def _count(n_params: int | None) -> str:
    if n_params is None:
        return "-"
    return f"{n_params / 1e9:.3g}B" if n_params >= 999.5e6 else f"{n_params / 1e6:.3g}M"
