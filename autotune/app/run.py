"""Run the search of a session, and leave its table, its answer and the best one's files."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import yaml

from autotune import extensions
from autotune.app.session import Session
from autotune.app.studies import write_export
from autotune.errors import ExitCode, StudyError
from autotune.fleet.local import LocalFleet
from autotune.report.summary import summarize
from autotune.search.base import Observer, SearchResult
from autotune.search.interrupt import Interrupt
from autotune.search.loop import run_search
from autotune.search.objective import Objective
from autotune.table import write_table


def search(session: Session, observer: Observer, *, fresh: bool) -> dict[str, Any]:
    """Run the search, or go on with it.

    Returns:
        The answer, as `summarize` words it.

    Raises:
        NothingFeasibleError: No trial ran within the limits; the table is written all the same.
        FleetError: The devices are not there, or end one trial after the other.
        StudyError: The record cannot be read or written, or another search holds it.
    """
    study = session.study
    fleet = LocalFleet(session.environment, world=session.job.world)
    if fresh and (aside := study.set_aside()) is not None:
        observer.on_note(f"the old study is kept as {aside}")
    study.lock()
    try:
        _begin(session)
        extensions.build(session.environment.accelerator, observer.on_note)
        result = _run(session, fleet, observer)
        answer = summarize(result, study)
        study.write_state({**study.read_state(), "answer": answer})
        if result.best is not None:
            write_export(study, study.best_folder, to=session.engine.name, trial=None)
        return answer
    finally:
        study.unlock()


def exit_code(answer: Mapping[str, Any]) -> ExitCode:
    """How the program ends after this answer."""
    if answer["interrupted"]:
        return ExitCode.INTERRUPTED
    return ExitCode.NOTHING_FEASIBLE if answer["best"] is None else ExitCode.FOUND


def _begin(session: Session) -> None:
    """Write the job, and the facts that a report needs; an older answer no longer holds."""
    study, job = session.study, session.job
    objective = Objective.of(job, session.environment)
    text = yaml.safe_dump(dict(session.job_data), sort_keys=False)
    try:
        study.job_file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StudyError(
            f"{study.job_file}: cannot be written: {error.strerror}",
            "free some space or mend the permissions, then run the same command again",
        ) from error
    facts = {
        "objective": dataclasses.asdict(objective.wish),
        "allowed_bytes": objective.allowed_bytes,
        "context": dataclasses.asdict(session.lattice.context),
        "answer": None,
    }
    study.write_state({**study.read_state(), **facts})


def _run(session: Session, fleet: LocalFleet, observer: Observer) -> SearchResult:
    interrupt = Interrupt()
    with interrupt.on_signals():
        try:
            return run_search(
                session.job,
                study=session.study,
                fleet=fleet,
                engine=session.engine,
                environment=session.environment,
                lattice=session.lattice,
                observer=observer,
                interrupt=interrupt,
            )
        finally:
            fleet.close()
            write_table(session.study)
