"""Measure a study's best again on this machine, beside what it was: `compare --against`."""

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from autotune.app.consent import agree_to_job, refuse_if_of_another_user
from autotune.app.exports import recorded_job
from autotune.app.pages import write_page
from autotune.app.session import find_running_place
from autotune.app.studies import locate
from autotune.base.clock import unix_now_s
from autotune.base.errors import AutotuneError, JobError, StudyError
from autotune.base.flags import flag
from autotune.base.text import Ask, Say
from autotune.base.units import parse_share
from autotune.base.yaml_file import dump_yaml, parse_yaml
from autotune.contract import ContractError, Origin, read_json
from autotune.export.readme import FIGURES_FILE
from autotune.fleet.base import Place
from autotune.fleet.options import FleetOptions
from autotune.job.job import Job, JobText, make_job, read_job_file, resolve_paths
from autotune.job.observed import OBSERVED_FILE
from autotune.record.answer import answer_of
from autotune.record.facts import read_fact
from autotune.record.found import write_found
from autotune.record.gate import DIGEST_LENGTH, GATE_FILE, GATE_FOLDER, Gate, Reference
from autotune.record.soak import digest_of
from autotune.record.study import Study
from autotune.report.results.ratios import telling_runs
from autotune.search.gate import GateRunner
from autotune.search.runner import runner_on
from autotune.search.session import Session, history_of

RESUMED_WITHIN_S = 12 * 3600.0
"""Age up to which an interrupted gate goes on: "now" is one day of a machine."""

_WRITTEN_BY = "`autotune search --json > FILE` writes one; or name a study"
_RUNS_HERE = "says what runs here"


def reference_of(study: Study) -> Reference | None:
    """What a study handed out, to be run again; None: nothing, or nothing that was measured.

    Raises:
        StudyError: The record cannot be read.
        JobError: Its job cannot be read.
    """
    facts, recorded = study.checked_facts(), study.read()
    answer, history = answer_of(study, facts), history_of(recorded, facts)
    best = None if answer is None else answer.handed_out
    tried = None if best is None else history.find(best.candidate)
    runs = [] if tried is None else telling_runs(tried)
    environment = facts.environment_at(runs[-1].number) if runs else None
    is_measured = facts.origin is Origin.MEASURED
    if best is None or tried is None or environment is None or not is_measured:
        return None
    trial = next(trial for trial in tried.trials if trial.result is runs[-1])
    workload, job = trial.spec.workload, read_job_file(study.job_file)
    has_words = bool(workload.command or job.get("megatron_arguments"))
    return Reference(
        study=study.name,
        folder=str(study.folder.resolve()),
        job=None if has_words else dump_yaml(job),
        standing=best,
        deviation=math.sqrt(history.spread.variance),
        degrees=history.spread.degrees,
        environment=environment,
        versions=runs[-1].versions,
        configuration=digest_of(study.read_files(trial))[:DIGEST_LENGTH],
        script=workload.digest[:DIGEST_LENGTH],
    )


def read_reference(named: str, results: Path) -> Reference:
    """The reference in a file that `search --json` wrote, or of a study.

    Args:
        named: The file; or the study by name, by its folder or by the figures of its best.
        results: Folder of all studies, for a name.

    Raises:
        JobError: There is no such file, or it holds none.
        StudyError: There is no such study, or nothing of it was measured.
    """
    path, study = Path(named), _study_named(named, results)
    refuse_if_of_another_user(path if study is None else study.job_file, _RUNS_HERE)
    if study is not None:
        found, origin = reference_of(study), study.facts().origin
    else:
        try:
            data = read_json(path)
        except ContractError as error:
            raise JobError(str(error), _WRITTEN_BY) from error
        found = read_fact(Reference, data.get("reference"))
        origin = read_fact(Origin, data.get("origin")) or Origin.MEASURED
        if found is None and data.get("reference", "none") is not None:
            raise JobError(f"{named}: holds no reference of this release", _WRITTEN_BY)
    if found is None:
        why, fix = "its search has not found a best configuration", "run the same search again"
        if origin is not Origin.MEASURED:
            why = f"its figures are {origin}: nothing of it was measured"
            fix = f"search with {flag('fleet')} local on the devices that train"
        raise StudyError(f"{named}: {why}", fix)
    return found


