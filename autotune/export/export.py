"""Hand out a configuration as a folder that runs as it is."""

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

from autotune.base.errors import RenderError
from autotune.base.templates import Templates
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, find_engine
from autotune.export.base import Dialect, Export, Figures
from autotune.export.dialects.deepspeed import DeepSpeedDialect
from autotune.export.dialects.megatron_lm import MegatronDialect
from autotune.job.job import Job
from autotune.record.soak import SoakResult
from autotune.space.candidate import Candidate

ENTRY_POINTS = "autotune.dialects"
"""Entry-point group in which a package offers dialects of its own."""

_SHIPPED: dict[str, type[Dialect]] = {
    DeepSpeedDialect.name: DeepSpeedDialect,
    MegatronDialect.name: MegatronDialect,
}


def export_candidate(
    candidate: Candidate,
    folder: Path,
    *,
    engine: Engine,
    job: Job,
    environment: Environment,
    figures: Figures | None = None,
    soak: SoakResult | None = None,
    to: str = DeepSpeedDialect.name,
) -> list[Path]:
    """Write a candidate's files; those of an earlier export are replaced.

    Args:
        candidate: What to hand out.
        folder: Where to; made if it is not there.
        engine: Renders the candidate.
        job: What it was tuned for.
        environment: Where its figures were measured, or where it was rendered.
        figures: What was measured; None: it was not tried, and the README says so.
        soak: What a soak of it found; None: it was not soaked, and the README says so.
        to: Name of the dialect.

    Returns:
        The files written.

    Raises:
        RenderError: There is no such dialect, a template does not render, or the folder cannot
            be written.
    """
    export = Export(
        job=job,
        candidate=candidate,
        files=engine.files(candidate),
        context=engine.context,
        ranks=engine.ranks(candidate),
        environment=environment,
        figures=figures,
        soak=soak,
        overridden=engine.overridden(candidate),
    )
    dialect = find_dialect(to)
    if dialect.engine != engine.name:
        raise RenderError(
            f"--to {to}: a configuration of {engine.name} is not written for that",
            f"leave it out, or {find_engine(engine.name).dialect}",
        )
    files = dialect.files(export, Templates(job.templates))
    return write_export(folder, files, marker=dialect.marker)


def write_export(folder: Path, files: Mapping[str, str], *, marker: str) -> list[Path]:
    """Write the files of an export; those of an earlier one are replaced.

    Args:
        folder: Where to; made if it is not there.
        files: Path below it -> text.
        marker: The file that every export of that dialect has.

    Returns:
        The files written.

    Raises:
        RenderError: The folder cannot be written, or holds such files of somebody else's.
    """
    _check_ours(folder, files, marker)
    try:
        # The marker first: it marks an export that was cut short as ours, to be replaced.
        for name in sorted(files, key=lambda name: name != marker):
            _write(folder / name, files[name])
        return [folder / name for name in files]
    except OSError as error:
        raise RenderError(
            f"{error.filename or folder}: cannot be written: {error.strerror}",
            "name another folder with --out",
        ) from error


def find_dialect(name: str) -> Dialect:
    """Find a shipped dialect, or one that an installed package offers.

    Raises:
        RenderError: There is none of that name.
    """
    if name in _SHIPPED:
        return _SHIPPED[name]()
    offered = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if name in offered:
        dialect: Dialect = offered[name].load()()
        return dialect
    known = ", ".join(sorted({*_SHIPPED, *offered}))
    raise RenderError(
        f"--to {name}: no such dialect",
        f"known dialects: {known}; a study also exports to optuna, for its dashboard",
    )


def _check_ours(folder: Path, files: Mapping[str, str], marker: str) -> None:
    """Refuse to write over what no earlier export has left: every export has its marker."""
    theirs = [name for name in files if (folder / name).exists()]
    if theirs and marker in files and marker not in theirs:
        raise RenderError(
            f"{folder}: holds {', '.join(theirs)}, and not from an earlier export",
            "name a new folder with --out, or move those files away",
        )


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if path.suffix == ".sh":
        path.chmod(0o755)
