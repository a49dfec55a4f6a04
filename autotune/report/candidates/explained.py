"""Why a candidate is refused or ranked where it is: in a terminal, and as data."""

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from autotune.base.units import format_bytes, format_seconds
from autotune.planning.explained import Estimated, Explained, JudgedCandidate, Neighbour
from autotune.report.candidates.ranking import (
    asks_facts,
    assumptions,
    evidence_in_words,
    figures_as_dict,
    held_in_words,
    host_facts,
    learned_as_dict,
    lengths_facts,
    needs_facts,
    no_files_facts,
    parts_as_dict,
    parts_of,
    rank_facts,
    routing_facts,
    shares,
    training_facts,
)
from autotune.report.terminal.tables import plain_table, print_facts
from autotune.space.candidate import format_value
from autotune.space.knob import knobs_of
from autotune.space.knobs import changing_knobs
from autotune.space.rule import Violation

_ALIKE = 0.005
"""Neighbours whose time and memory both differ by less than this share are one line together."""


def judged_as_dict(found: JudgedCandidate) -> dict[str, Any]:
    """For programs: the candidate, and whether it is legal."""
    return {
        "is_predicted": True,
        "device_name": found.environment.device_name,
        "world": found.job.world,
        "candidate": dict(found.knobs),
        "notes": list(found.notes),
        "violations": _violations(found.violations),
        "needs": list(found.needs),
        "asks": list(found.asks),
        "no_files": found.no_files,
    }


def estimate_as_dict(found: Estimated) -> dict[str, Any]:
    """For programs; every figure is predicted."""
    return {
        **judged_as_dict(found),
        **figures_as_dict(found.job, found.prediction, 0, found.reach),
        "changes_training": changing_knobs(found.candidate, knobs_of(found.job.engine)),
        "assumed": assumptions(found.reach, 0),
        **parts_as_dict(found.prediction, 0),
        **learned_as_dict(found.learned),
    }


def explained_as_dict(found: Explained) -> dict[str, Any]:
    """For programs; every figure is predicted."""
    return {
        **estimate_as_dict(found),
        "rank": found.place,
        "n_ranked": found.n_ranked,
        "pred_slower_than_first_of_choice": found.slower_than_first,
        "is_in_space": found.is_in_lattice,
        "cheapest_fit": _neighbour(found.cheapest_fit),
        "cheapest_legal": _neighbour(found.cheapest_legal),
        "ranks": [line for _, line in rank_facts(found.candidate, found.environment)],
        "neighbours": [_neighbour(neighbour) for neighbour in found.neighbours],
    }


def print_estimate(console: Console, found: Estimated) -> None:
    """Print what is predicted, by part."""
    print_title(console, found)
    print_facts(console, [*verdict(found), *_figures(found)])


def print_explained(console: Console, found: Explained) -> None:
    """Print the verdict, what dominates, and each knob one step up and down."""
    print_title(console, found)
    print_facts(console, _facts(found))
    alike, differing = _split(found)
    if differing:
        console.print(_table(found, differing))
    print_facts(console, _unlisted(found, alike))


def print_title(console: Console, found: JudgedCandidate) -> None:
    """Print what is predicted of."""
    title = (
        f"predicted, nothing was run: {found.described}, "
        f"{found.job.model.name} on {found.job.world} x {found.environment.device_name}"
    )
    console.print(Text(title, style="bold"), soft_wrap=False)


def verdict(found: JudgedCandidate) -> list[tuple[str, str]]:
    """Notes on settings, and the rules that refuse the candidate."""
    facts = [("note", note) for note in found.notes]
    for violation in found.violations:
        facts += [("refused", f"{violation.rule}: {violation.message}"), ("fix", violation.fix)]
    return facts


def _figures(found: Estimated) -> list[tuple[str, str]]:
    seconds, sizes = parts_of(found.prediction, 0)
    low_s, high_s, low_bytes, high_bytes = found.reach.around(found.prediction, 0)
    held = f"hold {held_in_words(found.learned)}"
    return [
        (
            "step",
            f"{format_seconds(found.step_time_s)} ({format_seconds(low_s)} to "
            f"{format_seconds(high_s)}): {shares(seconds, 5)}",
        ),
        (
            "memory",
            f"{format_bytes(found.peak_memory_bytes)} ({format_bytes(low_bytes)} to "
            f"{format_bytes(high_bytes)}), fits with a probability of "
            f"{found.fit_probability:.0%}: {shares(sizes, 5)}",
        ),
        *host_facts(found.prediction, 0),
        ("intervals", "; ".join(filter(None, [held, evidence_in_words(found.reach, 0)]))),
        *routing_facts(found.reach, 0),
        *lengths_facts(found.job),
        *training_facts(found.candidate, found.job.engine),
        *needs_facts(found.needs),
        *asks_facts(found.asks),
        *no_files_facts(found.no_files),
    ]


