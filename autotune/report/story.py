"""The facts of a study: what every view of it tells, and nothing of how."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from autotune.base.units import format_rate
from autotune.contract import Outcome
from autotune.job.fidelity import describe_fidelity
from autotune.record.answer import SearchAnswer, Standing, answer_of
from autotune.record.facts import Facts
from autotune.record.guard import GuardVerdict, guards_of
from autotune.record.study import Recorded, Study, Trial
from autotune.record.table import TrialTable, make_table
from autotune.search.base import Snapshot, Stage
from autotune.search.confirm import Comparison, recorded_comparisons, verdict_of
from autotune.search.history import CandidateTrials, History
from autotune.search.objective import Objective, front_of
from autotune.search.race import BLOCK
from autotune.search.session import history_of
from autotune.space.knob import Context


@dataclass(frozen=True, kw_only=True)
class Story:
    """The facts of a study, while it is searched and afterwards."""

    study: str
    folder: Path
    facts: Facts
    history: History
    objective: Objective
    rows: Sequence[CandidateTrials]
    """One per candidate, the fastest first."""
    context: Context
    answer: SearchAnswer | None
    """None while the search has not ended."""
    comparison: Comparison | None = None
    """The final comparison that the answer rests on."""
    guards: Mapping[str, GuardVerdict] = field(default_factory=dict)
    """What the convergence guard says of the candidates of the final comparisons, by hash."""
    recorded: Recorded
    """The record that it was made of, trials included that answer for another job."""
    is_locked: bool = False
    """Whether a search held the study when it was read."""
    running: Snapshot | None = None
    """How the search goes that tells this; None: nobody told."""
    job: Mapping[str, Any] | None = None
    """The job's file as JSON; None where it cannot be read any more."""

    @property
    def best(self) -> Standing | None:
        """The answer's best; of a running search that of its comparison, or the best so far."""
        if self.running is None:
            return None if self.answer is None else self.answer.best
        compared = self.running.comparison
        return (compared and compared.leader) or self.running.best

    @property
    def baseline(self) -> Standing | None:
        """The answer's baseline, or that of a running search."""
        if self.running is None:
            return None if self.answer is None else self.answer.baseline
        compared = self.running.comparison
        return (compared and compared.start) or self.running.baseline

    @property
    def best_trial(self) -> int | None:
        return None if self.best is None else self.best.trial

    @property
    def baseline_trial(self) -> int | None:
        return None if self.baseline is None else self.baseline.trial

    @property
    def price_per_hour(self) -> float | None:
        """Price of an accelerator; None: nobody answered."""
        price = None if self.job is None else self.job.get("price")
        return price if isinstance(price, int | float) else None

    @property
    def is_both(self) -> bool:
        return self.best is not None and self.best_trial == self.baseline_trial

    @property
    def best_word(self) -> str:
        """`best`, or what the objective makes of it; a baseline that stands alone is no best."""
        is_alone = self.is_both and self.is_baseline_alone
        return "baseline" if is_alone else chosen_word(self.objective.wish.name)

    @cached_property
    def table(self) -> TrialTable:
        return make_table(self.study, self.recorded, self.facts)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """The rows of its table, and those of unreadable trials.

        Reduced trials have none: what they ran is no candidate of the job.
        """
        table = self.table
        return table[~table["trial"].isin(self.facts.left_out) & table["reduced_of"].isna()]

    @property
    def damaged(self) -> Mapping[int, str]:
        """Number of a trial whose record is damaged -> what is wrong with it."""
        found = {int(trial.folder.name): trial.problem for trial in self.recorded.unreadable}
        return found | {t.number: t.problem for t in self.history.recorded if t.problem}

    def fits(self, row: CandidateTrials) -> bool:
        """Whether a candidate keeps the memory limit; one without a figure is taken to."""
        return row.figure is None or self.objective.fits(row.figure.peak_memory_bytes)

    def drifts(self, row: CandidateTrials) -> bool:
        """Whether the guard fails a candidate: it is not handed out, however fast."""
        guard = self.guards.get(row.candidate.hash)
        return guard is not None and guard.is_drift

    @cached_property
    def sound_rows(self) -> Sequence[CandidateTrials]:
        """The rows that the guard does not fail."""
        return [row for row in self.rows if not self.drifts(row)]

    @property
    def leading_row(self) -> CandidateTrials | None:
        """The fastest row that may be the best while there is no answer; None: there is none."""
        return next((row for row in self.sound_rows if row.figure and self.fits(row)), None)

    @cached_property
    def ranked_rows(self) -> Sequence[CandidateTrials]:
        """The rows in the order of the answer.

        The best comes first, then whom it was compared with, then those that were tried once: the
        luckiest of many single runs is faster than a mean of several, and no better for it. What
        breaks the memory limit follows what keeps it, and those without a figure are last.
        """

        def place(row: CandidateTrials) -> tuple[bool, bool, bool, bool, float, int]:
            has_none, is_alone = row.figure is None, row.compared is None
            is_over = not self.fits(row)
            return row is not self.best_row, has_none, is_over, is_alone, -row.rate, row.trial

        return sorted(self.rows, key=place)

    @cached_property
    def front(self) -> Sequence[CandidateTrials]:
        """Sound ones that fit, and that no other beats in memory and speed; least memory first."""
        found = {row.candidate.hash: row for row in self.sound_rows if row.figure}
        figures = {
            key: row.figure
            for key, row in found.items()
            if row.figure and row.peak_bytes and self.fits(row)
        }
        return [found[key] for key in reversed(front_of(figures))]

    def trial(self, number: int) -> Trial | None:
        """A trial of the job; None where the record does not hold it."""
        return self._by_number.get(number)

    @cached_property
    def _by_number(self) -> Mapping[int, Trial]:
        return {trial.number: trial for trial in self.history.trials}

    def row_of(self, trial: int | None) -> CandidateTrials | None:
        """The candidate that a trial ran; None where the record does not hold that trial."""
        ran = None if trial is None else self.trial(trial)
        rows = (row for row in self.rows if ran and row.candidate.hash == ran.candidate_hash)
        return next(rows, None)

    @cached_property
    def best_row(self) -> CandidateTrials | None:
        return self.row_of(self.best_trial)

    @cached_property
    def baseline_row(self) -> CandidateTrials | None:
        return self.row_of(self.baseline_trial)

    @property
    def in_flight_word(self) -> str:
        """How a trial without a result stands: a search that was killed leaves such ones."""
        return "running" if self.running or self.is_locked else "cut short"

    def outcome_of(self, row: CandidateTrials) -> str:
        """One or two words: how a candidate did, and whether it is the one that counts."""
        if row.outcome is None:
            return self.in_flight_word
        if not row.outcome.is_measured:
            return row.outcome.value
        if not self.fits(row):
            return "over limit"
        for name, chosen in (("baseline", self.baseline_row), ("best", self.best_row)):
            if row == chosen:
                return name
        if self.drifts(row):
            return "drifts"
        is_disturbed = row.compared is None and row.result is not None and row.result.disturbed
        return "disturbed" if is_disturbed else row.outcome.value

    @property
    def is_baseline_alone(self) -> bool:
        """Whether only the baseline ran within the limits: nothing could beat it."""
        baseline = self.baseline_row
        others = [row for row in self.rows if row is not baseline]
        return baseline is not None and not any(row.figure and self.fits(row) for row in others)

    @property
    def is_nothing_tried(self) -> bool:
        """Whether the search ended before it tried anything but what leads to the baseline."""
        is_cut_short = self.answer is not None and self.answer.interrupted
        is_alone = self.is_baseline_alone and (is_cut_short or bool(self.facts.no_comparison))
        return is_alone and not any(row.is_searched and row.is_settled for row in self.rows)

    @property
    def n_rounds_cut_short(self) -> int:
        """Rounds that the last final comparison began without any verdict; 0: there is one."""
        trials = () if self.comparison or self.running else self.history.trials
        numbers = [n for t in trials if (n := t.spec.identity.confirm_round) is not None]
        return max(numbers) % BLOCK + 1 if numbers else 0

    @property
    def guarded(self) -> Mapping[str, tuple[int, GuardVerdict]]:
        """`best` and `drifted` -> its trial, and what the guard says of it; those there are."""
        answer, found = self.answer, {}
        if answer is not None and answer.best is not None and answer.guard is not None:
            found["best"] = (answer.best.trial, answer.guard)
        if answer is not None and answer.drifted is not None:
            found["drifted"] = (answer.drifted.standing.trial, answer.drifted.guard)
        return found


