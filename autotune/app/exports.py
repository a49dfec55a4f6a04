"""A study's best configuration, one trial's, or the study itself, in somebody's files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import StudyError
from autotune.contract import Origin
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine, find_engine
from autotune.export.base import MeasuredFigures, RecordDialect
from autotune.export.door import export_handout, export_record, find_dialect, handout_of
from autotune.job.fidelity import describe_fidelity
from autotune.job.job import Job, make_job, read_job_file
from autotune.record.answer import SearchAnswer, answer_of
from autotune.record.facts import environment_at, environment_of, origin_of
from autotune.record.soak import SoakResult, digest_of, read_soak
from autotune.record.spread import Spread, is_figure
from autotune.record.study import Study, Trial
from autotune.search.objective import figure_of
from autotune.search.recorded import Task, history_of
from autotune.space.candidate import Candidate, candidate_of


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trial's configuration with everything that it needs to be run or handed out."""

    trial: Trial
    candidate: Candidate
    job: Job
    environment: Environment
    """Where the trial ran."""
    engine: Engine
    answer: SearchAnswer | None
    """None while the search has not ended."""
    spread: Spread
    """How much runs of one candidate of the study differ."""


def find_chosen(study: Study, *, trial: int | None) -> Chosen:
    """A study's best configuration, or one trial's.

    Args:
        study: A study with trials.
        trial: Number of the trial; None for the best.

    Raises:
        StudyError: There is no such trial, no best one yet, or the job or a file that it names
            has changed since the trial ran.
        JobError: The study's job cannot be read any more.
    """
    facts = study.read_state()
    _check_measured(study, facts)
    answer = answer_of(facts, study)
    recorded = study.read()
    trials = {t.spec.identity.number: t for t in recorded.trials}
    number = trial
    if trial is None and answer is not None and answer.best is not None:
        number = answer.best.trial
    if number is None:
        raise StudyError(
            f"study {study.name}: its search has not found a best configuration",
            "run the same search again to finish it, or name a trial with --trial",
        )
    if number not in trials:
        known = ", ".join(map(str, trials)) or "none"
        raise StudyError(
            f"study {study.name}: there is no trial {number}, or its record is damaged",
            f"name one of those that can be read with --trial: {known}",
        )
    if (fidelity := trials[number].spec.identity.fidelity) is not None:
        raise StudyError(
            f"study {study.name}: trial {number} ran {describe_fidelity(fidelity)}, less than the "
            "job: there is nothing of it to hand out",
            "name a trial of the report",
        )
    environment = _environment(facts, number)
    job = make_job(read_job_file(study.job_file), where=str(study.job_file))
    candidate = candidate_of(trials[number].spec)
    engine = bind_engine(job, environment)
    task = Task(job=job, environment=environment, engine=engine, study=study)
    _check_answers(task, trials[number])
    return Chosen(
        trial=trials[number],
        candidate=candidate,
        job=job,
        environment=environment,
        engine=task.engine_of(candidate),
        answer=answer,
        spread=history_of(recorded, facts).spread,
    )


def export_study(
    study: Study,
    out: Path,
    *,
    to: str | None = None,
    trial: int | None = None,
    launcher: str | None = None,
) -> list[Path]:
    """Write the files of a study's best configuration, or of one trial's; or the study itself.

    Args:
        study: A study with trials.
        out: Folder to write; the file, for a dialect of whole studies.
        to: Name of a dialect; None: the engine's own.
        trial: Number of the trial; None for the best.
        launcher: Name of what starts the dialect's script; None: the dialect's own.

    Raises:
        StudyError: As `find_chosen`; or a study is asked for with a trial, or cannot be written.
        JobError: The study's job cannot be read any more, or there is no such dialect or launcher.
        RenderError: A template does not render, or the folder cannot be written.
    """
    dialect = None if to is None else find_dialect(to)
    if isinstance(dialect, RecordDialect):
        assert to is not None, "a dialect was found by it"
        _check_measured(study, study.read_state())
        if trial is not None:
            raise StudyError(
                f"--to {to} --trial {trial}: a storage holds the whole study",
                "leave --trial out",
            )
        return export_record(study, out, to=to, dialect=dialect)
    chosen = find_chosen(study, trial=trial)
    handout = handout_of(
        chosen.candidate,
        engine=chosen.engine,
        job=chosen.job,
        environment=chosen.environment,
        study=study.name,
        figures=_figures(chosen.answer, chosen.trial, chosen.spread),
        soak=_soak_of(study, chosen),
    )
    to = to or find_engine(handout.engine).dialect
    return export_handout(handout, out, to=to, launcher=launcher)


