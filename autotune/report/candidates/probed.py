"""Memory that single ranks allocated, beside the predicted: for a terminal, and as data."""

import dataclasses
from typing import Any

from rich.console import Console

from autotune.planning.probed import ProbedEstimate
from autotune.report.candidates.explained import estimate_as_dict
from autotune.report.terminal.tables import print_told

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
    states = {name: _predicted(found, name) for name in _STATES}
    values = {
        "found": found,
        "job": found.predicted.outlook.job,
        "names": _STATES,
        "states": states,
    }
    print_told(console, "probed", values)


def _predicted(found: ProbedEstimate, name: str) -> float:
    return float(getattr(found.states, name)[0])
