"""What the cost model says of a job's candidates on a fleet, here or described; nothing runs."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.app.session import check_space_is_read, read_job_on
from autotune.base.errors import FleetError, JobError, RenderError
from autotune.base.flags import flag, is_call
from autotune.base.templates import tell
from autotune.base.text import Say
from autotune.base.units import format_count
from autotune.cost.knowledge import Lesson
from autotune.devices.hardware import Environment
from autotune.engines.base import bind_engine, find_engine
from autotune.export.base import Handout
from autotune.export.door import check_handout, export_handout, handout_of, suited_dialect
from autotune.job.job import PLAN_SPACE, Job, JobText, given_keys, keys_of
from autotune.planning.choices import MIN_FIT
from autotune.planning.lattice import Lattice, lattice_of
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import Ranking
from autotune.report.candidates.ranking import ranking_as_dict
from autotune.space.candidate import Candidate

_RANKS_TRIED = 200
"""Ranks below a refused one that are tried, to name the first that can be written."""


def open_outlook(
    job_file: JobText | None,
    flags: Mapping[str, Any],
    wishes: FleetWishes,
    *,
    lessons: Sequence[Lesson] = (),
    ranks_all: bool = True,
) -> Outlook:
    """Read the job, and find out what is legal for it on the fleet.

    Args:
        job_file: The job's file, or None.
        flags: Keys of the job that come before the file's.
        wishes: The fleet; the job may name its accelerator.
        lessons: What trials on this machine taught; those on such devices correct predictions.
        ranks_all: Whether a job that names no space ranks all that can be predicted well, and not
            what a search tries by default.

    Raises:
        JobError: The job, the space, the table or a description is not valid, or there is no such
            engine.
        FleetError: The accelerator of this machine is in no table.
        NothingFeasibleError: The rules refuse everything.
    """
    if (engine := flags.get("engine")) is not None:
        find_engine(engine, where=flag("engine"))
    wishes.links()  # a wrong rate is said before anything is computed
    wishes = wishes.of_job(given_keys(job_file, flags))
    job, keys, environment = read_job_on(wishes, job_file, flags)
    if ranks_all and keys.get("space") is None and job.script is None:
        job = replace(job, space=PLAN_SPACE)
    lattice = lattice_of(bind_engine(job, environment))
    check_space_is_read(lattice, keys)
    return Outlook(
        job=job,
        environment=environment,
        wishes=wishes,
        lattice=lattice,
        lessons=lessons,
        command="" if is_call() else _search_command(job_file, flags, _nodes(job, environment)),
        price=given_keys(job_file, flags).get("price"),
    )


def _nodes(job: Job, environment: Environment) -> str:
    """The fleet that asks Slurm for the GPU nodes of a job; empty: one node is enough."""
    per_node = environment.n_devices
    if job.world <= per_node or environment.accelerator == "cpu":
        return ""
    return f"slurm:-N {-(-job.world // per_node)} --gpus-per-node {per_node}"


def _search_command(job_file: JobText | None, flags: Mapping[str, Any], fleet: str) -> str:
    shared = keys_of("search")
    taken = {name: value for name, value in flags.items() if name in shared}
    given = {**({} if job_file is None else {"job": job_file.path}), **taken}
    given |= {"fleet": fleet} if fleet else {}
    words = [word for name, value in given.items() for word in (flag(name), str(value))]
    return shlex.join(["autotune", "search", *words])


def export_ranked(
    outlook: Outlook,
    ranking: Ranking,
    folder: Path,
    *,
    rank: int | None = None,
    to: str | None = None,
    launcher: str | None = None,
    note: Say = lambda _: None,
) -> list[Path]:
    """Write the files of a ranked candidate, with what was predicted of it.

    Args:
        outlook: The job on its fleet.
        ranking: Its candidates.
        folder: Where to write.
        rank: Rank of the candidate, from 1; None for the first that the dialect can say.
        to: The dialect.
        launcher: What starts the ranks.
        note: Told where it is not the first of all.

    Raises:
        JobError: There is no such rank, dialect or launcher.
        RenderError: The folder cannot be written, the dialect is another engine's, or it is not
            started by that launcher.
    """
    n_ranks = len(ranking.choices)
    if rank is not None and not 1 <= rank <= n_ranks:
        there = format_count(n_ranks, "distinct choice")
        raise JobError(f"{flag('rank')} {rank}: the plan has {there}", "1 is the best one")
    asked = rank or 1
    if to is not None:  # what no candidate can be is not asked of each
        suited_dialect(to, outlook.engine.name)
    try:
        return export_handout(_handout(outlook, ranking, asked), folder, to=to, launcher=launcher)
    except RenderError as error:
        ranks = range(asked, min(n_ranks, asked + _RANKS_TRIED) + 1)
        can_say = partial(_can_say, outlook, ranking, to=to, launcher=launcher)
        other = next(filter(can_say, ranks), asked)
        if other == asked:  # it is not this candidate's fault, or that of all
            raise
        if rank is not None:
            hint = f"{error.hint}, such as {flag('rank')} {other}"
            raise RenderError(error.message, hint) from error
        why = error.message
    instead = _handout(outlook, ranking, other)
    layout = outlook.engine.describe(instead.candidate)
    note(f"rank 1 is not written: {why}; rank {other} is: {layout}")
    return export_handout(instead, folder, to=to, launcher=launcher)


def render(
    job_file: JobText | None,
    flags: Mapping[str, Any],
    settings: Sequence[str],
    out: Path,
    *,
    to: str | None,
    launcher: str | None = None,
    wishes: FleetWishes | None = None,
    lessons: Sequence[Lesson] = (),
) -> tuple[list[Path], list[str]]:
    """Write the files of the candidate of some `knob=value` settings, by the dialect `to`.

    By default that is the engine's own, and the launcher the dialect's. Other knobs are at the
    base configuration's value or the engine's default. `wishes` describes the fleet that will
    train; where neither it nor the job names a GPU, it is this machine. `lessons` correct what is
    said of its memory.

    Returns:
        The files, and what has to be said of them.

    Raises:
        JobError: A setting or the job is not valid, or the rules refuse the candidate.
        RenderError: A template does not render, or the folder cannot be written.
    """
    wishes = (wishes or FleetWishes()).of_job(given_keys(job_file, flags))
    is_described = wishes.gpu is not None
    job, _, environment = read_job_on(wishes, job_file, flags)
    engine = bind_engine(job, environment)
    alone = Lattice(candidates=[], context=engine.context, grid_size=0)
    outlook = Outlook(job=job, environment=environment, wishes=wishes, lattice=alone)
    candidate, changed = outlook.read(settings)
    known = replace(alone, candidates=[candidate])
    outlook = replace(outlook, lattice=known, lessons=lessons)
    if violations := engine.judge(candidate):
        *others, last = violations
        before = "".join(f"{v.rule}: {v.message}\n  fix: {v.fix}\n" for v in others)
        raise JobError(f"{before}{last.rule}: {last.message}", last.fix)
    handout = handout_of(candidate, engine=engine, job=job, environment=environment)
    handout = replace(handout, is_described=is_described)
    files = export_handout(handout, out, to=to, launcher=launcher)
    values = {
        **_fit(outlook, candidate),
        "built_in": job.model.name if job_file is None and "model" not in flags else "",
        "is_cpu": outlook.is_unnamed_cpu,
        "overridden": handout.overridden,
        "flag": flag,
    }
    return files, [*changed, *(text for _, text in tell("rendered", values))]


def _fit(outlook: Outlook, candidate: Candidate) -> dict[str, Any]:
    """What `rendered.j2` says of a candidate's memory, or that nobody can predict it."""
    try:
        found = outlook.predict([candidate])
    except (FleetError, JobError) as error:
        return {"unpredicted": error.message}
    return {
        "unpredicted": "",
        "chance": float(found.fit_probability[0]),
        "least": MIN_FIT,
        "host_bytes": float(found.host_memory_bytes[0]),
        "host_limit_bytes": outlook.host_limit_bytes,
        "peak_bytes": float(found.peak_memory_bytes[0]),
        "allowed_bytes": float(np.max(found.plans.memory_bytes)),
    }


def _can_say(
    outlook: Outlook, ranking: Ranking, rank: int, *, to: str | None, launcher: str | None
) -> bool:
    """Whether a consumer can be told all settings of the candidate of a rank."""
    with suppress(JobError, RenderError):
        check_handout(_handout(outlook, ranking, rank), to=to, launcher=launcher)
        return True
    return False


def _handout(outlook: Outlook, ranking: Ranking, rank: int) -> Handout:
    place = int(ranking.choices.firsts[rank - 1])
    if not ranking.outlook.lattice.is_legal(place):
        why = "; ".join(
            violation.message for violation in outlook.engine.judge(ranking.candidates[place])
        )
        raise JobError.of("app.rank_refused", rank=rank, why=why)
    candidate, is_described = ranking.candidates[place], outlook.wishes.gpu is not None
    handout = handout_of(
        candidate, engine=outlook.engine, job=outlook.job, environment=outlook.environment
    )
    prediction = ranking_as_dict(ranking, [rank])["candidates"][0]
    return replace(handout, prediction=prediction, is_described=is_described)
