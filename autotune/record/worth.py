"""What each change from the baseline to the best is worth: `ladder.json` in a study's folder."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from autotune.contract import KnobValue
from autotune.record.answer import Speedup
from autotune.record.found import read_found

LADDER_FILE = "ladder.json"
LADDER_FOLDER = "ladder"
"""Folder beside it for the ladder's own trials, apart from the search's."""

Place = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class LadderConfiguration:
    """A configuration between the baseline and the best, as it ran."""

    changes: list[str]
    """Knobs at the best one's values; the others are at the baseline's."""
    candidate: dict[str, KnobValue]
    samples_per_s: Annotated[float, Field(gt=0, lt=math.inf)] | None
    """Geometric mean of its runs; None: none was measured."""
    peak_memory_bytes: int | None
    """Highest of its runs."""
    loss: float | None
    """Mean over its runs of the loss in the last step that all configurations have."""
    guard: str
    """What the convergence guard says of it beside the baseline; empty: nothing."""
    n_runs: int
    why: str
    """Why it has no figure; empty: it has one."""


@dataclass(frozen=True, kw_only=True)
class LadderStep:
    """One change, and what it brings where the others stand as they do."""

    change: str
    """The knob with its value: `zero.stage=3`."""
    place: Place
    """Index of the configuration with the change."""
    before: Place
    """Index of the one without it."""
    gain: Speedup | None
    """Samples/s with the change over those without; None: one of them has no figure."""


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """Two changes that bring together what they do not bring one by one."""

    first: str
    second: str
    first_alone: Speedup | None
    first_after_second: Speedup | None
    second_alone: Speedup | None
    second_after_first: Speedup | None
    factor: Speedup
    """Gain of both together over the product of their gains alone."""


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The way from the baseline to the best, change by change."""

    study: str
    target: str
    """What is reached: `best`, or the settings that were asked for."""
    n_rounds: int
    loss_step: int
    """Step of the losses, from 1; 0: no losses."""
    configurations: Annotated[list[LadderConfiguration], Field(min_length=1, max_length=300)]
    """The baseline first, the target last."""
    up: list[LadderStep]
    """From the baseline to the target, in the order of the gains alone."""
    alone: list[LadderStep]
    """Each change alone, from the baseline."""
    out: list[LadderStep]
    """Each change as the last one: the target over the target without it."""
    interactions: list[Interaction]
    gain: Speedup | None
    """The target over the baseline."""
    device_name: str
    version: Literal[1] = 1


def read_ladder(folder: Path) -> Ladder | None:
    """The last ladder of a study; None if there is none, or it is unreadable."""
    ladder = read_found(Ladder, folder / LADDER_FILE)
    if ladder is None:
        return None
    steps = (*ladder.up, *ladder.alone, *ladder.out)
    places = [place for step in steps for place in (step.place, step.before)]
    return ladder if max(places, default=0) < len(ladder.configurations) else None
