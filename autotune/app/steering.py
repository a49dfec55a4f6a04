"""The model that predicts a search's trials: it learns from other studies and teaches later."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.base.errors import AutotuneError, StudyError
from autotune.base.plugins import load_plugin
from autotune.base.text import Say
from autotune.base.units import format_bytes, format_count
from autotune.contract import Origin
from autotune.cost.knowledge import (
    Lesson,
    choose_lessons,
    keep_lessons,
    read_lessons,
    study_name,
    write_lessons,
)
from autotune.cost.problem import accelerator_of, situation_of
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.job.job import PLAN_SPACE
from autotune.planning.choices import TIE
from autotune.planning.lattice import lattice_of
from autotune.planning.other_job import OtherJob
from autotune.planning.outlook import FleetWishes, Outlook
from autotune.planning.ranking import legal_rows
from autotune.search.history import History
from autotune.search.prospect import Prospect, prospect_of
from autotune.search.session import Session
from autotune.search.steering import Steering, lessons_of, steering_of


def steer(
    session: Session, note: Say, knowledge: Path | None, *, searches: bool = True
) -> Steering | None:
    """The forecast of a search's trials, which some samplers follow.

    Args:
        session: The job and what is legal for it here.
        note: Is told why there is nothing to go by, or what is left out.
        knowledge: The file of lessons; None: none.
        searches: Whether a sampler is to go by it.

    Returns:
        None where nothing can be predicted.

    Raises:
        StudyError: The study's folder cannot be written.
    """
    job = session.job
    follows = searches and load_plugin("sampler", job.sampler).goes_by_forecast
    lessons = () if knowledge is None else _lessons_for(session, note, knowledge)
    try:
        name = study_name(session.study.folder)
        steering = steering_of(session, lessons=lessons, study=name)
    except AutotuneError as error:
        instead = "TPE proposes, for " if follows else ""
        why = error.message.removesuffix(", so nothing can be predicted")
        note(f"{instead}nothing can be predicted: {why}" + (f"; {error.hint}" * bool(error.hint)))
        if job.budget.gpu_hours is not None:
            note("gpu_hours does not end this search: the gain of another trial is not known")
        return None
    if above := len(steering.above_host):
        note(
            f"{format_count(above, 'candidate')} not started: the processes need more than the "
            f"host's {format_bytes(steering.host.memory_bytes if steering.host else None)}"
        )
    if not follows:
        return steering
    if not steering.steers:
        note("TPE proposes: predictions steer only the objective samples_per_s, by known knobs")
    elif steering.recalled is not None:
        n_trials = steering.recalled.n_trials
        verb = "corrects" if n_trials == 1 else "correct"
        note(f"{format_count(n_trials, 'trial')} of other studies {verb} the forecast")
    return steering


def prospect(session: Session, *, fresh: bool, knowledge: Path | None) -> Prospect | None:
    """What a search of the session can expect; None where nothing can be predicted.

    Args:
        session: The job and what is legal for it here.
        fresh: Whether the search begins anew where a record is there.
        knowledge: The file of lessons, which correct the time of a step; None: none.

    Raises:
        StudyError: The record cannot be read.
    """
    if session.place.origin is Origin.REPLAYED:
        return None  # nothing runs, and the table knows better
    history = History() if fresh else session.history_to_resume()
    lessons: Sequence[Lesson] = ()
    if knowledge is not None and session.place.origin is Origin.MEASURED:
        with contextlib.suppress(StudyError):  # the search says so when it begins
            lessons = read_lessons(knowledge)
    try:
        # What a record holds teaches by itself, unless it is set aside.
        study = "" if fresh else study_name(session.study.folder)
        steering = steering_of(session, lessons=lessons, study=study)
        found = prospect_of(steering, history, session)
        is_space_default = session.job_data.get("space") is None and session.job.script is None
        if not is_space_default or session.environment.accelerator == "cpu":
            return found
        return _beyond(session, found, lessons)
    except AutotuneError:
        return None  # the search says why when it begins


def _beyond(session: Session, found: Prospect, lessons: Sequence[Lesson]) -> Prospect:
    """What the space `plan` has beyond that of a search which is told none."""
    there = Outlook(
        job=replace(session.job, space=PLAN_SPACE),
        environment=session.environment,
        wishes=FleetWishes(gpu=session.environment.device_name),
        lattice=session.lattice,
        lessons=lessons,
    )
    try:
        there = replace(there, lattice=lattice_of(there.engine))
        rows = legal_rows(there, top=1)
    except AutotuneError:
        return found
    there, first = rows.outlook, int(rows.choices.firsts[0])
    candidate = there.lattice.candidates[first]
    wider = OtherJob.of_row("", there, candidate, rows.prediction, first)
    gain = wider.speedup(session.job, found.fastest_step_s)
    if wider.fit_probability < rows.choices.min_fit or (found.n_fit and gain <= TIE):
        return found
    found = replace(found, plan_fit=wider.fit_probability)
    return replace(found, plan_gain=gain, plan_first=wider.described)


def leave_lessons(session: Session, note: Say, knowledge: Path) -> None:
    """Leave what the trials taught for other studies, however their search ended."""
    name = study_name(session.study.folder)
    try:
        history = session.history_to_resume()
        lessons = lessons_of(history, session, study=name)
        if lessons:
            keep_lessons(knowledge, name, lessons)
    except AutotuneError as error:
        note(f"no lessons are kept for other studies: {error.message}")


def what_predicts(environment: Environment, table: Sequence[Accelerator], file: Path) -> str:
    """Whether a user's table is what predictions go by: a device that it has not is no error.

    Raises:
        FleetError: The devices are neither in the user's `file` nor in the rest of the table.
    """
    found = accelerator_of(environment, table)
    if any(found is shipped for shipped in shipped_accelerators()):
        return f"{file} has no entry for these devices: predicted by the shipped {found.name}"
    return f"predicted by {found.name} of {file}: {found.achieved_source}"


def _lessons_for(session: Session, note: Say, knowledge: Path) -> tuple[Lesson, ...]:
    """The lessons of other studies when this one began: a resumed search goes on with the same.

    The file of lessons changes meanwhile, and with it what a search would propose.
    """
    study = session.study
    if study.recalled_file.exists():
        try:
            return read_lessons(study.recalled_file)
        except StudyError as error:
            note(f"the lessons of other studies are read again: {error.message}")
    try:
        found = read_lessons(knowledge)
    except StudyError as error:
        note(f"nothing is learned from other studies: {error.message}")
        return ()
    lessons = choose_lessons(
        found,
        situation=situation_of(session.job, session.environment),
        study=study_name(study.folder),
    )
    write_lessons(study.recalled_file, lessons)
    return lessons
