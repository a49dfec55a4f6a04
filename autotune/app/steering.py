"""What a search goes by besides its own trials, and what it leaves for the next one."""

from collections.abc import Callable
from pathlib import Path

from autotune.app.session import Session
from autotune.base.errors import AutotuneError, StudyError
from autotune.base.plugins import load_plugin
from autotune.cost.knowledge import (
    Lesson,
    choose_lessons,
    keep_lessons,
    read_lessons,
    study_name,
    write_lessons,
)
from autotune.search.objective import Objective
from autotune.search.recorded import history_to_resume
from autotune.search.steering import Steering, lessons_of, situation_of, steering_of


def steer(
    session: Session, note: Callable[[str], None], knowledge: Path | None
) -> Steering | None:
    """The forecast of a search's trials, which some samplers follow.

    Args:
        session: The job and what is legal for it here.
        note: Is told why there is nothing to go by, or what is left out.
        knowledge: The file of lessons; None: none.

    Returns:
        None where nothing can be predicted.

    Raises:
        StudyError: The study's folder cannot be written.
    """
    job, environment = session.job, session.environment
    follows = load_plugin("sampler", job.sampler).goes_by_forecast
    lessons = () if knowledge is None else _lessons_for(session, note, knowledge)
    try:
        steering = steering_of(
            job,
            environment,
            session.lattice,
            lessons=lessons,
            study=study_name(session.study.folder),
            forecaster=session.place.forecaster,
        )
    except AutotuneError as error:
        instead = "TPE proposes, for " if follows else ""
        note(f"{instead}nothing can be predicted: {error.message}")
        if job.budget.gpu_hours is not None:
            note("gpu_hours does not end this search: what a trial may gain is not known")
        return None
    if not follows:
        return steering
    if not steering.can_steer(Objective.of(job, environment)):
        note("TPE proposes: predictions steer only the objective samples_per_s, by known knobs")
    elif steering.recalled is not None:
        note(f"{steering.recalled.n_trials} trials of other studies correct the forecast")
    return steering


def keep(session: Session, note: Callable[[str], None], knowledge: Path) -> None:
    """Leave what the trials taught for other studies, however their search ended."""
    job, environment = session.job, session.environment
    name = study_name(session.study.folder)
    try:
        history = history_to_resume(
            session.study, job=job, engine=session.engine, environment=environment
        )
        lessons = lessons_of(
            history,
            job,
            environment,
            Objective.of(job, environment),
            study=name,
        )
        if lessons:
            keep_lessons(knowledge, name, lessons)
    except AutotuneError as error:
        note(f"no lessons are kept for other studies: {error.message}")


def _lessons_for(
    session: Session, note: Callable[[str], None], knowledge: Path
) -> tuple[Lesson, ...]:
    """The lessons of other studies when this one began: a resumed search goes on with the same.

    The file of lessons changes meanwhile, and with it what a search would propose.
    """
    study = session.study
    if study.recalled_file.exists():
        try:
            return read_lessons(study.recalled_file)
        except StudyError as error:
            note(f"what other studies taught is recalled anew: {error.message}")
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
