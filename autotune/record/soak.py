"""What a soak found: `soak.json` in a study's folder, or in that of an export."""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune.base.errors import StudyError
from autotune.base.units import format_bytes
from autotune.contract import ContractError, read_json, write_json

SOAK_FILE = "soak.json"
SOAK_FOLDER = "soak"
"""Folder beside it for the soak's own trials, apart from the search's."""
SOAK_VERSION = 1


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
    """What a soak says of one configuration."""

    passed: bool
    problems: list[str]
    """Why it failed, a sentence each."""
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
    """The last soak of a folder; None if there was none, or if it is unreadable."""
    try:
        return TypeAdapter(SoakResult).validate_python(read_json(folder / SOAK_FILE))
    except (ContractError, ValidationError):
        return None


def describe_soak(soak: SoakResult) -> str:
    """How long, how far, and how it ended: `passed: 10.0 minutes, 431 steps at sequence 2048`."""
    text = "passed" if soak.passed else "failed"
    text += f": {soak.minutes:.1f} minutes, {soak.steps} steps at sequence {soak.seq_len}"
    if soak.checkpoint is not None and soak.checkpoint.load_s is not None:
        text += ", with a checkpoint saved and resumed on the way"
    return f"{text}; peak memory {format_bytes(soak.peak_memory_bytes)} per device"
