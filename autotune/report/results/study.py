"""A study, ready to be shown: what every form of the report is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.contract import Outcome
from autotune.record.answer import SearchAnswer
from autotune.record.study import Recorded
from autotune.report.results.rows import Row
from autotune.search.history import History
from autotune.search.objective import Objective
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
    recorded: Recorded
    """The record that it was made of, trials included that answer for another job."""

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

    def row_of(self, trial: int) -> Row | None:
        """The candidate that a trial ran; None where the record does not hold that trial."""
        ran = {
            t.spec.identity.candidate_hash
            for t in self.history.trials
            if t.spec.identity.number == trial
        }
        return next((row for row in self.rows if row.candidate.hash in ran), None)

    @property
    def best_trial(self) -> int | None:
        """The trial behind the answer's best; None where there is none."""
        best = None if self.answer is None else self.answer.best
        return None if best is None else best.trial

    @property
    def baseline_trial(self) -> int | None:
        """The trial behind the answer's baseline; None where there is none."""
        baseline = None if self.answer is None else self.answer.baseline
        return None if baseline is None else baseline.trial

    @property
    def best_row(self) -> Row | None:
        """The row of the answer's best; None where there is none."""
        return None if self.best_trial is None else self.row_of(self.best_trial)

    @property
    def baseline_row(self) -> Row | None:
        """The row of the answer's baseline; None where there is none."""
        return None if self.baseline_trial is None else self.row_of(self.baseline_trial)
