"""Studies of a folder: which there are, how each stands, what one trial of it says."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from autotune.base.errors import StudyError
from autotune.base.names import did_you_mean
from autotune.base.text import named
from autotune.contract import Origin
from autotune.job.observed import OBSERVED_FILE, Observed
from autotune.record.answer import answer_of
from autotune.record.study import DEFAULT_RESULTS, Study, results
from autotune.report.explain.trial import Explanation, explain, rows_of
from autotune.report.story import outcome_counts, read_story
from autotune.search.session import history_of
from autotune.space.script import reach_of


@dataclass(frozen=True, kw_only=True)
class State:
    """How a study stands."""

    study: str
    folder: str
    is_running: bool
    """Whether a search holds it now."""
    n_trials: int
    n_reduced: int
    """Trials among these that ran fewer layers or accelerators, and are in no ranking."""
    n_left_out: int
    """Trials of the record besides those, of another job or configuration."""
    counts: dict[str, int]
    """Ended trials by outcome."""
    best_samples_per_s: float | None
    """Figure of the answer's best, or of the best so far; None where nothing was measured."""
    speedup: float | None
    """Speed of the best over the baseline's; None while there is none."""
    is_proven: bool
    """Whether the best is proven to be better than the baseline."""
    stop_reason: str | None
    """None while the search has not ended."""
    is_searched: bool = True
    """Whether a search began; else the command was only diagnosed."""
    is_damaged: bool = False
    """Whether its `study.json` is missing or damaged: its trials are there, and no answer."""
    substitute_baseline: bool = False
    """Whether that baseline is another than was asked for, since the platform ended that."""
    origin: str = "measured"
    """Origin of its figures: `measured`, `replayed` or `simulated`."""


def studies(results: Path) -> list[Study]:
    """All studies of a folder, the one that was searched last at the end.

    Raises:
        StudyError: The folder cannot be read.
    """
    try:
        found = [path for path in results.iterdir() if _is_study(path)]
        found.sort(key=_searched_at_s)
    except FileNotFoundError as error:
        # The default one is made by the first search; another was mistyped, or is elsewhere.
        if results == DEFAULT_RESULTS:
            return []
        near = did_you_mean(results.name, _folders_beside(results), alike=0.7)
        raise StudyError.of("app.no_results", results=results, near=near) from error
    except OSError as error:
        raise StudyError.of("app.results_unread", results=results, error=error) from error
    return [Study(results, path.name) for path in found]


def _folders_beside(results: Path) -> list[str]:
    try:
        return [path.name for path in results.absolute().parent.iterdir() if path.is_dir()]
    except OSError:
        return []


def _is_study(folder: Path) -> bool:
    """Whether a search has begun there; one that only took its lock has not."""
    trials = folder / "trials"
    return (folder / "job.yaml").is_file() or (trials.is_dir() and any(trials.iterdir()))


def _searched_at_s(folder: Path) -> float:
    """When its job was written; a study whose job is lost is as old as its last new trial."""
    job = folder / "job.yaml"
    return (job if job.is_file() else folder / "trials").stat().st_mtime


def find_study(results: Path, name: str | None) -> Study:
    """A study by name, or the one that was searched last.

    Raises:
        StudyError: There is none.
    """
    found = {study.name: study for study in studies(results)}
    if not found:
        which = "" if name is None else f" {name!r}, nor any other"
        raise StudyError(f"{results}: holds no study{which}", "`autotune search` makes one")
    if (wanted := [*found][-1] if name is None else name) in found:
        return found[wanted]
    hint = f"{did_you_mean(wanted, found)}studies there: {named([*found])}"
    raise StudyError(f"{results}: holds no study {name!r}", hint)


def locate(run: str, results: Path) -> Study:
    """A study by its folder, or by its name in the folder of all studies.

    Raises:
        StudyError: There is none.
    """
    folder = Path(run)
    if (folder / "trials").is_dir():
        folder = folder.resolve()
        return Study(folder.parent, folder.name)
    if len(folder.parts) > 1:
        raise StudyError.of("app.no_study", run=run)
    return find_study(results, folder.name)  # as a shell completes it, with a slash behind it


def state_of(study: Study) -> State:
    """How a study stands.

    Raises:
        StudyError: The record cannot be read.
    """
    facts = study.facts()
    recorded = study.read()
    history = history_of(recorded, facts)
    answer = answer_of(study, facts)
    if answer is None:
        leading = None if facts.context is None else read_story(study).leading_row
        best_samples_per_s = None if leading is None else leading.rate
    else:
        best_samples_per_s = None if answer.best is None else answer.best.samples_per_s
    speedup = None if answer is None else answer.speedup
    return State(
        study=study.name,
        folder=str(study.folder),
        is_running=study.is_running,
        n_trials=len(history.recorded),
        n_reduced=len(history.reduced.trials),
        n_left_out=len(facts.left_out),
        counts=outcome_counts(history.counts),
        best_samples_per_s=best_samples_per_s,
        speedup=None if speedup is None else speedup.ratio,
        is_proven=answer is not None and answer.has_proven_gain,
        substitute_baseline=answer is not None and answer.is_substitute,
        stop_reason=None if answer is None else answer.stop_reason,
        is_searched=facts.is_searched,
        is_damaged=facts.context is None,
        origin=facts.origin,
    )


def explain_trial(study: Study, number: int) -> Explanation:
    """Where a trial's time went, what bounds it and what addresses that.

    Raises:
        StudyError: There is no such trial, or it had no diagnostic pass.
    """
    report = read_story(study)
    rows = rows_of(report.table)
    explanation = explain(report, number, rows.get(number, {}))
    if explanation is not None:
        return _within_reach(explanation, study)
    known = [str(run.number) for run in results(report.history.trials) if run.diagnosis]
    hint = f"name one of {', '.join(known)}" if known else "search again, without --no-diagnose"
    trial = next((t for t in report.history.recorded if t.number == number), None)
    if trial is None:
        if not known:
            hint = f"`autotune report --study {study.name}` lists its trials"
        raise StudyError(f"study {study.name}: there is no trial {number}", hint)
    if (origin := report.facts.origin) is not Origin.MEASURED:
        raise StudyError.of("app.nothing_ran", study=study, number=number, origin=origin.value)
    if trial.measured is not None and trial.spec.measure.diagnoses:
        raise StudyError.of("app.too_short", study=study, number=number)
    raise StudyError.of("app.not_diagnosed", study=study, number=number, hint=hint)


def _within_reach(explanation: Explanation, study: Study) -> Explanation:
    """Without advice that does not reach the study's own command, if it has one."""
    path = study.folder / OBSERVED_FILE
    if not path.exists():
        return explanation
    beyond = reach_of(Observed.read(path)).left_out
    advice = [one for one in explanation.advice if one.knob not in beyond]
    return dataclasses.replace(explanation, advice=advice)
