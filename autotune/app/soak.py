"""Soak a study's winner, or what an export holds, and keep what it says."""

from pathlib import Path

from autotune.app.exports import export_study, find_chosen
from autotune.app.session import find_running_place
from autotune.base.errors import FleetError, JobError, StudyError
from autotune.base.text import Say
from autotune.contract import Role
from autotune.devices.hardware import Environment
from autotune.export.base import Subject
from autotune.export.door import read_export
from autotune.fleet.base import Place
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.record.found import write_found
from autotune.record.soak import SOAK_FILE, SOAK_FOLDER, SoakResult, digest_of
from autotune.record.study import Study
from autotune.search.runner import runner_on
from autotune.search.soak import Soak, check_space, soak_trials
from autotune.search.trial_spec import MEASURE, Run, make_spec

MAX_MINUTES = 30 * 24 * 60


def run_soak(
    of: Study | Path,
    *,
    minutes: float,
    note: Say,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
) -> SoakResult | None:
    """Soak the best configuration of a study, whose export then says so, or that of an export.

    The memory limit of the export holds. Its folder, or the study, is on a file system that the
    nodes of the fleet share: the checkpoint lies there. The minutes are of both halves together;
    the fleet is as of `open_session`.

    Returns:
        What it found, also in `soak.json`; None if the user ended it.

    Raises:
        JobError: The minutes are no length of time, the folder holds no export, or the fleet only
            answers for trials.
        StudyError: There is no best one, it is of other devices, another process holds the study
            or the folder, or that cannot be written.
        FleetError: The devices are not there.
    """
    if not 0 < minutes <= MAX_MINUTES:
        raise JobError.of("app.soak_length", minutes=minutes, most=MAX_MINUTES)
    place = find_running_place(fleet, options)
    if isinstance(of, Path):
        subject = read_export(of, place.environment, measure=MEASURE)
        check_accelerator(subject.spec.layout.accelerator, place.environment)
        if subject.spec.measure.memory_limit_bytes is None:
            note("the export names no memory limit: it may take all of a device")
        return _soak(subject, place, minutes, note)
    subject = _of_study(of, place.environment)
    of.lock()
    try:
        found = _soak(subject, place, minutes, note)
        if found is not None:
            export_study(of, of.best_folder)
        return found
    finally:
        of.unlock()


def _soak(subject: Subject, place: Place, minutes: float, note: Say) -> SoakResult | None:
    if subject.n_params is not None:
        check_space(subject.folder, subject.n_params)
    if blind := place.nodes_without(subject.folder):
        raise FleetError.of("app.folder_unseen", subject=subject, blind=", ".join(blind))
    with runner_on(
        place,
        Study(subject.folder, SOAK_FOLDER),
        world=subject.spec.layout.world,
        command=subject.preparation,
        note=note,
    ) as runner:
        ran = soak_trials(subject.spec, subject.files, minutes=minutes, runner=runner)
        if ran is None:
            return None
        found = _result(subject, place.environment, minutes, ran)
        write_found(subject.folder / SOAK_FILE, found)
        return found


def _result(subject: Subject, environment: Environment, minutes: float, soak: Soak) -> SoakResult:
    results = [half.result for half in soak.halves]
    times_s = [seconds for result in results for seconds in result.step_times_s]
    rates = [result.samples_per_s for result in results if result.samples_per_s]
    peaks = [result.peak_memory_bytes for result in results if result.peak_memory_bytes]
    return SoakResult(
        passed=not soak.failures and not soak.unknown,
        problems=[*soak.failures, *soak.unknown],
        too_short=not soak.failures and bool(soak.unknown),
        source=subject.source,
        trial=subject.trial,
        candidate_hash=subject.spec.identity.candidate_hash,
        ds_config_digest=digest_of(subject.files),
        seq_len=subject.spec.workload.seq_len,
        minutes_asked=minutes,
        minutes=sum(times_s) / 60,
        steps=len(times_s),
        samples_per_s=min(rates, default=None),
        peak_memory_bytes=max(peaks, default=None),
        memory_limit_bytes=subject.spec.measure.memory_limit_bytes,
        growth=soak.growth,
        checkpoint=soak.checkpoint,
        device_name=environment.device_name,
        deepspeed_version=environment.deepspeed_version,
        torch_version=environment.torch_version,
        started_at_s=results[0].started_at_s,
    )


def _of_study(study: Study, environment: Environment) -> Subject:
    chosen = find_chosen(study, trial=None)
    handout, engine = chosen.handout, chosen.engine
    check_accelerator(handout.environment.accelerator, environment)
    spec = make_spec(
        Run(candidate=handout.candidate, role=Role.SOAK),
        study=study.name,
        number=0,
        job=handout.job,
        engine=engine,
        environment=environment,
    )
    return Subject(
        source=study.name,
        folder=study.folder,
        trial=chosen.trial.number,
        spec=spec,
        files=dict(handout.files),
        preparation=engine.preparation([handout.candidate]),
        n_params=handout.job.model.shape.n_params,
    )


def check_accelerator(measured_on: str, environment: Environment) -> None:
    """See that the devices here are those of a study or an export.

    Raises:
        StudyError: They are others.
    """
    if measured_on != environment.accelerator:
        raise StudyError.of(
            "app.other_accelerator", measured_on=measured_on, environment=environment
        )
