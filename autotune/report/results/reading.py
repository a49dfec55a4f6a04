"""A study read from its folder, as everything that reports it needs it."""

from autotune.base.errors import StudyError
from autotune.record.answer import answer_of
from autotune.record.facts import allowed_bytes_of, context_of, objective_of
from autotune.record.study import Study
from autotune.report.results.rows import make_rows
from autotune.report.results.study import StudyReport
from autotune.search.objective import Objective
from autotune.search.recorded import history_of


def read_report(study: Study) -> StudyReport:
    """Everything that the report of a study shows.

    Raises:
        StudyError: The record cannot be read.
    """
    facts, recorded = study.read_state(), study.read()
    history = history_of(recorded, facts)
    objective = Objective(wish=objective_of(facts), allowed_bytes=allowed_bytes_of(facts))
    context = context_of(facts)
    if context is None:
        raise StudyError(
            f"{study.state_file}: missing, damaged or of another version: it does not say what "
            "was searched (context)",
            "run the same search again: it writes a new one and keeps the trials",
        )
    return StudyReport(
        study=study.name,
        folder=study.folder,
        facts=facts,
        history=history,
        objective=objective,
        rows=make_rows(history, objective),
        context=context,
        answer=answer_of(facts, study),
        recorded=recorded,
    )
