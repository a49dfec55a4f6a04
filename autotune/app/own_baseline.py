"""A user's own baseline before anything runs: whether it is sound, and what it loses."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.base.errors import JobError
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, find_engine
from autotune.export.base import Dialect
from autotune.export.door import find_dialect
from autotune.job.job import Job
from autotune.space.candidate import Candidate


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
    dialect = find_dialect(find_engine(job.engine).dialect)
    if isinstance(dialect, Dialect):
        _refuse(path, dialect.refusals(path, world=job.world, environment=environment))
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


def _refuse(path: Path, refusals: Sequence[tuple[str, str]]) -> None:
    if refusals:
        raise JobError(
            "\n".join(f"--baseline {path}: {message}" for message, _ in refusals),
            "; ".join(dict.fromkeys(fix for _, fix in refusals if fix)),
        )
