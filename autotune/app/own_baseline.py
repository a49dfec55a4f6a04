"""A user's own baseline before anything runs: whether it is sound, and what it loses."""

from collections.abc import Iterator
from pathlib import Path

from autotune import DEFAULT_ENGINE
from autotune.base.errors import JobError
from autotune.base.nested import look_up
from autotune.check import NotADsConfigError, Source, check, read_sources
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

_BY_THE_JOB = "batch."
"""Rules about what the job decides as well: reading the baseline compares the two."""
_MISSPELT = "schema.unknown_"
"""Rules about keys that DeepSpeed passes over; one like a key of its own was meant to be that."""


def check_baseline(job: Job, engine: Engine, environment: Environment) -> None:
    """Refuse a baseline that would not run as it is written, in the words of `check`.

    Something else would be measured in its place, and every gain would be a gain over that.

    Raises:
        JobError: Its program or a rule refuses it, or it trains something else than the job.
        RenderError: It cannot be read.
    """
    path = job.baseline
    if path is None:
        return
    if job.engine == DEFAULT_ENGINE:
        try:
            sources = read_sources(path, world=job.world)
        except NotADsConfigError:
            sources = []  # it may hold little that tells what it is
        for source in sources:
            _refuse(path, list(_broken(source, environment)))
    own, candidate = engine.baseline(path)
    _refuse(path, [(v.message, v.fix) for v in own.judge(candidate)])


def not_carried(engine: Engine, candidate: Candidate, where: object) -> Iterator[str]:
    """What trials of a user's own configuration do not carry of it, a key a line.

    Args:
        engine: The one that renders it.
        candidate: The user's configuration.
        where: The file or the command that it is of.
    """
    for key, (theirs, ours) in engine.overridden(candidate).items():
        instead = "without it" if ours is None else f"with {ours!r}"
        yield f"{where}: has {key}={theirs!r}, and its trials run {instead}"


def _broken(source: Source, environment: Environment) -> Iterator[tuple[str, str]]:
    """What is wrong with a configuration as it is written, each with its fix."""
    for found in check(source, environment).found:
        one = found.violation
        if not found.after_fix and not one.rule.startswith(_BY_THE_JOB) and _is_fatal(one):
            yield f"{found.place.line}: {one.message}", one.fix
    rate = look_up(source.config, "optimizer.params.lr")
    if isinstance(rate, int | float) and rate < 0:
        yield f"optimizer.params.lr={rate} is negative", "write a learning rate from 0 up"


def _is_fatal(one: Violation) -> bool:
    is_renamed = any(value is not None for value in one.changes.values())
    return one.level == "error" or (one.rule.startswith(_MISSPELT) and is_renamed)


def _refuse(path: Path, broken: list[tuple[str, str]]) -> None:
    if not broken:
        return
    raise JobError(
        "\n".join(f"--baseline {path}: {message}" for message, _ in broken),
        "; ".join(dict.fromkeys(fix for _, fix in broken if fix)),
    )
