"""A study's best configuration, one trial's, or the study itself, in somebody's files."""

import dataclasses
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.app.consent import refuse_if_of_another_user
from autotune.base.errors import StudyError
from autotune.base.flags import switch
from autotune.base.text import Say
from autotune.contract import RANKS_DIR, ContractError, Origin, read_json
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine
from autotune.export.base import Handout, Patched
from autotune.export.door import export_handout, find_dialect, handout_of, patched
from autotune.fleet.base import THIS_MACHINE
from autotune.job.fidelity import describe_fidelity
from autotune.job.job import Job, make_job, read_job_file
from autotune.job.observed import OBSERVED_FILE, Observed, file_digest, text_digest
from autotune.job.origin import code_of
from autotune.record.answer import SearchAnswer, Standing, answer_of
from autotune.record.facts import Facts
from autotune.record.found import WrittenPatch, read_patches, write_patches
from autotune.record.guard import NOT_COMPARED, guards_of
from autotune.record.soak import SoakResult, read_soak
from autotune.record.spread import Spread, is_figure
from autotune.record.study import Study, Trial, flags_of
from autotune.search.history import CandidateTrials
from autotune.search.session import RecordedPlace, Session, history_of
from autotune.space.candidate import Candidate, candidate_of
from autotune.space.knobs import describe_change
from autotune.trial.guest.edits import DESCRIPTION_FILE


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A trial's configuration, to be run or handed out."""

    trial: Trial
    engine: Engine
    handout: Handout


def find_chosen(
    study: Study, *, trial: int | None, allow_loss_drift: bool = False, note: Say = lambda _: None
) -> Chosen:
    """What a study hands out, or the configuration of the trial of a number.

    Args:
        study: A study with trials.
        trial: Number of the trial; None for the best, and for the baseline where the best is not
            proven to be better.
        allow_loss_drift: Take also one that the convergence guard fails: the best of all.
        note: Told where the best is not what is handed out, or a trial is not proven.

    Raises:
        StudyError: There is no such trial, no best one yet, the convergence guard fails it, or
            the job or a file that it names has changed since the trial ran.
        JobError: The study's job cannot be read any more.
    """
    facts = study.facts()
    _check_measured(study, facts)
    recorded = study.read()
    answer = answer_of(study, facts)
    trials = {t.number: t for t in recorded.trials}
    number = trial
    if trial is None and answer is not None and answer.handed_out is not None:
        number = answer.handed_out.trial
        if allow_loss_drift and answer.drifted is not None:
            number = answer.drifted.standing.trial
    if number is None:
        study.checked_facts()  # one without study.json has another cause
        raise StudyError.of("app.no_best", study=study)
    if number not in trials:
        known = ", ".join(map(str, trials)) or "none"
        raise StudyError.of("app.no_trial", study=study, number=number, known=known)
    if (fidelity := trials[number].spec.identity.fidelity) is not None:
        raise StudyError.of(
            "app.reduced_trial", study=study, number=number, fidelity=describe_fidelity(fidelity)
        )
    environment = _environment(facts, number)
    job = recorded_job(study)
    candidate = candidate_of(trials[number].spec)
    if job.script is not None:
        job = dataclasses.replace(job, script=_patched(job.script, study, candidate))
    history = history_of(recorded, facts)
    guards = guards_of(history.trials, facts.baseline.candidate_hash, facts.guard_steps)
    guard = guards.get(candidate.hash)
    if guard is not None and guard.is_drift and not (allow_loss_drift or job.allow_loss_drift):
        allow = switch("allow_loss_drift")
        raise StudyError.of(
            "app.losses_drift", study=study, number=number, guard=guard, allow=allow
        )
    session = Session(
        job=job,
        engine=bind_engine(job, environment),
        place=RecordedPlace(environment, {}),
        study=study,
    )
    _check_answers(session, trials[number])
    engine = session.engine_of(candidate)
    claim, result = _claim(answer, number, candidate), trials[number].result
    baseline = None if answer is None or answer.baseline is None else answer.baseline.candidate
    names = dict.fromkeys(
        device.rpartition(":")[0] for device in (result and result.devices) or ()
    )
    handout = dataclasses.replace(
        handout_of(candidate, engine=engine, job=job, environment=environment),
        study=study.name,
        study_flags=flags_of(study.folder),
        claim=claim,
        change=""
        if baseline in (None, candidate)
        else describe_change(candidate, baseline, engine.context),
        soak=_soak_of(study, candidate, engine),
        hosts=[name for name in names if name != THIS_MACHINE],
        **_figures(answer, trials[number], candidate, history.spread),
        guard=(guard or NOT_COMPARED) if facts.guard_steps else None,
        carried=[] if job.script is None else _carried_in(trials[number]),
    )
    note(_about(answer, handout, is_asked_for=trial is not None))
    return Chosen(trial=trials[number], engine=engine, handout=handout)


