"""Memory that single ranks allocated, beside the predicted: for a terminal, and as data."""

import dataclasses
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.telling import tell
from autotune.base.units import format_bytes
from autotune.planning.probed import ProbedEstimate
from autotune.report.candidates.explained import estimate_as_dict
from autotune.report.terminal.tables import plain_table, print_facts

_STATES = {
    "params_bytes": "weights",
    "grads_bytes": "gradients",
    "optimizer_bytes": "optimizer",
}
"""Field of a rank's memory, and of the prediction's -> its column."""


def probed_as_dict(found: ProbedEstimate) -> dict[str, Any]:
    """For programs: the prediction, and each rank that ran."""
    return {
        **estimate_as_dict(found.predicted),
        "pred_states_bytes": {name: _predicted(found, name) for name in _STATES},
        "probed_ranks": [dataclasses.asdict(rank) for rank in found.ranks],
        "probe_took_s": found.took_s,
    }


def print_probed(console: Console, found: ProbedEstimate) -> None:
    """Print what each rank allocated, and what is predicted of the fullest."""
    values = {"found": found, "job": found.predicted.outlook.job}
    (_, title), *facts = tell("probed", values)
    console.print(Text(title, style="bold"))
    console.print(_table(found))
    print_facts(console, facts)


def _table(found: ProbedEstimate) -> Table:
    columns = (f">{name}" for name in (*_STATES.values(), "peak"))
    table = plain_table("rank", ">layers", *columns)
    for rank in found.ranks:
        sizes = (format_bytes(getattr(rank, name)) for name in (*_STATES, "peak_memory_bytes"))
        table.add_row(f"{rank.rank}", f"{rank.n_layers}", *sizes)
    table.add_section()
    parts = (format_bytes(_predicted(found, name)) for name in _STATES)
    table.add_row("predicted, the fullest", "", *parts, "")
    return table


def _predicted(found: ProbedEstimate, name: str) -> float:
    return float(getattr(found.states, name)[0])
