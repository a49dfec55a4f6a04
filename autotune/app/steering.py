"""What a search goes by besides its own trials, and what it leaves for the next one."""

from collections.abc import Callable
from pathlib import Path

from autotune.app.session import Session
from autotune.cost.knowledge import Lesson, keep_lessons, read_lessons
from autotune.errors import AutotuneError, StudyError
from autotune.search.objective import Objective
from autotune.search.recall import recall
from autotune.search.steering import Steering, lessons_of, steering_of


def steer(
    session: Session, note: Callable[[str], None], knowledge: Path | None
) -> Steering | None:
    """What predicts a search's trials, and what its sampler `calibrated` goes by.

    Args:
        session: The job and what is legal for it here.
        note: Is told why there is nothing to go by, or what is left out.
        knowledge: The file of lessons; None: none.

    Returns:
        None where nothing can be predicted; TPE proposes for the sampler `calibrated` then.
    """
    job, environment = session.job, session.environment
    lessons: tuple[Lesson, ...] = ()
    if knowledge is not None:
        try:
            lessons = read_lessons(knowledge)
        except StudyError as error:
            note(f"nothing is learned from other studies: {error.message}")
    try:
        steering = steering_of(
            job,
            environment,
            session.lattice,
            lessons=lessons,
            study=_name_of(session),
            forecaster=session.forecaster,
        )
    except AutotuneError as error:
        instead = "TPE proposes, for " if job.sampler == "calibrated" else ""
        note(f"{instead}nothing can be predicted: {error.message}")
        if job.budget.gpu_hours is not None:
            note("gpu_hours does not end this search: what a trial may gain is not known")
        return None
    if job.sampler != "calibrated":
        return steering
    if not steering.can_steer(Objective.of(job, environment)):
        note("TPE proposes: predictions steer only the objective samples_per_s, by known knobs")
    elif steering.recalled is not None:
        note(f"{len(steering.recalled.times.study)} trials of other studies correct the forecast")
    return steering


def keep(session: Session, note: Callable[[str], None], knowledge: Path) -> None:
    """Leave what the trials taught for other studies; the search is over, whatever happens."""
    job, environment = session.job, session.environment
    try:
        history = recall(session.study, job=job, engine=session.engine, environment=environment)
        lessons = lessons_of(
            history,
            job,
            environment,
            Objective.of(job, environment),
            study=_name_of(session),
        )
        keep_lessons(knowledge, _name_of(session), lessons)
    except AutotuneError as error:
        note(f"no lessons are kept for other studies: {error.message}")


def _name_of(session: Session) -> str:
    """Of the study among those of the file, which may be of many folders."""
    return str(session.study.folder.absolute())