def _claim(answer: SearchAnswer | None, number: int, candidate: Candidate) -> str:
    """What a configuration is where it is no proven gain, in words; empty: it is one."""
    if answer is None or answer.baseline is None:
        return f"Trial {number}, compared with no baseline"
    is_proven = answer.has_proven_gain
    if candidate == answer.baseline.candidate:
        return "The baseline" + ("" if is_proven else ", since no gain is proven")
    if is_proven and answer.best is not None and candidate == answer.best.candidate:
        return ""
    return f"Trial {number}, not proven to be better than the baseline"


def _about(answer: SearchAnswer | None, handout: Handout, *, is_asked_for: bool) -> str:
    claim, gain, best = handout.claim, handout.gain, None if answer is None else answer.best
    if not claim:
        over = "" if gain is None else f", {gain.ratio:.2f}x the baseline"
        return f"The best{over}: {handout.change}"
    if is_asked_for or answer is None or best is None or best == answer.handed_out:
        return claim
    why = "the final comparison does not show that it is better"
    if answer.speedup is None:
        why = "it was not compared with the baseline; the same search again compares them"
    so_far = f"trial {best.trial} is the best so far, and {why}"
    return f"{claim}: {so_far}. --trial {best.trial} exports it all the same"


def recorded_job(study: Study) -> Job:
    """The job of a study; what its command's first run showed is read from where the study is now.

    Raises:
        JobError: Its file cannot be read, or is somebody else's and names code.
        StudyError: The folder of its command is gone.
    """
    data, observed = read_job_file(study.job_file), study.folder / OBSERVED_FILE
    refuse_if_of_another_user(study.job_file, code_of(data.get("model")))
    if data.get("script") is not None and observed.is_file():
        data |= {"script": str(observed), "model": str(observed)}
    job = make_job(data, where=str(study.job_file))
    if job.script is not None and not Path(job.script.folder).is_dir():
        raise StudyError.of("app.folder_gone", study=study, job=job)
    return job


def _patched(script: Observed, study: Study, candidate: Candidate) -> Observed:
    """A study's command that knows what the study's own patches wrote into its files.

    Raises:
        StudyError: A patch wrote another candidate there: what is handed out would mix both.
    """
    then, patches = script.source_digests, read_patches(study.folder)
    # Those of another first run are over: the patched file may have been its command as it is.
    known = {
        name: one
        for name, one in patches.items()
        if name in script.sources and one.before == then.get(name)
    }
    for name, one in known.items():
        is_other = one.candidate_hash != candidate.hash
        if is_other and one.after != one.before and file_digest(name) == one.after:
            raise StudyError.of("app.patched_by_other_trial", study=study, name=name, one=one)
    written = {name: one.after for name, one in known.items()}
    return dataclasses.replace(script, patched=written)


def _carried_in(trial: Trial) -> list[str]:
    """Keys that a trial of a user's command saw arrive from the user's own files."""
    try:
        description = read_json(trial.folder / RANKS_DIR / DESCRIPTION_FILE)
    except ContractError:
        return []
    return [str(key) for key in description.get("arrived") or ()]


def export_study(
    study: Study,
    out: Path,
    *,
    to: str | None = None,
    trial: int | None = None,
    launcher: str | None = None,
    allow_loss_drift: bool = False,
    note: Say = lambda _: None,
) -> list[Path]:
    """Write the files that a study hands out, or those of one trial.

    The dialect `to`, else the engine's own, says which files, and `launcher`, else the dialect's
    own, starts them. They go into the folder `out`. Other arguments are as of `find_chosen`.

    Raises:
        StudyError: As `find_chosen`.
        JobError: The study's job cannot be read any more, or there is no such dialect or launcher.
        RenderError: A template does not render, or the folder cannot be written.
    """
    if to is not None:
        find_dialect(to, study.facts().engine)
    handout = find_chosen(study, trial=trial, allow_loss_drift=allow_loss_drift, note=note).handout
    return export_handout(handout, out, to=to, launcher=launcher)