def make_rows(
    history: History, comparison: Comparison | None, answer: SearchAnswer | None = None
) -> list[CandidateTrials]:
    """The candidates of a record, the fastest first, by the figures of comparison and answer."""
    compared = {} if comparison is None else dict(comparison.figures)
    answered = () if answer is None else (answer.best, answer.baseline, *answer.ties)
    compared |= {s.candidate.hash: s for s in answered if s and s.candidate.hash in compared}
    rows = (replace(one, compared=compared.get(one.candidate.hash)) for one in history.tried)
    return sorted(rows, key=lambda row: (row.figure is None, -row.rate, row.trial))


def read_story(
    study: Study, *, running: Snapshot | None = None, job: Mapping[str, Any] | None = None
) -> Story:
    """Gather the facts of a study.

    Args:
        study: Where it is.
        running: How its search goes; one that is over is told by the record.
        job: Its job's file as JSON; None where it cannot be read.

    Raises:
        StudyError: The record cannot be read.
    """
    facts, recorded = study.checked_facts(), study.read()
    history = history_of(recorded, facts)
    objective = Objective(wish=facts.objective, allowed_bytes=facts.allowed_bytes)
    context = facts.context
    assert context is not None, "the facts are checked"
    baseline = facts.baseline.candidate_hash
    guards = guards_of(history.trials, baseline, facts.guard_steps)
    answer = answer_of(study, facts)
    drifting = {key for key, guard in guards.items() if guard.is_drift}
    best = None if answer is None else answer.best
    if best is not None and best.candidate.hash in drifting:
        drifting = set()  # the job allows it
    comparison = verdict_of(recorded_comparisons(history, objective, baseline), drifting)
    return Story(
        study=study.name,
        folder=study.folder,
        facts=facts,
        history=history,
        objective=objective,
        rows=make_rows(history, comparison, answer),
        comparison=comparison,
        guards=guards,
        context=context,
        answer=answer,
        recorded=recorded,
        is_locked=study.is_running,
        running=None if running is None or running.stage is Stage.DONE else running,
        job=job,
    )


