"""Run the search of a session, and leave its table, its answer and the best one's files."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from autotune.app.exports import export_study
from autotune.app.own_script import adopt_first_run
from autotune.app.pages import PageWriter
from autotune.app.steering import leave_lessons, steer, what_predicts
from autotune.base.errors import (
    AutotuneError,
    ExitCode,
    FleetError,
    NothingFeasibleError,
    StudyError,
)
from autotune.base.files import write_text
from autotune.base.flags import switch
from autotune.base.secrecy import scrubbed
from autotune.base.text import Say
from autotune.base.yaml_file import dump_yaml
from autotune.contract import PRIVATE_MODE, Origin, Outcome
from autotune.record.answer import Problem, SearchAnswer
from autotune.record.study import Study, results
from autotune.record.table import write_table
from autotune.search.answer import failed_answer
from autotune.search.base import Observer
from autotune.search.interrupt import Interrupt
from autotune.search.loop import run_search
from autotune.search.session import Session


def search(
    session: Session, observer: Observer, *, fresh: bool, knowledge: Path | None = None
) -> SearchAnswer:
    """Run the search, or go on with it; where it found nothing, the answer says why.

    `fresh` and `knowledge` are as of `run_searches`: lessons of this search go where those of
    earlier ones are from.

    Raises:
        FleetError: The devices are not there; nothing was opened.
        StudyError: The record cannot be read or written, or another search holds it.
    """
    study = session.study
    fleet, is_measured = session.make_fleet(), session.place.origin is Origin.MEASURED
    if fresh and (aside := study.set_aside()) is not None:
        observer.on_note(f"the old study is kept as {aside}")
    study.lock()
    page = PageWriter(study, observer)
    try:
        # What a killed search may have left: its trials hold devices that the next ones need.
        fleet.reap(study.trials_folder)
        study.sweep()
        _check_origin(session)
        begin_study(session, page.on_note)
        fleet.prepare(session.engine.preparation(session.lattice.candidates), page.on_note)
        if is_measured:
            adopt_first_run(session)
        knowledge = knowledge if is_measured else None  # no other figures are learned from
        steering = steer(session, page.on_note, knowledge)
        try:
            interrupt = Interrupt()
            with interrupt.on_signals(), _table_at_the_end(study), closing(fleet):
                answer = run_search(
                    session, fleet, observer=page, interrupt=interrupt, steering=steering
                )
        finally:  # also where nothing was feasible: that is a lesson too
            if knowledge is not None:
                leave_lessons(session, page.on_note, knowledge)
        study.update_state(answer=answer.to_dict())
        if answer.best is not None and is_measured:
            export_study(study, study.best_folder)
        return answer
    except (NothingFeasibleError, FleetError) as error:
        return _keep_failure(study, error)
    finally:
        fleet.close()  # once more where the search did not begin
        page.close()
        study.unlock()


def exit_code(answer: SearchAnswer) -> ExitCode:
    """How the program ends after this answer."""
    if answer.interrupted:
        return ExitCode.INTERRUPTED
    return ExitCode.NOTHING_FEASIBLE if answer.best is None else ExitCode.FOUND


def begin_study(session: Session, note: Say) -> None:
    """Write the job, and the facts that a report needs; an older answer no longer holds."""
    study, job, objective = session.study, session.job, session.objective
    # A name made of figures and a digest looks like a secret, and is the folder's name anyway.
    words = list(job.megatron_arguments)
    keys = {**scrubbed(dict(session.job_data)), "study": study.name}
    text = dump_yaml({**keys, **({"megatron_arguments": words} if words else {})})
    mode = PRIVATE_MODE if words else None
    hint = "free some space or mend the permissions, then run the same command again"
    write_text(study.job_file, text, error=StudyError, hint=hint, makes_folder=False, mode=mode)
    study.update_state(
        objective=dataclasses.asdict(objective.wish),
        allowed_bytes=objective.allowed_bytes,
        context=dataclasses.asdict(session.lattice.context),
        origin=session.place.origin,
        guard_steps=job.guard_steps,
        answer=None,
    )
    # Where the fleet forecasts itself, no accelerator's figures are asked for.
    if session.place.forecaster is None and job.accelerators is not None:
        with suppress(FleetError):  # nothing is predicted, and the search says why
            note(what_predicts(session.environment, session.table, job.accelerators))


def _check_origin(session: Session) -> None:
    """See that no study holds figures of two kinds."""
    study = session.study
    ended = results(study.trials())
    # Whoever finds a lost trial writes that down, not the fleet that would have measured it.
    origins = {result.origin for result in ended if result.outcome is not Outcome.LOST}
    if others := origins - {session.place.origin}:
        names, fresh = " and ".join(sorted(others)), switch("fresh")
        raise StudyError.of("app.other_origin", session=session, names=names, fresh=fresh)


def _keep_failure(study: Study, error: AutotuneError) -> SearchAnswer:
    """The answer of a search without a best candidate; a full disk does not hide the reason."""
    answer = failed_answer(error, study)
    try:
        study.update_state(answer=answer.to_dict())
    except StudyError as failure:
        error.add_note(failure.message)
        return dataclasses.replace(answer, problem=Problem.of(error))
    return answer


@contextmanager
def _table_at_the_end(study: Study) -> Iterator[None]:
    """Write the table however the search ends; an error of the search comes before the table's."""
    try:
        yield
    except BaseException as error:
        try:
            write_table(study)
        except Exception as failure:
            error.add_note(getattr(failure, "message", str(failure)))
        raise
    write_table(study)
