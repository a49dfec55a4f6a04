"""What the cost model says of a job's candidates on a fleet, here or described; nothing runs."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.app.session import check_space_is_read, read_job_on
from autotune.base.errors import JobError, RenderError
from autotune.base.flags import flag
from autotune.base.units import format_count
from autotune.cost.knowledge import Lesson
from autotune.engines.base import bind_engine, find_engine
from autotune.export.base import Handout
from autotune.export.door import check_handout, export_handout, handout_of
from autotune.job.job import Job, JobText, given_keys
from autotune.planning.lattice import lattice_of
from autotune.planning.outlook import PLAN_SPACE, FleetWishes, Outlook
from autotune.planning.ranking import Ranking
from autotune.report.candidates.ranking import ranking_as_dict

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
        job = _over_all(job)
    lattice = lattice_of(bind_engine(job, environment), for_plan=True)
    check_space_is_read(lattice, keys)
    return Outlook(
        job=job, environment=environment, wishes=wishes, lattice=lattice, lessons=lessons
    )


def _over_all(job: Job) -> Job:
    """A job whose user names no space: all that the program can predict well is ranked."""
    return job if find_engine(job.engine).lays_out else replace(job, space=PLAN_SPACE)


def export_ranked(
    outlook: Outlook,
    ranking: Ranking,
    rank: int,
    folder: Path,
    to: str | None = None,
    launcher: str | None = None,
) -> list[Path]:
    """Write the files of the candidate of a rank, from 1, with what was predicted of it.

    Raises:
        JobError: There is no such rank, dialect or launcher.
        RenderError: The folder cannot be written, the dialect is another engine's, or it is not
            started by that launcher.
    """
    if not 1 <= rank <= len(ranking.choices):
        there = format_count(len(ranking.choices), "distinct choice")
        raise JobError(f"{flag('rank')} {rank}: the plan has {there}", "1 is the best one")
    handout = _handout(outlook, ranking, rank)
    try:
        return export_handout(handout, folder, to=to, launcher=launcher)
    except RenderError as error:
        ranks = range(rank, min(len(ranking.choices), rank + _RANKS_TRIED) + 1)
        can_say = partial(_can_say, outlook, ranking, to=to, launcher=launcher)
        other = next(filter(can_say, ranks), rank)
        if other == rank:  # it is not this candidate's fault, or that of all
            raise
        raise RenderError(
            error.message, f"{error.hint}, such as {flag('rank')} {other}"
        ) from error


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
        raise JobError(
            f"{flag('rank')} {rank}: the rules refuse it: {why}",
            f"give {flag('top')} {rank} as well: the rules judge the first rows, and then rank "
            "the others",
        )
    return replace(
        handout_of(
            ranking.candidates[place],
            engine=outlook.engine,
            job=outlook.job,
            environment=outlook.environment,
        ),
        prediction=ranking_as_dict(ranking, [rank])["candidates"][0],
        is_described=outlook.wishes.gpu is not None,
    )
