"""A probe in a terminal: what was reached beside what the class promises, and what is slow."""

from rich.console import Console

from autotune.probe.run import Probe
from autotune.report.parts import tell_parts
from autotune.report.terminal.tables import print_parts


def print_probe(console: Console, probe: Probe) -> None:
    """Print a row per figure, then the warnings."""
    print_parts(console, tell_parts("probe_figures", {"probe": probe}))
