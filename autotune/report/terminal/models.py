"""The shipped models in a terminal."""

from collections.abc import Sequence

from rich.console import Console

from autotune.job.published import Preset
from autotune.report.parts import tell_parts
from autotune.report.terminal.tables import print_parts

_FIGURES = 34
"""Columns of a terminal that the figures and the gaps of a row take."""


def print_models(console: Console, models: Sequence[Preset]) -> None:
    """Print a row per model."""
    room = console.width - _FIGURES - max((len(model.name) for model in models), default=0)
    print_parts(console, tell_parts("models", {"models": models, "room": room}))
