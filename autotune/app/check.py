"""`check`: read a configuration with what goes with it, judge it, write the fix."""

from collections.abc import Callable, Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from autotune.base.errors import JobError, RenderError
from autotune.base.files import write_text
from autotune.check import CheckReport, read_source
from autotune.check import check as judge_source
from autotune.check.consumers import Consumer
from autotune.check.fixes import Option, Question, Reply, parse_chosen
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
    choose: Sequence[str] = (),
    ask: Callable[[Question], Option | None] | None = None,
) -> CheckReport:
    """Judge a file; nothing is written.

    Args:
        path: The file.
        world: Accelerators of the run.
        launch: The line that starts the training.
        accelerate: The accelerate YAML that goes with it.
        consumer: Who reads the file.
        accelerator: Where it will run.
        deepspeed_version: The release.
        choose: What the user decided, each as `RULE=N`.
        ask: Puts a question to the user, who answers with an option or leaves it open; asked only
            where the file does not pass without an answer.

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
    environment = _environment(where, deepspeed_version)
    chosen = [parse_chosen(text) for text in choose]
    report = judge_source(source, environment, chosen)
    asked: set[str] = set()
    while ask is not None and (
        open_ := [q for q in report.needed if q.violation.message not in asked]
    ):
        asked.add(open_[0].violation.message)
        if (option := ask(open_[0])) is not None:
            chosen.append(Reply(rule=open_[0].violation.rule, number=option.number))
            report = judge_source(source, environment, chosen)
    return report


def write_fix(report: CheckReport) -> None:
    """Write the fixed text in place of the file that was named, aside first, and of no other.

    Nothing is written where the file would not run afterwards.

    Raises:
        RenderError: The folder cannot be written to.
    """
    if report.fixed_text is not None and report.is_written(fixed=True):
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