@dataclass(frozen=True, kw_only=True)
class StudyPatch:
    """Files of a user's that are to carry a study's configuration."""

    files: Sequence[Patched]
    study: Study
    chosen: Chosen

    def write(self, patch: Patched) -> None:
        """Write one of the files, and into the study that the study wrote it.

        Raises:
            RenderError: The folder cannot be written to, or the file changed meanwhile.
            StudyError: The study cannot be written to.
        """
        script = self.chosen.handout.job.script
        path = os.path.realpath(patch.path)
        sources = [] if script is None else script.sources
        name = next((name for name in sources if os.path.realpath(name) == path), None)
        if script is not None and name is not None and name in script.source_digests:
            spec = self.chosen.trial.spec.identity
            one = WrittenPatch(
                before=script.source_digests[name],
                after=text_digest(patch.after.encode()),
                trial=spec.number,
                candidate_hash=spec.candidate_hash,
            )
            # First: a patch that nobody knows of would lock the study.
            write_patches(self.study.folder, {**read_patches(self.study.folder), name: one})
        patch.write()


def patch_study(
    study: Study, files: Sequence[Path], *, trial: int | None = None, note: Say = lambda _: None
) -> StudyPatch:
    """A study's best configuration, or one trial's, put into files that the user has.

    Nothing is written: `StudyPatch.write` does that. `trial` and `note` are as of `find_chosen`.

    Raises:
        StudyError: As `find_chosen`.
        JobError: A file is none that is patched, or the study's job cannot be read any more.
        RenderError: A file cannot be read, or its text cannot be changed.
    """
    chosen = find_chosen(study, trial=trial, note=note)
    return StudyPatch(
        files=patched(files, chosen.handout, chosen.engine),
        study=study,
        chosen=chosen,
    )


def _check_measured(study: Study, facts: Facts) -> None:
    if facts.origin is not Origin.MEASURED:
        raise StudyError.of("app.not_measured", study=study, origin=facts.origin)


def _soak_of(study: Study, candidate: Candidate, engine: Engine) -> SoakResult | None:
    """The study's soak, if it was of this configuration to the letter."""
    soak = read_soak(study.folder)
    if soak is None or soak.candidate_hash != candidate.hash:
        return None
    return soak if soak.is_of(engine.files(candidate)) else None


def _environment(facts: Facts, number: int) -> Environment:
    """Where a trial ran: a study may go on after an upgrade."""
    environment = facts.environment_at(number)
    if environment is None:
        fix = "study.json is missing or damaged: run the same search again, it writes a new one"
        if facts.environment is not None:  # it was written anew, and could not find out
            fix = f"name a later trial with --trial, or search anew with {switch('fresh')}"
        raise StudyError(f"trial {number}: the study does not say where it ran", fix)
    return environment


def _check_answers(session: Session, trial: Trial) -> None:
    """Refuse to hand out a trial's figures with files that it did not run."""
    study, changes = session.study, session.changes_since(trial)
    if changes:
        more = f", and {len(changes) - 3} more" if len(changes) > 3 else ""
        best = study.best_folder
        older = f"; {best} has what was written then" if best.is_dir() else ""
        facts = {"changes": "; ".join(changes[:3]), "more": more, "kept": older}
        raise StudyError.of("app.other_job", study=study, trial=trial, **facts)


def _figures(
    answer: SearchAnswer | None, trial: Trial, candidate: Candidate, spread: Spread
) -> dict[str, Any]:
    """Figures of a handout: of the final comparison where it took part, or of the trial."""
    number, result = trial.number, trial.result
    standings: list[Standing | None] = []
    if answer is not None:
        standings = [answer.best, *answer.ties, answer.baseline]
        standings += [] if answer.drifted is None else [answer.drifted.standing]
    standing = next((s for s in standings if s is not None and s.trial == number), None)
    if answer is not None and standing is not None:
        return {
            "figures": standing,
            "baseline": answer.baseline,
            "is_substitute": answer.is_substitute,
            "gain": answer.speedup if standing is answer.best else None,
        }
    if result is None or not is_figure(result):
        return {}
    tried = CandidateTrials(candidate=candidate, trials=(trial,), spread=spread)
    return {"figures": tried.standing_by([result])}
