"""What the record says afterwards: reports, states, exports."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from autotune.base.errors import StudyError
from autotune.contract import Origin
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine
from autotune.export.base import Figures
from autotune.export.export import export_candidate
from autotune.job.fidelity import describe_fidelity
from autotune.job.job import Job, make_job, read_job_file
from autotune.record.facts import (
    allowed_bytes_of,
    answer_of,
    context_of,
    environment_at,
    environment_of,
    left_out_of,
    objective_of,
    origin_of,
)
from autotune.record.soak import SoakResult, digest_of, read_soak
from autotune.record.spread import Spread, is_figure
from autotune.record.study import Study, Trial
from autotune.record.table import make_table
from autotune.report.explain.trial import Explanation, explain, rows_of
from autotune.report.results.rows import make_rows
from autotune.report.results.study import Report
from autotune.report.results.summary import place
from autotune.report.terminal.overview import State
from autotune.search.objective import Objective, figure_of
from autotune.search.recorded import changes_since, engine_of, history_of
from autotune.space.candidate import Candidate, candidate_of
from autotune.space.knob import Context


def studies(results: Path) -> list[Study]:
    """All studies of a folder, the one that was searched last at the end.

    Raises:
        StudyError: The folder cannot be read.
    """
    try:
        found = [path for path in results.iterdir() if _is_study(path)]
        found.sort(key=_searched_at_s)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StudyError(
            f"{results}: cannot be read: {error.strerror}", "name another folder with --results"
        ) from error
    return [Study(results, path.name) for path in found]


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
    found = studies(results)
    if not found:
        raise StudyError(f"{results}: holds no study", "`autotune search` makes one")
    if name is None:
        return found[-1]
    for study in found:
        if study.name == name:
            return study
    raise StudyError(
        f"{results}: holds no study {name!r}",
        f"there are {', '.join(study.name for study in found)}",
    )


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
        raise StudyError(
            f"{run}: is no study: it holds no folder `trials`",
            "name a study's folder, such as results/NAME, or a study by its name",
        )
    return find_study(results, run)


def state_of(study: Study) -> State:
    """How a study stands.

    Raises:
        StudyError: The record cannot be read.
    """
    facts = study.read_state()
    history = history_of(study.read(), facts)
    answer = answer_of(facts) or {}
    return State(
        study=study.name,
        folder=str(study.folder),
        is_running=_is_running(study),
        n_trials=len(history.recorded),
        n_reduced=len(history.reduced.trials),
        n_left_out=len(left_out_of(facts)),
        counts={outcome.value: count for outcome, count in history.counts.items()},
        best_samples_per_s=(answer.get("best") or {}).get("samples_per_s"),
        speedup=answer.get("speedup"),
        stop_reason=answer.get("stop_reason"),
        origin=origin_of(facts),
    )


def read_report(study: Study) -> Report:
    """Everything that the report of a study shows.

    Raises:
        StudyError: The record cannot be read.
    """
    facts, recorded = study.read_state(), study.read()
    history = history_of(recorded, facts)
    objective = _objective(facts)
    answer = answer_of(facts)
    return Report(
        study=study.name,
        folder=study.folder,
        facts=facts,
        history=history,
        objective=objective,
        rows=make_rows(history, objective),
        context=_context(study, facts),
        answer=None if answer is None else place(answer, study),
        recorded=recorded,
    )


def explain_trial(study: Study, number: int) -> Explanation:
    """Where a trial's time went, what bounds it and what addresses that.

    Raises:
        StudyError: There is no such trial, or it had no diagnostic pass.
    """
    report = read_report(study)
    rows = rows_of(make_table(report.study, report.recorded, report.facts))
    explanation = explain(report, number, rows.get(number, {}))
    if explanation is not None:
        return explanation
    trials = {t.spec.identity.number: t for t in report.history.trials}
    known = [str(n) for n, t in trials.items() if t.result is not None and t.result.diagnosis]
    hint = f"name one of {', '.join(known)}" if known else "search again, without --no-diagnose"
    if number not in {t.spec.identity.number for t in report.history.recorded}:
        raise StudyError(f"study {study.name}: there is no trial {number}", hint)
    raise StudyError(
        f"study {study.name}: trial {number} had no diagnostic pass: it did not measure, was a "
        "run of the final comparison or a reduced one, or --no-diagnose was given",
        hint,
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trial's configuration with everything that it needs to be run or handed out."""

    trial: Trial
    candidate: Candidate
    job: Job
    environment: Environment
    """Where the trial ran."""
    engine: Engine
    answer: Mapping[str, Any]
    """Of the search; empty while there is none."""
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
    answer = answer_of(facts) or {}
    recorded = study.read()
    trials = {t.spec.identity.number: t for t in recorded.trials}
    number = trial if trial is not None else (answer.get("best") or {}).get("trial")
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
    engine = engine_of(candidate, job, bind_engine(job, environment))
    _check_answers(study, trials[number], job=job, engine=engine, environment=environment)
    return Chosen(
        trial=trials[number],
        candidate=candidate,
        job=job,
        environment=environment,
        engine=engine,
        answer=answer,
        spread=history_of(recorded, facts).spread,
    )


