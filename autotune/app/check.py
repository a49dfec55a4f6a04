"""`check`: read a configuration with what goes with it, judge it, write the fix."""

from pathlib import Path

from packaging.version import InvalidVersion, Version

from autotune.base.errors import JobError, RenderError
from autotune.base.files import write_text
from autotune.check import CheckReport, read_source
from autotune.check import check as judge_source
from autotune.check.consumers import Consumer
from autotune.check.layout import ACCELERATORS
from autotune.devices.hardware import Environment, version_of
from autotune.engines.deepspeed.rules.releases import NEWEST_READ

_MOST_ACCELERATORS = 1_000_000
"""Limit above any machine there is: more is a slip of the key."""


def check_file(
    path: Path,
    *,
    world: int | None,
    launch: str | None,
    accelerate: Path | None,
    consumer: str | None,
    accelerator: str | None,
    deepspeed_version: str | None,
) -> CheckReport:
    """Judge a file; nothing is written.

    Raises:
        RenderError: A file cannot be read.
        JobError: A flag is not one of its values.
    """
    flags = (("accelerator", accelerator, ACCELERATORS), ("consumer", consumer, tuple(Consumer)))
    for flag, value, known in flags:
        if value is not None and value not in known:
            raise JobError(f"--{flag} {value} is not known", f"say one of {', '.join(known)}")
    if world is not None and not 1 <= world <= _MOST_ACCELERATORS:
        raise JobError(
            f"--world {world} is not from 1 to {_MOST_ACCELERATORS}",
            "name the number of accelerators",
        )
    source = read_source(
        path,
        world=world,
        launch=launch,
        accelerate=accelerate,
        consumer=None if consumer is None else Consumer(consumer),
    )
    where = accelerator or source.layout.accelerator or "cuda"
    return judge_source(source, _environment(where, deepspeed_version))


def write_fix(report: CheckReport) -> None:
    """Write the fixed text in place of the file that was named, aside first, and of no other.

    Raises:
        RenderError: The folder cannot be written to.
    """
    if report.fixed_text is not None and report.source.can_write:
        path = report.source.path.resolve()
        write_text(path, report.fixed_text, error=RenderError, hint="check the folder")


def _environment(accelerator: str, deepspeed_version: str | None) -> Environment:
    """The environment that it would run in, as far as rules look; they do not look at memory."""
    if deepspeed_version is not None:
        try:
            Version(deepspeed_version)
        except InvalidVersion as error:
            raise JobError(
                f"--deepspeed-version {deepspeed_version} is no version", "such as 0.19.8"
            ) from error
    return Environment(
        accelerator=accelerator,
        n_devices=1,
        device_name=f"any {accelerator} device",
        device_memory_bytes=0,
        peak_flops=None,
        deepspeed_version=deepspeed_version or version_of("deepspeed") or NEWEST_READ,
        torch_version=version_of("torch") or "",
    )
