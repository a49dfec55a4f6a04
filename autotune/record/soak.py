"""Result of a soak: `soak.json` in a study's folder, or in that of an export."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from autotune.base.units import format_bytes, format_count
from autotune.record.found import read_found

SOAK_FILE = "soak.json"
SOAK_FOLDER = "soak"
"""Folder beside it for the soak's own trials, apart from the search's."""

Minutes = Annotated[float, Field(ge=0, le=1e6)]
Seconds = Annotated[float, Field(ge=0, le=6e7)]
Count = Annotated[int, Field(ge=0, le=10**12)]
Bytes = Annotated[int, Field(ge=0, le=2**50)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Growth:
    """How one memory meter moved, on the rank and in the half where it grew most."""

    meter: str
    slope_bytes_per_hour: Finite
    allowed_bytes_per_hour: Annotated[Finite, Field(ge=0)]
    watched_s: Seconds
    """Seconds behind the slope, warm-up left out."""


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The checkpoint on the way."""

    steps: Count
    """Optimizer steps that were trained when it was saved."""
    size_bytes: Bytes
    save_s: Seconds
    load_s: Seconds | None
    """None: nothing was resumed."""
    steps_compared: Count
    """Steps that were trained both after saving and after resuming."""
    loss_deviation: Annotated[float, Field(ge=0)] | None
    """Largest difference of their losses, as a share; None: nothing was compared."""
    loss_tolerance: Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class SoakResult:
    """Result of a soak of one configuration."""

    passed: bool
    problems: list[str]
    """Why it did not pass, a sentence each."""
    source: str
    """The study or the export folder that the configuration came from."""
    trial: Count | None
    """Number of the study's trial; None for an export."""
    candidate_hash: str
    ds_config_digest: str
    """SHA-256 of the rendered ds_config.json."""
    seq_len: Annotated[int, Field(gt=0)]
    minutes_asked: Annotated[Minutes, Field(gt=0)]
    minutes: Minutes
    """Measured training, both halves; start-up, warm-up and the checkpoint are left out."""
    steps: Count
    """Measured optimizer steps, both halves."""
    samples_per_s: Annotated[float, Field(gt=0, le=1e12)] | None
    peak_memory_bytes: Annotated[Bytes, Field(gt=0)] | None
    memory_limit_bytes: Annotated[Bytes, Field(gt=0)] | None
    growth: list[Growth]
    checkpoint: Resumed | None
    """None: it did not get so far."""
    device_name: str
    deepspeed_version: str
    torch_version: str
    started_at_s: Finite
    """Wall-clock time (Unix)."""
    too_short: bool = False
    """Whether all that stands against it is that it was too short to judge."""
    version: Literal[1] = 1

    def is_of(self, files: dict[str, str]) -> bool:
        """Whether it ran these configuration files, to the letter."""
        return self.ds_config_digest == digest_of(files)


def digest_of(files: dict[str, str]) -> str:
    """Identity of a rendered configuration."""
    text = "".join(files[name] for name in sorted(files))
    return hashlib.sha256(text.encode()).hexdigest()


def read_soak(folder: Path) -> SoakResult | None:
    """The last soak of a folder; None if there was none, or if it is unreadable."""
    return read_found(SoakResult, folder / SOAK_FILE)


def describe_soak(soak: SoakResult) -> str:
    """How long, how far, and how it ended: `passed: 10.0 minutes, 431 steps at sequence 2048`."""
    text = "passed" if soak.passed else "too short to know" if soak.too_short else "failed"
    text += f": {soak.minutes:.1f} minutes, {format_count(soak.steps, 'step')} at sequence "
    text += f"{soak.seq_len}"
    if soak.checkpoint is not None and soak.checkpoint.load_s is not None:
        text += ", with a checkpoint saved and resumed on the way"
    return f"{text}; peak memory {format_bytes(soak.peak_memory_bytes)} per device"
