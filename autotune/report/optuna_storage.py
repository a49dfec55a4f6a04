"""The record as an Optuna study: for the importance of knobs, and for Optuna's own dashboard.

One Optuna trial per candidate, with the figure that the report shows. Constraints stand twice: as
Optuna 5 keeps them, and as the list in the system attribute `constraints` that optuna-dashboard
0.21 still reads alone; without it, it would crown a trial that ran out of memory.
"""

import warnings
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState

from autotune.base.guarded_process import scratch_folder
from autotune.export.base import RecordDialect
from autotune.record.study import Study
from autotune.report.story import Story, read_story
from autotune.search.history import CandidateTrials
from autotune.search.optuna_study import Axis, frozen_trials

MIN_CANDIDATES = 20
"""Fewer say nothing of importance: a quarter of them is five, the fewest that Optuna recommends
above the quantile."""
TOP_SHARE = 0.25
"""Importance is for being among this share of the candidates."""


def importance_of(report: Story) -> dict[str, float] | None:
    """How much each knob decides whether a candidate is among the best quarter.

    PED-ANOVA (Watanabe et al., arXiv 2304.10255; conditional knobs: arXiv 2601.20800). A candidate
    that failed or broke a limit counts as the worst.

    Returns:
        Knob that varies -> share, the largest first, adding up to 1; None with fewer than
        `MIN_CANDIDATES` settled candidates, or where no knob varies.
    """
    trials = [t for t in _trials(report) if t.state is TrialState.COMPLETE]
    if len(trials) < MIN_CANDIDATES:
        return None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    direction = report.objective.directions[0]
    study = optuna.create_study(direction=direction)
    values = [trial.values[0] for trial in trials]
    worst = min(values) if direction == "maximize" else max(values)
    for trial, value in zip(trials, values, strict=True):
        is_broken = any(value > 0 for value in trial.constraints.values())
        trial.values = [worst if is_broken else value]
    study.add_trials(trials)
    with warnings.catch_warnings():
        # It warns where most candidates are equally bad; then the shares are equal too.
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        )
    varies = {name for name, values in report.history.values.items() if len(values) > 1}
    found = {name: share for name, share in shares.items() if name in varies}
    if not any(found.values()):
        return None
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


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
