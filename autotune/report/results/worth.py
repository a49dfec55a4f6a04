"""What a ladder says, as tables and facts: the same in a terminal and on the page."""

from collections.abc import Sequence
from typing import Any

from autotune.base.telling import Fact, tell
from autotune.base.units import format_bytes, format_gain_interval, format_rate
from autotune.record.answer import Speedup
from autotune.record.worth import Ladder, LadderStep


def ladder_tables(ladder: Ladder) -> list[dict[str, Any]]:
    """The steps up; with several changes also each alone, and each as the last one.

    Returns:
        `columns` and `rows` of each table, and which columns hold `numbers`.
    """
    parts = {"one after the other": ladder.up}
    if len(ladder.up) > 1:
        parts |= {"each alone": ladder.alone, "each as the last": ladder.out}
    columns = ["samples/s", "gain", "memory", *(["loss"] if ladder.loss_step else [])]
    return [
        {
            "columns": [title, *columns],
            "rows": _rows(ladder, steps, with_start=steps is ladder.up),
            "numbers": range(1, 1 + len(columns)),
        }
        for title, steps in parts.items()
    ]


def ladder_facts(ladder: Ladder) -> list[Fact]:
    """The whole gain, what interacts, and what has no figure or trains otherwise."""
    return tell("ladder", {"ladder": ladder})


def describe_gain(gain: Speedup | None) -> str:
    """`1.83x (1.67 to 2.00)`; `-` where there is none."""
    if gain is None:
        return "-"
    if gain.low == gain.high:
        return "does not act"
    return f"{gain.ratio:.2f}x ({format_gain_interval(gain.low, gain.high)})"


def _rows(ladder: Ladder, steps: Sequence[LadderStep], *, with_start: bool) -> list[list[str]]:
    rows = [_row(ladder, step.change, step.place, step) for step in steps]
    if with_start and steps:
        rows.insert(0, _row(ladder, "the baseline", steps[0].before, None))
    return rows


def _row(ladder: Ladder, name: str, place: int, step: LadderStep | None) -> list[str]:
    ran = ladder.configurations[place]
    return [
        name,
        "-" if ran.samples_per_s is None else format_rate(ran.samples_per_s),
        "" if step is None else describe_gain(step.gain),
        format_bytes(ran.peak_memory_bytes) + _memory_change(ladder, step),
        *(["-" if ran.loss is None else f"{ran.loss:.4f}"] if ladder.loss_step else []),
    ]


def _memory_change(ladder: Ladder, step: LadderStep | None) -> str:
    """` (-40%)` of the peak before the step; empty where it is not known."""
    if step is None:
        return ""
    after, before = (ladder.configurations[n].peak_memory_bytes for n in (step.place, step.before))
    return "" if not after or not before else f" ({after / before - 1:+.0%})"
