"""The one door of all exports: the files of a dialect and its launcher, marked as ours."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.files import write_text
from autotune.base.flags import flag
from autotune.base.plugins import load_plugin, plugin_names, suiting_names
from autotune.base.private import refuse_prepared
from autotune.base.secrecy import scrubbed_document
from autotune.base.templates import Templates, canonical_json
from autotune.contract import PRIVATE_MODE, ContractError, Measure, read_json
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, find_engine
from autotune.engines.launches.line import parts_of
from autotune.export.base import (
    Dialect,
    Handout,
    Launch,
    Launcher,
    NodeLauncher,
    Patched,
    Subject,
    reading_export,
)
from autotune.export.readme import README_FILE, figures_file, with_claim
from autotune.job.job import Job
from autotune.record.tried import warning
from autotune.space.candidate import Candidate, layout_of
from autotune.space.knobs import choices_of
from autotune.space.workload import WorkloadPlugin, workload_of

MARKER_FILE = "autotune_export.json"
"""Marks the folder of an export, and says what wrote it."""
MARKER_VERSION = 1
PREDICTION_FILE = "prediction.json"


def find_dialect(name: str, engine: str = "") -> Dialect:
    """An installed dialect by its name, which a release of its consumer may follow: `NAME@0.16`.

    Raises:
        JobError: There is none of that name; it lists those that write the engine's, if one is
            given.
    """

    def suits(one: Dialect) -> bool:
        return not engine or engine in one.engines

    plugin = name.partition("@")[0]
    found: Dialect = load_plugin("dialect", plugin, where=flag("to"), suits=suits)
    return found


def suited_dialect(to: str, engine: str) -> Dialect:
    """The dialect that writes one configuration of an engine, whichever it is.

    Raises:
        JobError: There is no such dialect.
        RenderError: It writes none of that engine's, or not for one release.
    """
    asked, dialect = f"{flag('to')} {to}", find_dialect(to, engine)
    if engine not in dialect.engines:
        forms = suiting_names("dialect", lambda one: engine in getattr(one, "engines", ()))
        raise RenderError(
            f"{asked}: a configuration of {engine} cannot be written in that form",
            f"give {flag('to')} {', '.join(forms)}; {to} takes what a search or plan with "
            f"{flag('engine')} {' or '.join(dialect.engines)} found",
        )
    if "@" in to and not dialect.has_releases:
        raise RenderError.of("export.same_for_releases", asked=asked)
    return dialect


def handout_of(
    candidate: Candidate, *, engine: Engine, job: Job, environment: Environment
) -> Handout:
    """A candidate with what its engine says of it; what else is known, the caller fills in.

    Raises:
        RenderError: The candidate's configuration does not render.
    """
    ranks, exported = engine.ranks(candidate), engine.exported(candidate)
    variables = dict(ranks.environment)
    return Handout(
        engine=engine.context.engine,
        job=job,
        candidate=candidate,
        environment=environment,
        files=engine.files(candidate),
        exported=exported.files,
        workload=workload_of(job, candidate),
        layout=layout_of(candidate, environment.accelerator),
        settings={
            "model": job.model.name,
            "memory_limit_bytes": job.enforced_limit_bytes(environment.device_memory_bytes),
            "binds_cores": ranks.binds_cores or environment.accelerator == "cpu",
            "environment_variables": variables,
        },
        variables=variables,
        overridden=exported.overridden,
        untried=warning(choices_of(candidate.values, engine.context), engine.context),
    )


def export_handout(
    handout: Handout, folder: Path, *, to: str | None, launcher: str | None = None
) -> list[Path]:
    """Write a configuration's files; those of an earlier export are replaced.

    Raises:
        JobError: There is no such dialect, release or launcher.
        RenderError: As of `check_handout`, or the folder cannot be written, or holds such files
            of somebody else's.
    """
    files, marker = _rendered(handout, folder, to=to, launcher=launcher)
    # Words of the user's own run as they are, and stand where nobody else can read them.
    is_private = handout.job.script is not None or bool(handout.job.megatron_arguments)
    return write_export(folder, files, marker=marker, is_private=is_private)


def check_handout(handout: Handout, *, to: str | None, launcher: str | None = None) -> None:
    """See that a configuration can be written in a form, and write nothing.

    Raises:
        JobError: There is no such dialect, release or launcher.
        RenderError: The dialect does not write configurations of that engine, cannot say one of
            its settings, or a template does not render.
    """
    _rendered(handout, Path(), to=to, launcher=launcher)


def _rendered(
    handout: Handout, folder: Path, *, to: str | None, launcher: str | None
) -> tuple[dict[str, str], dict[str, Any]]:
    default = _dialect_of(handout)
    to = to or default
    asked = f"{flag('to')} {to}"
    dialect = suited_dialect(to, handout.engine)
    release = to.partition("@")[2]
    handout = dataclasses.replace(handout, release=release, folder=folder)
    templates = Templates(handout.job.templates)
    launch: Launch | None
    if handout.job.script is not None:
        if to != default:
            raise RenderError.of("export.command_exported_as_it_is", asked=asked)
        launch = None
        files = dialect.files(handout, launch_of(dialect, handout, templates), templates)
        if script := files.get("launch.sh"):
            ranks = Launch(name="command", files={"launch.sh": script}, usage="`bash launch.sh`")
            launch = launch_of(dialect, handout, templates, launcher=launcher, to=to, ranks=ranks)
            files |= launch.files
        elif launcher is not None:
            raise RenderError.of("export.launcher_without_settings", launcher=launcher)
    else:
        launch = launch_of(dialect, handout, templates, launcher=launcher, to=to)
        files = {**dialect.files(handout, launch, templates), **launch.files}
    if handout.claim and README_FILE in files:
        files[README_FILE] = with_claim(files[README_FILE], handout.claim)
    files |= figures_file(handout)
    if handout.prediction is not None:
        files[PREDICTION_FILE] = canonical_json(handout.prediction)
    marker = {
        "schema_version": MARKER_VERSION,
        "dialect": to,
        "launcher": (launch and launch.name) or None,
        "engine": handout.engine,
        "study": handout.study,
        "trial": None if handout.figures is None else handout.figures.trial,
    }
    return files, marker


def _dialect_of(handout: Handout) -> str:
    """The dialect where nobody names one: the workload's, or else the engine's."""
    workload: WorkloadPlugin = load_plugin("workload", handout.workload.name)
    return workload.dialect or find_engine(handout.engine).dialect


def patched(paths: Sequence[Path], handout: Handout, engine: Engine) -> Sequence[Patched]:
    """Files that a user has with a configuration in them, by the dialect of its engine.

    Raises:
        RenderError, JobError: As of `Dialect.patched`.
    """
    dialect: Dialect = load_plugin("dialect", _dialect_of(handout))
    return dialect.patched(paths, handout, engine)


def read_export(folder: Path, environment: Environment, *, measure: Measure) -> Subject:
    """An export read back by the dialect that wrote it; see `Dialect.read`.

    Raises:
        JobError: The folder holds no export, or one that is not read back.
    """
    with reading_export(folder, "NAME"):
        plugin = str(read_json(folder / MARKER_FILE)["dialect"]).partition("@")[0]
    dialect: Dialect = load_plugin("dialect", plugin, where=str(folder / MARKER_FILE))
    return dialect.read(folder, environment, measure=measure)


def launch_of(
    dialect: Dialect,
    handout: Handout,
    templates: Templates,
    *,
    launcher: str | None = None,
    to: str = "this dialect",
    ranks: Launch | None = None,
) -> Launch:
    """Files of a launcher, by default the dialect's own, for a handout.

    `to` names the dialect, for the error; `ranks` is what starts the ranks of a user's command.

    Raises:
        JobError: There is no such launcher.
        RenderError: A template does not render, or that launcher cannot start the dialect's
            script.
    """
    if ranks is not None and launcher in (None, parts_of(handout.workload.command).kind):
        return ranks
    name = launcher or dialect.launcher
    if not name:
        return Launch(name="", files={}, usage="")
    starter: Launcher = load_plugin("launcher", name, where="--launcher")
    if not can_start(dialect, name):
        fits = ", ".join(known for known in plugin_names("launcher") if can_start(dialect, known))
        raise RenderError(
            f"--to {to} --launcher {name}: {dialect.only_launcher}",
            f"leave --launcher out{fits and f', or name one of: {fits}'}",
        )
    script, others = dialect.script, dict[str, str]()
    if isinstance(starter, NodeLauncher):
        ranks = ranks or launch_of(dialect, handout, templates)
        script, others = "launch.sh", dict(ranks.files)
    files = starter.files(handout, script, templates)
    usage = starter.usage(handout, script, templates)
    return Launch(name=name, files=others | files, usage=usage)


def can_start(dialect: Dialect, launcher: str) -> bool:
    """True if a launcher starts what a dialect writes.

    Raises:
        JobError: There is no such launcher.
    """
    if isinstance(load_plugin("launcher", launcher), NodeLauncher):
        return bool(dialect.launcher) or dialect.script == "launch.sh"
    return launcher == dialect.launcher or not dialect.only_launcher


def write_export(
    folder: Path, files: Mapping[str, str], *, marker: Mapping[str, Any], is_private: bool = False
) -> list[Path]:
    """Write the files of an export, by path below the folder; those of an earlier one go.

    Private ones are written as they are, for their owner alone; others without secrets.

    Raises:
        RenderError: The folder cannot be written, or holds such files of somebody else's.
    """
    present = [name for name in files if os.path.lexists(folder / name)]
    if present and not (folder / MARKER_FILE).exists():
        raise RenderError.of("export.foreign_files", folder=folder, present=", ".join(present))
    hint = "name another folder"
    # A script runs as it is, with the user's own words.
    clean = {
        name: text if is_private or name.endswith(".sh") else scrubbed_document(name, text)
        for name, text in files.items()
    }
    digests = {name: _digest(text.encode()) for name, text in clean.items()}
    try:
        refuse_prepared(folder)
    except OSError as error:
        raise RenderError(f"{folder}: cannot be written: {error.strerror}", hint) from error
    earlier: dict[str, Any] = {}
    with contextlib.suppress(ContractError, OSError, TypeError, ValueError):
        earlier = dict(read_json(folder / MARKER_FILE)["files"])
    # The marker first: it marks an export that was cut short as ours, to be replaced.
    marked = {MARKER_FILE: canonical_json({**marker, "files": {**earlier, **digests}}), **clean}
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    for name, text in marked.items():
        path = folder / name
        try:
            # In place of what is there: a link would lead to a file that is none of ours.
            mode = 0o700 if path.suffix == ".sh" else PRIVATE_MODE if is_private else None
            write_text(path, text, error=RenderError, hint=hint, mode=mode)
        except RenderError:
            for empty in made:  # where a full disk took not even the marker
                with contextlib.suppress(OSError):
                    empty.rmdir()
            raise
    for name in earlier.keys() - marked.keys():
        # As it was written, and not by way of a link: what somebody has edited stays.
        with contextlib.suppress(OSError, ValueError):
            old = folder / name
            is_here = os.path.realpath(old) == f"{os.path.realpath(folder)}/{name}"
            if is_here and _digest(old.read_bytes()) == earlier[name]:
                old.unlink()
    return [folder / name for name in marked]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
