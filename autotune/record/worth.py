"""What each change from the baseline to the best is worth: `ladder.json` in a study's folder."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import StudyError
from autotune.contract import ContractError, KnobValue, read_json, write_json
from autotune.record.answer import Speedup
from autotune.record.facts import read_fact

LADDER_FILE = "ladder.json"
LADDER_FOLDER = "ladder"
"""Folder beside it for the ladder's own trials, apart from the search's."""
LADDER_VERSION = 1
_MOST_STEPS = 100
_MOST_RATIO = 1e6


@dataclass(frozen=True, kw_only=True)
class LadderConfiguration:
    """A configuration between the baseline and the best, as it ran."""

    changes: list[str]
    """Knobs at the best one's values; the others are at the baseline's."""
    candidate: dict[str, KnobValue]
    samples_per_s: float | None
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
    place: int
    """Index of the configuration with the change."""
    before: int
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
    configurations: list[LadderConfiguration]
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
    version: int = LADDER_VERSION


def write_ladder(folder: Path, ladder: Ladder) -> Path:
    """Write `ladder.json`; an earlier one is replaced.

    Raises:
        StudyError: The folder cannot be written.
    """
    path = folder / LADDER_FILE
    try:
        write_json(path, dataclasses.asdict(ladder))
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be written: {error.strerror}",
            "free some space or mend the permissions, then ask for the ladder again",
        ) from error
    return path


def read_ladder(folder: Path) -> Ladder | None:
    """The last ladder of a study; None if there is none, or it is unreadable or cannot be."""
    try:
        ladder = read_fact(Ladder, read_json(folder / LADDER_FILE))
    except ContractError:
        return None
    return ladder if ladder is not None and _can_be(ladder) else None


def _can_be(ladder: Ladder) -> bool:
    steps = (*ladder.up, *ladder.alone, *ladder.out)
    gains = [step.gain for step in steps] + [ladder.gain]
    gains += [each.factor for each in ladder.interactions]
    n = len(ladder.configurations)
    return (
        ladder.version == LADDER_VERSION
        and 0 < n <= 3 * _MOST_STEPS
        and len(steps) <= 3 * _MOST_STEPS
        and all(0 <= step.place < n and 0 <= step.before < n for step in steps)
        and all(gain is None or _is_gain(gain) for gain in gains)
        and all(_is_rate(each.samples_per_s) for each in ladder.configurations)
    )


def _is_gain(gain: Speedup) -> bool:
    return 0 <= gain.low <= gain.ratio <= gain.high and gain.ratio <= _MOST_RATIO


def _is_rate(rate: float | None) -> bool:
    return rate is None or 0 < rate < math.inf