def _check_measured(study: Study, facts: Mapping[str, Any]) -> None:
    """Check that the figures which are handed out were measured here.

    Raises:
        StudyError: It was not.
    """
    origin = origin_of(facts)
    if origin is not Origin.MEASURED:
        raise StudyError(
            f"study {study.name} is {origin}: nothing of it was measured here, so there is "
            "nothing to hand out",
            "search with --fleet local on the devices that will train",
        )


def _soak_of(study: Study, chosen: Chosen) -> SoakResult | None:
    """The study's soak, if it was of this configuration to the letter."""
    soak = read_soak(study.folder)
    if soak is None or soak.candidate_hash != chosen.candidate.hash:
        return None
    is_same = soak.ds_config_digest == digest_of(chosen.engine.files(chosen.candidate))
    return soak if is_same else None


def _environment(facts: Mapping[str, Any], number: int) -> Environment:
    """Where a trial ran: a study may go on after an upgrade."""
    environment = environment_at(facts, number)
    if environment is None:
        fix = "study.json is missing or damaged: run the same search again, it writes a new one"
        if environment_of(facts) is not None:  # it was written anew, and could not find out
            fix = "name a later trial with --trial, or search anew with --fresh"
        raise StudyError(f"trial {number}: the study does not say where it ran", fix)
    return environment


def _check_answers(task: Task, trial: Trial) -> None:
    """Refuse to hand out a trial's figures with files that it did not run."""
    study, changes = task.study, task.changes_since(trial)
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise StudyError(
            f"study {study.name}: trial {trial.spec.identity.number} ran another job or "
            f"configuration than {study.job_file} and the files that it names describe now: "
            f"{'; '.join(changes[:3])}{more}",
            "search again to measure what they describe, or put back what changed",
        )


def _figures(answer: SearchAnswer | None, trial: Trial, spread: Spread) -> MeasuredFigures | None:
    """Figures of the final comparison where the trial's candidate took part, else of the trial."""
    number, result = trial.spec.identity.number, trial.result
    standings = () if answer is None else (answer.best, *answer.ties, answer.baseline)
    standing = next((s for s in standings if s is not None and s.trial == number), None)
    if answer is not None and standing is not None:
        baseline = answer.baseline
        speedup = answer.speedup if standing is answer.best else None
        return MeasuredFigures(
            trial=number,
            n_runs=standing.n_runs,
            n_disturbed=standing.n_disturbed,
            samples_per_s=standing.samples_per_s,
            samples_per_s_low=standing.samples_per_s_low,
            samples_per_s_high=standing.samples_per_s_high,
            step_time_s=trial.spec.layout.global_batch / standing.samples_per_s,
            peak_memory_bytes=standing.peak_memory_bytes,
            baseline_samples_per_s=None if baseline is None else baseline.samples_per_s,
            speedup=None if speedup is None else speedup.ratio,
            speedup_low=None if speedup is None else speedup.low,
            speedup_high=None if speedup is None else speedup.high,
        )
    if result is None or not is_figure(result):
        return None
    figure = figure_of(result, spread)
    return MeasuredFigures(
        trial=number,
        n_runs=1,
        n_disturbed=figure.n_disturbed,
        samples_per_s=figure.samples_per_s,
        samples_per_s_low=figure.low,
        samples_per_s_high=figure.high,
        step_time_s=result.step_time_s,
        peak_memory_bytes=result.peak_memory_bytes,
    )