def chosen_word(objective: str) -> str:
    """What an objective, by its name, makes of the chosen one: of a front it is the knee."""
    return "knee" if objective == "pareto" else "best"


def outcome_counts(counts: Mapping[Outcome, int]) -> dict[str, int]:
    """The outcomes there are, in the order of `Outcome`."""
    return {outcome.value: counts[outcome] for outcome in Outcome if counts.get(outcome)}


def why_lower(before: Standing, trials: Sequence[Trial]) -> str:
    """Why the best so far is slower than one before it; empty: its objective is not speed.

    Args:
        before: The best before.
        trials: Those of the record.
    """
    key, was = before.candidate.hash, f"trial {before.trial}, {format_rate(before.samples_per_s)}"
    for trial in trials:
        result = trial.result
        if result is None or trial.candidate_hash != key:
            continue
        if trial.spec.provenance.repeat_of == before.trial and result.outcome.is_measured:
            rate = format_rate(result.samples_per_s)
            return f"{was}, was disturbed: its repeat, trial {result.number}, counts ({rate})"
        if result.outcome.is_config_fault:
            return f"{was}, does not count any more: trial {result.number} of it ended with " + (
                result.outcome.value
            )
    return ""


def reduced_counts(history: History) -> dict[str, int]:
    """How many reduced trials there were, by their fidelity in words."""
    fidelities = (trial.spec.identity.fidelity for trial in history.reduced.trials)
    return dict(Counter(describe_fidelity(one) for one in fidelities if one))
