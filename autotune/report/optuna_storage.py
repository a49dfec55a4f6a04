"""The record as an Optuna study, for Optuna's own dashboard.

One Optuna trial per candidate, with the figure that the report shows. Constraints stand twice: as
Optuna 5 keeps them, and as the list in the system attribute `constraints` that optuna-dashboard
0.21 still reads alone; without it, it would crown a trial that ran out of memory.
"""

from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from autotune.base.guarded_process import scratch_folder
from autotune.export.base import RecordDialect
from autotune.record.study import Study
from autotune.report.story import Story, read_story
from autotune.search.history import CandidateTrials
from autotune.search.optuna_study import Axis, frozen_trials


class OptunaJournal(RecordDialect):
    """A journal that `optuna-dashboard FILE` opens.

    In Python: `optuna.load_study(study_name=..., storage=JournalStorage(backend))` with
    `backend = JournalFileBackend(FILE)`.
    """

    mark = b'"user_attr":{"objective":'

    def text(self, study: Study) -> str:
        """The study as an Optuna journal.

        Raises:
            StudyError: The record cannot be read.
        """
        report = read_story(study)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        with scratch_folder() as folder:
            file = folder / "journal"
            journal = optuna.create_study(
                study_name=report.study,
                storage=JournalStorage(JournalFileBackend(str(file))),
                directions=report.objective.directions,
            )
            for key, value in _study_attributes(report).items():
                journal.set_user_attr(key, value)
            journal.add_trials(_trials(report))
            return file.read_text(encoding="utf-8")


def _trials(report: Story) -> list[FrozenTrial]:
    """One per candidate, in the order in which they were first tried; the values as they are."""
    rows = {row.candidate.hash: row for row in report.rows}
    seen, knobs = report.history.values, report.context.knobs
    axes = {name: Axis(values=tuple(values), is_log2=False) for name, values in seen.items()}
    distributions = {
        name: _over([int(value) for value in values])
        if knobs[name].kind == "int"
        else CategoricalDistribution(tuple(values))
        for name, values in seen.items()
    }
    found = frozen_trials(axes, report.history, report.objective)
    for tried, trial in zip(report.history.tried, found, strict=True):
        row = rows[tried.candidate.hash]
        trial.user_attrs = _attributes(report, row)
        trial.distributions = {name: distributions[name] for name in trial.params}
        if trial.state is TrialState.COMPLETE:
            listed = {"constraints": list(trial.constraints.values())}
            trial.system_attrs = {**trial.system_attrs, **listed}
            if row.figure is not None and report.objective.directions[0] == "maximize":
                trial.values = [row.figure.samples_per_s, *trial.values[1:]]
    return [trial for trial in found if trial.state is not TrialState.RUNNING]


def _over(numbers: list[int]) -> IntDistribution:
    """The range of some numbers, by their logarithms where it has no zero."""
    return IntDistribution(min(numbers), max(numbers), log=min(numbers) >= 1)


def _attributes(report: Story, row: CandidateTrials) -> dict[str, Any]:
    """Attributes of a candidate from the report; None is left out."""
    bounds = ("samples_per_s_low", "samples_per_s_high")
    figures = ("n_runs", "samples_per_s", *bounds, "peak_memory_bytes")
    found: dict[str, Any] = {
        "trial": row.trial,
        "candidate_hash": row.candidate.hash,
        "outcome": row.outcome and row.outcome.value,
        "evidence": row.evidence or None,
        **{name: getattr(row.figure, name, None) for name in figures},
        "is_best": row == report.best_row,
        "is_baseline": row == report.baseline_row,
    }
    return {key: value for key, value in found.items() if value is not None}


def _study_attributes(report: Story) -> dict[str, Any]:
    attributes: dict[str, Any] = {"objective": report.objective.wish.name}
    if report.answer is not None:
        gain = report.answer.speedup
        ends = (None, None, None) if gain is None else (gain.ratio, gain.low, gain.high)
        names = ("speedup", "speedup_low", "speedup_high")
        attributes |= dict(zip(names, ends, strict=True))
        attributes["stop_reason"] = report.answer.stop_reason
    return attributes
