"""Result of a soak: `soak.json` in a study's folder, or in that of an export."""

import dataclasses
import hashlib
import math
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import StudyError
from autotune.base.units import format_bytes, format_count
from autotune.contract import METER_SLACK, ContractError, read_json, write_json
from autotune.record.facts import read_fact

SOAK_FILE = "soak.json"
SOAK_FOLDER = "soak"
"""Folder beside it for the soak's own trials, apart from the search's."""
SOAK_VERSION = 1

_MOST_MINUTES = 1e6
_LEAST_STEP_S = 1e-6
_MOST_RATE = 1e12
_MOST_BYTES = 2**50
"""Largest figures that a soak can have."""


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How one memory meter moved, on the rank and in the half where it grew most."""

    meter: str
    slope_bytes_per_hour: float
    allowed_bytes_per_hour: float
    watched_s: float
    """Seconds behind the slope, warm-up left out."""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The checkpoint on the way."""

    steps: int
    """Optimizer steps that were trained when it was saved."""
    size_bytes: int
    save_s: float
    load_s: float | None
    """None: nothing was resumed."""
    steps_compared: int
    """Steps that were trained both after saving and after resuming."""
    loss_deviation: float | None
    """Largest difference of their losses, as a share; None: nothing was compared."""
    loss_tolerance: float


@dataclass(frozen=True, kw_only=True)
class SoakResult:
    """Result of a soak of one configuration."""

    passed: bool
    problems: list[str]
    """Why it did not pass, a sentence each."""
    source: str
    """The study or the export folder that the configuration came from."""
    trial: int | None
    """Number of the study's trial; None for an export."""
    candidate_hash: str
    ds_config_digest: str
    """SHA-256 of the rendered ds_config.json."""
    seq_len: int
    minutes_asked: float
    minutes: float
    """Measured training, both halves; start-up, warm-up and the checkpoint are left out."""
    steps: int
    """Measured optimizer steps, both halves."""
    samples_per_s: float | None
    peak_memory_bytes: int | None
    memory_limit_bytes: int | None
    growth: list[Growth]
    checkpoint: Resumed | None
    """None: it did not get so far."""
    device_name: str
    deepspeed_version: str
    torch_version: str
    started_at_s: float
    """Wall-clock time (Unix)."""
    too_short: bool = False
    """Whether all that stands against it is that it was too short to judge."""
    version: int = SOAK_VERSION

    def is_of(self, files: dict[str, str]) -> bool:
        """Whether it ran these configuration files, to the letter."""
        return self.ds_config_digest == digest_of(files)


def digest_of(files: dict[str, str]) -> str:
    """Identity of a rendered configuration."""
    text = "".join(files[name] for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def write_soak(folder: Path, soak: SoakResult) -> Path:
    """Write `soak.json`; an earlier one is replaced.

    Raises:
        StudyError: The folder cannot be written.
    """
    path = folder / SOAK_FILE
    try:
        write_json(path, dataclasses.asdict(soak))
    except OSError as error:
        raise StudyError(
            f"{path}: cannot be written: {error.strerror}",
            "free some space or mend the permissions, then soak again",
        ) from error
    return path


def read_soak(folder: Path) -> SoakResult | None:
    """The last soak of a folder; None if there was none, or if it is unreadable or cannot be."""
    try:
        soak = read_fact(SoakResult, read_json(folder / SOAK_FILE))
    except ContractError:
        return None
    return soak if soak is not None and _can_be(soak) else None


def _can_be(soak: SoakResult) -> bool:
    """Whether a soak can have found this: figures within what there is, and its own verdict."""
    sizes = (soak.peak_memory_bytes, soak.memory_limit_bytes)
    figures_can_be = (
        soak.version == SOAK_VERSION
        and 0 < soak.minutes_asked <= _MOST_MINUTES
        and 0 <= soak.minutes <= _MOST_MINUTES
        and 0 <= soak.steps <= soak.minutes * 60 / _LEAST_STEP_S
        and soak.seq_len > 0
        and (soak.trial is None or soak.trial >= 0)
        and (soak.samples_per_s is None or 0 < soak.samples_per_s <= _MOST_RATE)
        and all(size is None or 0 < size <= _MOST_BYTES for size in sizes)
        and math.isfinite(soak.started_at_s)
        and all(map(_can_grow, soak.growth))
        and (soak.checkpoint is None or _can_be_resumed(soak.checkpoint))
        and soak.passed == (not soak.problems)
        and not (soak.passed and soak.too_short)
    )
    return figures_can_be and (not soak.passed or _can_have_passed(soak))


def _can_grow(growth: Growth) -> bool:
    return (
        math.isfinite(growth.slope_bytes_per_hour)
        and 0 <= growth.allowed_bytes_per_hour < math.inf
        and 0 <= growth.watched_s <= _MOST_MINUTES * 60
    )


def _can_be_resumed(checkpoint: Resumed) -> bool:
    times_s = (checkpoint.save_s, checkpoint.load_s)
    deviation = checkpoint.loss_deviation
    return (
        checkpoint.steps >= 0
        and 0 <= checkpoint.size_bytes <= _MOST_BYTES
        and all(seconds is None or 0 <= seconds <= _MOST_MINUTES * 60 for seconds in times_s)
        and checkpoint.steps_compared >= 0
        and (deviation is None or deviation >= 0)
        and 0 < checkpoint.loss_tolerance < 1
    )


def _can_have_passed(soak: SoakResult) -> bool:
    """Whether what has to be seen was seen, and stayed within its limits."""
    peak, limit, checkpoint = soak.peak_memory_bytes, soak.memory_limit_bytes, soak.checkpoint
    return (
        soak.steps > 0
        and soak.samples_per_s is not None
        and (peak is None or limit is None or peak <= limit * (1 + METER_SLACK))
        and all(each.slope_bytes_per_hour <= each.allowed_bytes_per_hour for each in soak.growth)
        and checkpoint is not None
        and checkpoint.load_s is not None
        and checkpoint.steps_compared > 0
        and checkpoint.loss_deviation is not None
        and checkpoint.loss_deviation <= checkpoint.loss_tolerance
    )


def describe_soak(soak: SoakResult) -> str:
    """How long, how far, and how it ended: `passed: 10.0 minutes, 431 steps at sequence 2048`."""
    text = "passed" if soak.passed else "too short to know" if soak.too_short else "failed"
    text += f": {soak.minutes:.1f} minutes, {format_count(soak.steps, 'step')} at sequence "
    text += f"{soak.seq_len}"
    if soak.checkpoint is not None and soak.checkpoint.load_s is not None:
        text += ", with a checkpoint saved and resumed on the way"
    return f"{text}; peak memory {format_bytes(soak.peak_memory_bytes)} per device"
