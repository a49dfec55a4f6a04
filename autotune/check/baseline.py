"""A configuration that a search compares with: what would refuse it as it is written."""

from collections.abc import Iterator
from pathlib import Path

from autotune.base.nested import look_up
from autotune.check.lint import check
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.deepspeed.sources.source import read_all
from autotune.space.rule import Violation

_BY_THE_JOB = "batch."
"""Rules about what the job decides as well: reading the baseline compares the two."""
_MISSPELT = "schema.unknown_"
"""Rules about keys that DeepSpeed passes over; one like a key of its own was meant to be that."""


def refusals_of(path: Path, *, world: int, environment: Environment) -> list[tuple[str, str]]:
    """What is wrong with a file's configurations, each with its fix.

    Raises:
        RenderError: The file cannot be read.
    """
    try:
        sources = read_all(path, world=world)
    except NotADsConfigError:
        return []  # it may hold little that tells what it is
    return [refusal for source in sources for refusal in _refusals(source, environment)]


def _refusals(source: Source, environment: Environment) -> Iterator[tuple[str, str]]:
    for found in check(source, environment).found:
        violation = found.violation
        is_of_job = violation.rule.startswith(_BY_THE_JOB)
        if not found.after_fix and not is_of_job and _is_fatal(violation):
            yield f"{found.place.line}: {violation.message}", violation.fix
    rate = look_up(source.config, "optimizer.params.lr")
    if isinstance(rate, int | float) and rate < 0:
        yield f"optimizer.params.lr={rate} is negative", "write a learning rate from 0 up"


def _is_fatal(violation: Violation) -> bool:
    is_renamed = any(value is not None for value in violation.changes.values())
    return violation.level == "error" or (violation.rule.startswith(_MISSPELT) and is_renamed)
