"""Why a candidate is refused or ranked where it is: in a terminal, and as data."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console

from autotune.planning.explained import Estimated, Explained, JudgedCandidate, Neighbour
from autotune.report.candidates.ranking import (
    assumptions,
    changes_of,
    figures_as_dict,
    forecast_values,
    learned_as_dict,
    neighbour_as_dict,
    parts_as_dict,
    rank_lines,
    violations_as_dicts,
)
from autotune.report.terminal.tables import print_told
from autotune.space.candidate import format_value
from autotune.space.rule import Violation

_ALIKE = 0.005
"""Neighbours whose time and memory both differ by less than this share are one line together."""


def judged_as_dict(found: JudgedCandidate) -> dict[str, Any]:
    """For programs: the candidate, and whether it is legal."""
    return {
        "is_predicted": True,
        "device_name": found.outlook.environment.device_name,
        "world": found.outlook.job.world,
        "candidate": dict(found.candidate.values),
        "notes": list(found.notes),
        "violations": violations_as_dicts(found.violations),
        "needs": list(found.outlook.needs(found.candidate)),
        "asks": list(found.outlook.asks(found.candidate)),
        "no_files": found.outlook.engine.no_files(),
    }


def estimate_as_dict(found: Estimated) -> dict[str, Any]:
    """For programs; every figure is predicted."""
    return {
        **judged_as_dict(found),
        **figures_as_dict(found.outlook, found.candidate, found.prediction, 0, found.reach),
        "changes_training": [*changes_of(found.candidate, found.outlook.job)],
        "assumed": assumptions(found.outlook, found.reach, 0),
        **parts_as_dict(found.prediction, 0),
        **learned_as_dict(found.outlook.learned),
    }


def explained_as_dict(found: Explained) -> dict[str, Any]:
    """For programs; every figure is predicted."""
    return {
        **estimate_as_dict(found),
        "rank": found.place,
        "n_ranked": found.n_ranked,
        "min_fit": found.min_fit,
        "pred_slower_than_first_of_choice": found.slower_than_first,
        "behind": dict(found.behind),
        "is_in_space": found.is_in_lattice,
        "cheapest_fit": found.cheapest_fit and neighbour_as_dict(found.cheapest_fit),
        "cheapest_legal": found.cheapest_legal and neighbour_as_dict(found.cheapest_legal),
        "ranks": rank_lines(found.candidate, found.outlook.environment),
        "neighbours": [*map(neighbour_as_dict, found.neighbours)],
    }


def print_estimate(console: Console, found: Estimated) -> None:
    """Print what is predicted, by part."""
    print_told(console, "estimate", _of_estimate(found))


def print_explained(console: Console, found: Explained) -> None:
    """Print the verdict, what dominates, and each knob one step up and down."""
    alike, differing = _split(found)
    before = [violation.rule for violation in found.violations]
    as_before: list[Neighbour] = []
    refused: dict[str, list[tuple[Neighbour, Violation]]] = {}
    for neighbour in found.neighbours:
        first = next((one for one in neighbour.violations if one.rule not in before), None)
        if first is not None:
            refused.setdefault(first.rule, []).append((neighbour, first))
        elif neighbour.violations:
            as_before.append(neighbour)
    values = {
        **_of_estimate(found),
        "is_placed": True,
        "step": _step,
        "differing": differing,
        "alike": alike,
        "as_before": as_before,
        "rules": ", ".join(before),
        "refused": refused,
    }
    print_told(console, "estimate", values)


def _of_estimate(found: Estimated) -> dict[str, Any]:
    """What `estimate.j2` tells."""
    known = forecast_values(found.outlook, found.candidate, found.prediction, 0, found.reach)
    return {**known, "found": found, "is_placed": False}


def _step(neighbour: Neighbour) -> str:
    changed = {**neighbour.along, neighbour.knob: neighbour.value}
    return " ".join(f"{name}={format_value(value)}" for name, value in changed.items())


def _split(found: Explained) -> tuple[list[str], Sequence[Neighbour]]:
    """Knobs of which no legal step makes a difference; the legal steps of others, best first."""
    legal = [n for n in found.neighbours if not n.violations]
    differs = {
        n.knob
        for n in legal
        if n.changes_training
        or abs(n.step_time_s / found.step_time_s - 1) >= _ALIKE
        or abs(n.peak_memory_bytes / found.peak_memory_bytes - 1) >= _ALIKE
    }
    alike = dict.fromkeys(n.knob for n in legal if n.knob not in differs)
    return list(alike), sorted((n for n in legal if n.knob in differs), key=found.by_use)
