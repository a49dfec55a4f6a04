"""A study, ready to be shown: what every form of the report is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.base.errors import StudyError
from autotune.contract import Outcome
from autotune.record.answer import SearchAnswer, answer_of
from autotune.record.facts import (
    allowed_bytes_of,
    baseline_of,
    context_of,
    guard_steps_of,
    objective_of,
)
from autotune.record.guard import GuardVerdict, guards_of
from autotune.record.study import Recorded, Study, Trial
from autotune.report.results.rows import Row, make_rows, ranked
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.recorded import history_of
from autotune.space.knob import Context


@dataclass(frozen=True, kw_only=True)
class StudyReport:
    """A study, ready to be shown."""

    study: str
    folder: Path
    facts: Mapping[str, Any]
    """`study.json`: environment, model, why the search stopped."""
    history: History
    objective: Objective
    rows: Sequence[Row]
    """One per candidate, the fastest first."""
    context: Context
    answer: SearchAnswer | None
    """None while the search has not ended."""
    guards: Mapping[str, GuardVerdict] = field(default_factory=dict)
    """What the convergence guard says of the candidates of the final comparisons, by hash."""
    recorded: Recorded
    """The record that it was made of, trials included that answer for another job."""
    is_running: bool = False
    """Whether a search held the study when it was read."""

    @property
    def damaged(self) -> Mapping[int, str]:
        """Number of a trial whose record is damaged -> what is wrong with it."""
        found = {int(each.folder.name): each.problem for each in self.recorded.unreadable}
        return found | {
            t.spec.identity.number: t.problem for t in self.history.recorded if t.problem
        }

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """Ended trials by outcome."""
        return self.history.counts

    def drifts(self, row: Row) -> bool:
        """Whether the guard fails a candidate: it is not handed out, however fast."""
        guard = self.guards.get(row.candidate.hash)
        return guard is not None and guard.is_drift

    @property
    def sound_rows(self) -> Sequence[Row]:
        """The rows that the guard does not fail."""
        return [row for row in self.rows if not self.drifts(row)]

    @property
    def leading_row(self) -> Row | None:
        """The fastest row that may be the best while there is no answer; None: there is none."""
        return next((row for row in self.sound_rows if row.figure and row.fits), None)

    @property
    def ranked_rows(self) -> Sequence[Row]:
        """The rows in the order of the answer."""
        return ranked(self.rows, None if self.best_row is None else self.best_row.trial)

    def trial(self, number: int) -> Trial | None:
        """A trial of the job; None where the record does not hold it."""
        return next((t for t in self.history.trials if t.spec.identity.number == number), None)

    def row_of(self, trial: int | None) -> Row | None:
        """The candidate that a trial ran; None where the record does not hold that trial."""
        ran = None if trial is None else self.trial(trial)
        if ran is None:
            return None
        its_hash = ran.spec.identity.candidate_hash
        return next((row for row in self.rows if row.candidate.hash == its_hash), None)

    @property
    def best_trial(self) -> int | None:
        """The trial behind the answer's best; None where there is none."""
        return self.answer.best.trial if self.answer and self.answer.best else None

    @property
    def baseline_trial(self) -> int | None:
        """The trial behind the answer's baseline; None where there is none."""
        return self.answer.baseline.trial if self.answer and self.answer.baseline else None

    @property
    def is_baseline_alone(self) -> bool:
        """Whether only the answer's baseline ran within the limits: nothing could beat it."""
        baseline = self.baseline_row
        others = [row for row in self.rows if row is not baseline]
        return baseline is not None and not any(row.figure and row.fits for row in others)

    @property
    def guarded(self) -> Mapping[str, tuple[int, GuardVerdict]]:
        """`best` and `drifted` -> its trial, and what the guard says of it; those there are."""
        answer, found = self.answer, {}
        if answer is not None and answer.best is not None and answer.guard is not None:
            found["best"] = (answer.best.trial, answer.guard)
        if answer is not None and answer.drifted is not None:
            found["drifted"] = (answer.drifted.standing.trial, answer.drifted.guard)
        return found

    @property
    def best_row(self) -> Row | None:
        """The row of the answer's best; None where there is none."""
        return self.row_of(self.best_trial)

    @property
    def baseline_row(self) -> Row | None:
        """The row of the answer's baseline; None where there is none."""
        return self.row_of(self.baseline_trial)


def objective_at(facts: Mapping[str, Any]) -> Objective:
    """What a study was searched for, and what memory it allowed."""
    return Objective(wish=objective_of(facts), allowed_bytes=allowed_bytes_of(facts))


def read_report(study: Study) -> StudyReport:
    """Everything that the report of a study shows.

    Raises:
        StudyError: The record cannot be read.
    """
    facts, recorded = study.read_state(), study.read()
    history = history_of(recorded, facts)
    objective = objective_at(facts)
    context = context_of(facts)
    if context is None:
        raise StudyError(
            f"{study.state_file}: missing, damaged or of another version: it does not say what "
            "was searched (context)",
            "run the same search again: it writes a new one and keeps the trials",
        )
    baseline = baseline_of(facts).candidate_hash
    return StudyReport(
        study=study.name,
        folder=study.folder,
        facts=facts,
        history=history,
        objective=objective,
        rows=make_rows(history, objective, baseline),
        guards=guards_of(history.trials, baseline, guard_steps_of(facts)),
        context=context,
        answer=answer_of(facts, study, recorded),
        recorded=recorded,
        is_running=study.is_running,
    )