def write_export(study: Study, out: Path, *, to: str, trial: int | None) -> list[Path]:
    """Write the files of a study's best configuration, or of one trial's; or the study itself.

    Args:
        study: A study with trials.
        out: Folder to write; for `optuna`, the file.
        to: Name of a dialect, or `optuna` for a storage that its dashboard opens.
        trial: Number of the trial; None for the best.

    Raises:
        StudyError: As `find_chosen`.
        JobError: The study's job cannot be read any more.
        RenderError: A template does not render, or the folder cannot be written.
    """
    if to == "optuna":
        return [_write_storage(study, out, trial)]
    chosen = find_chosen(study, trial=trial)
    return export_candidate(
        chosen.candidate,
        out,
        engine=chosen.engine,
        job=chosen.job,
        environment=chosen.environment,
        figures=_figures(chosen.answer, chosen.trial, chosen.spread),
        soak=_soak_of(study, chosen),
        to=to,
    )


def _check_measured(study: Study, facts: Mapping[str, Any]) -> None:
    """See that what is handed out was measured here.

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


def _write_storage(study: Study, out: Path, trial: int | None) -> Path:
    from autotune.report.optuna_storage import write_storage  # optuna

    _check_measured(study, study.read_state())
    if trial is not None:
        raise StudyError(
            f"--to optuna --trial {trial}: a storage holds the whole study", "leave --trial out"
        )
    if out.is_dir():
        raise StudyError(f"{out}: is a folder", "name the file to write, such as study.journal")
    return write_storage(read_report(study), out)


def _is_running(study: Study) -> bool:
    """Whether the process that wrote the lock still runs.

    Trying the lock could take it from a search that starts at this moment; so the holder is looked
    up, and a process that is younger than the file is another one of the same number.
    """
    lock = study.folder / "lock"
    try:
        holder = psutil.Process(int(lock.read_text(encoding="utf-8")))
        return holder.create_time() <= lock.stat().st_mtime
    except (OSError, ValueError, psutil.Error):
        return False


def _environment(facts: Mapping[str, Any], number: int) -> Environment:
    """Where a trial ran: a study may go on after an upgrade."""
    environment = environment_at(facts, number)
    if environment is None:
        fix = "study.json is missing or damaged: run the same search again, it writes a new one"
        if environment_of(facts) is not None:  # it was written anew, and could not find out
            fix = "name a later trial with --trial, or search anew with --fresh"
        raise StudyError(f"trial {number}: the study does not say where it ran", fix)
    return environment


def _context(study: Study, facts: Mapping[str, Any]) -> Context:
    context = context_of(facts)
    if context is None:
        raise StudyError(
            f"{study.state_file}: missing, damaged or of another version: it does not say what "
            "was searched (context)",
            "run the same search again: it writes a new one and keeps the trials",
        )
    return context


def _objective(facts: Mapping[str, Any]) -> Objective:
    return Objective(wish=objective_of(facts), allowed_bytes=allowed_bytes_of(facts))


def _check_answers(
    study: Study, trial: Trial, *, job: Job, engine: Engine, environment: Environment
) -> None:
    """Refuse to hand out a trial's figures with files that it did not run."""
    changes = changes_since(trial, study, job=job, engine=engine, environment=environment)
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        raise StudyError(
            f"study {study.name}: trial {trial.spec.identity.number} ran another job or "
            f"configuration than {study.job_file} and the files that it names describe now: "
            f"{'; '.join(changes[:3])}{more}",
            "search again to measure what they describe, or put back what changed",
        )


def _figures(answer: Mapping[str, Any], trial: Trial, spread: Spread) -> Figures | None:
    """From the final comparison where the trial's candidate took part, else from the trial."""
    number, result = trial.spec.identity.number, trial.result
    standings = [answer.get("best"), *answer.get("ties", ()), answer.get("baseline")]
    standing = next((s for s in standings if s is not None and s["trial"] == number), None)
    baseline = answer.get("baseline")
    is_best = standing is not None and standing is standings[0]
    if standing is not None:
        return Figures(
            trial=number,
            n_runs=standing["n_runs"],
            n_disturbed=standing.get("n_disturbed", 0),
            samples_per_s=standing["samples_per_s"],
            samples_per_s_low=standing["samples_per_s_low"],
            samples_per_s_high=standing["samples_per_s_high"],
            step_time_s=trial.spec.layout.global_batch / standing["samples_per_s"],
            peak_memory_bytes=standing["peak_memory_bytes"],
            baseline_samples_per_s=None if baseline is None else baseline["samples_per_s"],
            speedup=answer.get("speedup") if is_best else None,
            speedup_low=answer.get("speedup_low") if is_best else None,
            speedup_high=answer.get("speedup_high") if is_best else None,
        )
    if result is None or not is_figure(result):
        return None
    figure = figure_of(result, spread)
    return Figures(
        trial=number,
        n_runs=1,
        n_disturbed=figure.n_disturbed,
        samples_per_s=figure.samples_per_s,
        samples_per_s_low=figure.low,
        samples_per_s_high=figure.high,
        step_time_s=result.step_time_s,
        peak_memory_bytes=result.peak_memory_bytes,
    )