def run_gate(
    named: str,
    *,
    within: str,
    rounds: int,
    results: Path,
    fleet: str,
    options: FleetOptions,
    note: Say,
    trust_job: bool = False,
    ask: Ask | None = None,
) -> Gate | None:
    """Measure what a study handed out again, until it is known to be as fast as it was or not.

    Errors and arguments are those of `autotune.gate`, but that `named` is its `against`, and
    `options` its `fleet_option`. What it found is also in `gate.json`. One interrupted some hours
    ago at most goes on; one that came to its end begins anew.
    """
    share = parse_share(within, where=flag("within"))
    reference = read_reference(named, results)
    place, study = find_running_place(fleet, options), Study(results, reference.study)
    is_trusted = trust_job or _study_named(named, results) is not None
    agree = partial(agree_to_job, flags={}, is_trusted=is_trusted, say=note, ask=ask)
    job = job_of(named, reference, partial(agree, key="against"))
    session = session_of(named, reference, job, place, Study(study.folder, GATE_FOLDER))
    record, candidate = session.study, reference.standing.candidate
    key = digest_of({"": json.dumps([asdict(reference), asdict(place.environment)])})
    with ExitStack() as held:
        if study.state_file.exists():
            held.callback(study.unlock)
            study.lock()
        command = session.engine.preparation([candidate])
        runner = held.enter_context(
            runner_on(place, record, world=candidate.world, command=command, note=note)
        )
        begun, now_s = record.read_state(), unix_now_s()
        age_s = now_s - float(begun.get("begun_at_s", -math.inf))
        if begun.get("reference") != key or abs(age_s) > RESUMED_WITHIN_S:
            numbers = [trial.spec.identity.confirm_round or 0 for trial in record.trials()]
            first_round = max(numbers, default=-1) + 1
            begun = {"reference": key, "first_round": first_round, "begun_at_s": now_s}
            record.write_state(begun)
        found = GateRunner(
            session=session,
            reference=reference,
            against=named,
            runner=runner,
            within=share,
            n_rounds=rounds,
            first_round=int(begun["first_round"]),
        ).run()
        if found is None:
            return None
        write_found(study.folder / GATE_FILE, found)
        record.write_state({})  # the next one begins anew
        if study.state_file.exists():
            try:
                write_page(study, study.page_file)
            except AutotuneError as error:  # a page costs no verdict
                note(f"{study.page_file.name} is not kept up: {error.message}")
        return found


def session_of(named: str, reference: Reference, job: Job, place: Place, record: Study) -> Session:
    """A reference's job at a place, with the record of its gates; raises as `run_gate`."""
    then, now = reference.environment, place.environment
    if (then.accelerator, then.device_name) != (now.accelerator, now.device_name):
        raise StudyError.of("app.other_device", named=named, then=then, now=now)
    if job.script is not None:  # trained by a Python of its own
        place.environment = replace(
            now, deepspeed_version=then.deepspeed_version, torch_version=then.torch_version
        )
    session = Session(job=job, engine=place.bind(job), place=place, study=record)
    candidate, knobs = reference.standing.candidate, session.engine.context.knobs
    is_of_job = (candidate.world, candidate.global_batch) == (job.world, job.global_batch)
    values = candidate.values.items()
    if not is_of_job or any(n not in knobs or not knobs[n].is_of_type(v) for n, v in values):
        raise JobError(f"{named}: its candidate is none of its job: {candidate}", _WRITTEN_BY)
    return session


def _study_named(named: str, results: Path) -> Study | None:
    """The study that is named; None: a file is."""
    path = Path(named)
    if path.name == FIGURES_FILE and (path.resolve().parents[1] / "trials").is_dir():
        path = path.resolve().parents[1]
    is_file = path.suffix == ".json" and not path.is_dir()
    return None if is_file else locate(str(path), results)


def job_of(named: str, reference: Reference, agree: Callable[[JobText], object]) -> Job:
    """The job of a reference, once `agree` is content with it; raises as `run_gate`."""
    if reference.job is not None:
        path = Path(named)
        text = JobText(path, resolve_paths(parse_yaml(reference.job, path), path.parent))
        agree(text)
        return make_job(dict(text.keys), where=named)
    folder = Path(reference.folder)
    if not folder.is_dir():
        raise StudyError.of("app.words_elsewhere", named=named, folder=folder)
    study = Study(folder.parent, folder.name)
    for file in (folder, study.job_file, folder / OBSERVED_FILE):
        refuse_if_of_another_user(file, _RUNS_HERE)
    agree(JobText.read(study.job_file))
    return recorded_job(study)
