"""The record as an Optuna study: for the importance of knobs, and for Optuna's own dashboard.

One Optuna trial per candidate, with the figure that the report shows. Constraints stand twice: as
Optuna 5 keeps them, and as the list in the system attribute `constraints` that optuna-dashboard
0.21 still reads alone; without it, it would crown a trial that ran out of memory.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.base.guarded_process import scratch_folder
from autotune.contract import KnobValue
from autotune.export.base import RecordDialect
from autotune.record.study import Study
from autotune.report.results.rows import Row
from autotune.report.story import Story, read_story
from autotune.search.history import Tried
from autotune.space.knob import Catalogue

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
    told = [trial.values[0] for trial in trials]
    worst = min(told) if direction == "maximize" else max(told)
    for trial, value in zip(trials, told, strict=True):
        is_broken = any(value > 0 for value in trial.constraints.values())
        trial.values = [worst if is_broken else value]
    study.add_trials(trials)
    with warnings.catch_warnings():
        # It warns where most candidates are equally bad; then the shares are equal too.
        warnings.simplefilter("ignore")
        shares = optuna.importance.get_param_importances(
            study, evaluator=PedAnovaImportanceEvaluator(target_quantile=TOP_SHARE)
        )
    made = _distributions(report.history.tried, report.context.knobs)
    varies = {name for name, d in made.items() if not d.single()}
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
            told = optuna.create_study(
                study_name=report.study,
                storage=JournalStorage(JournalFileBackend(str(file))),
                directions=report.objective.directions,
            )
            for key, value in _study_attributes(report).items():
                told.set_user_attr(key, value)
            told.add_trials(_trials(report))
            return file.read_text(encoding="utf-8")


def _trials(report: Story) -> list[FrozenTrial]:
    """One per candidate, in the order in which they were first tried."""
    tried = report.history.tried
    rows = {row.candidate.hash: row for row in report.rows}
    distributions = _distributions(tried, report.context.knobs)
    figures = [f for t in tried if (f := report.objective.figure(t)) is not None]
    best = max((figure.samples_per_s for figure in figures), default=0.0)
    peaks = [t.measured.peak_memory_bytes or 0 for t in tried if t.measured is not None]
    worst_peak_bytes = float(max(peaks, default=0))
    return [
        _trial(report, t, rows[t.candidate.hash], distributions, best, worst_peak_bytes)
        for t in tried
        if not t.is_running
    ]


def _trial(
    report: Story,
    tried: Tried,
    row: Row,
    distributions: Mapping[str, BaseDistribution],
    best_samples_per_s: float,
    worst_peak_bytes: float,
) -> FrozenTrial:
    """A platform fault becomes a failed trial; a configuration's fault breaks a constraint."""
    chosen = tried.candidate.values
    known: dict[str, Any] = {
        "params": dict(chosen),
        "distributions": {name: distributions[name] for name in chosen},
        "user_attrs": _attributes(report, tried, row),
    }
    if tried.measured is None and tried.fault is None:
        return create_trial(state=TrialState.FAIL, **known)
    constraints = report.objective.constraints(tried, best_samples_per_s)
    values = report.objective.values(tried, worst_peak_bytes)
    if row.figure is not None and report.objective.directions[0] == "maximize":
        values[0] = row.figure.samples_per_s
    return create_trial(
        state=TrialState.COMPLETE,
        values=values,
        constraints=constraints,
        system_attrs={"constraints": list(constraints.values())},
        **known,
    )


def _distributions(tried: Sequence[Tried], knobs: Catalogue) -> dict[str, BaseDistribution]:
    """One per knob of the record, over the values that were tried."""
    seen: dict[str, dict[KnobValue, None]] = {}
    for one in tried:
        for name, value in one.candidate.knobs:
            seen.setdefault(name, {})[value] = None
    return {name: _distribution(knobs[name].kind, tuple(values)) for name, values in seen.items()}


def _distribution(kind: str, values: tuple[KnobValue, ...]) -> BaseDistribution:
    if kind != "int":
        return CategoricalDistribution(values)
    low, high = (int(edge(values, key=int)) for edge in (min, max))
    return IntDistribution(low, high, log=low >= 1)


def _attributes(report: Story, tried: Tried, row: Row) -> dict[str, Any]:
    """Attributes of a candidate from the report; None is left out."""
    found: dict[str, Any] = {
        "trial": row.trial,
        "candidate_hash": tried.candidate.hash,
        "outcome": row.outcome and row.outcome.value,
        "evidence": row.evidence or None,
    }
    if figure := row.figure:
        found |= {
            "n_runs": row.n_runs,
            "samples_per_s": figure.samples_per_s,
            "samples_per_s_low": figure.samples_per_s_low,
            "samples_per_s_high": figure.samples_per_s_high,
            "peak_memory_bytes": figure.peak_memory_bytes,
        }
    found |= {"is_best": row == report.best_row, "is_baseline": row == report.baseline_row}
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