def _facts(found: Explained) -> list[tuple[str, str]]:
    facts = verdict(found)
    if change := found.cheapest_legal:
        facts.append(("legal with", _in_words(change)))
    place = f"{found.place} of {found.n_ranked} distinct choices"
    if found.first:
        slower = f"{found.slower_than_first - 1:.1%} slower than"
        place += f", as a variant, {slower if found.slower_than_first > 1 else 'of'} {found.first}"
    if found.violations:
        place = f"none: it is refused; its step would be {place}"
    elif not found.is_in_lattice:
        place += f"; {found.home} does not hold it"
    facts.append(("rank", place))
    facts += _figures(found)
    if found.fit_probability < found.min_fit:
        change = found.cheapest_fit
        text = "no single change makes it fit" if change is None else _in_words(change)
        facts.append(("to fit", text))
    return facts + rank_facts(found.candidate, found.environment)


def _in_words(neighbour: Neighbour) -> str:
    return (
        f"{_step(neighbour)}: "
        f"{format_seconds(neighbour.step_time_s)}, {format_bytes(neighbour.peak_memory_bytes)}, "
        f"fits with a probability of {neighbour.fit_probability:.0%}"
    )


def _table(found: Explained, differing: Sequence[Neighbour]) -> Table:
    table = plain_table("one change", ">step", ">peak", ">fits")
    for neighbour in differing:
        table.add_row(
            _step(neighbour),
            _share(neighbour.step_time_s / found.step_time_s - 1),
            _share(neighbour.peak_memory_bytes / found.peak_memory_bytes - 1),
            f"{neighbour.fit_probability:.0%}",
        )
    return table


def _share(change: float) -> str:
    """A change as a signed per cent; what rounds to nothing has no sign of its own."""
    return f"{round(change, 3) + 0.0:+.1%}"


def _unlisted(found: Explained, alike: Sequence[str]) -> list[tuple[str, str]]:
    """Knobs of which no step makes a difference, and refused steps by what refuses them."""
    refused: dict[str, list[str]] = {}
    for neighbour in found.neighbours:
        if neighbour.violations:
            refused.setdefault(_rules(neighbour.violations), []).append(_step(neighbour))
    facts = [("the same", ", ".join(alike))] if alike else []
    if as_before := refused.pop(_rules(found.violations), []):
        text = f"as it is with {len(as_before)} other changes: {_rules(found.violations)}"
        facts.append(("refused", text))
    return facts + [("refused", f"{', '.join(steps)}: {rule}") for rule, steps in refused.items()]


def _step(neighbour: Neighbour) -> str:
    return f"{neighbour.knob}={format_value(neighbour.value)}"


def _rules(violations: Sequence[Violation]) -> str:
    return ", ".join(violation.rule for violation in violations)


def _split(found: Explained) -> tuple[list[str], Sequence[Neighbour]]:
    """Knobs of which no legal step makes a difference, and the legal steps of the others."""
    legal = [n for n in found.neighbours if not n.violations]
    differs = {
        n.knob
        for n in legal
        if abs(n.step_time_s / found.step_time_s - 1) >= _ALIKE
        or abs(n.peak_memory_bytes / found.peak_memory_bytes - 1) >= _ALIKE
    }
    alike = dict.fromkeys(n.knob for n in legal if n.knob not in differs)
    return list(alike), [n for n in legal if n.knob in differs]


def _neighbour(neighbour: Neighbour | None) -> dict[str, Any] | None:
    if neighbour is None:
        return None
    return {
        "knob": neighbour.knob,
        "value": neighbour.value,
        "violations": _violations(neighbour.violations),
        "pred_step_time_s": neighbour.step_time_s,
        "pred_peak_memory_bytes": neighbour.peak_memory_bytes,
        "pred_fit_probability": neighbour.fit_probability,
    }


def _violations(found: Sequence[Violation]) -> list[dict[str, str]]:
    return [{name: getattr(each, name) for name in ("rule", "message", "fix")} for each in found]
