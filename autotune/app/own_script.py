"""A user's own command: run once as it is, which tells what it trains; then a job as any other."""

import dataclasses
import hashlib
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.app.session import CPU_WORLD, check_devices, find_place, open_session
from autotune.base.errors import AutotuneError, FleetError, JobError, StudyError
from autotune.base.files import try_folder, write_text
from autotune.base.flags import flag
from autotune.base.plugins import plugin_names
from autotune.base.secrecy import scrubbed
from autotune.base.templates import canonical_json
from autotune.base.units import format_bytes, format_seconds, parse_bytes, parse_seconds
from autotune.contract import (
    CONFIG_DIR,
    PRIVATE_MODE,
    RANKS_DIR,
    STDERR_FILE,
    STDOUT_FILE,
    ContractError,
    EngineSettings,
    Identity,
    Layout,
    Outcome,
    Role,
    TrialResult,
    TrialSpec,
    Workload,
    read_json,
    to_dict,
)
from autotune.devices.hardware import VERSIONED, Environment
from autotune.engines.base import CommandJob, find_engine
from autotune.engines.launches import PROGRAMS
from autotune.engines.launches.line import in_short, is_launch, name_of, parts_of
from autotune.fleet.base import Place
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.job.command import check_command, is_of_this_environment, sources_of
from autotune.job.job import SCRIPT_SPACE, enforced_limit_bytes, keys_of
from autotune.job.observed import (
    OBSERVED_FILE,
    Observed,
    digest_of,
    file_digest,
    filled_in,
    refuse_unobserved,
)
from autotune.record.study import Study, write_spec_file
from autotune.search.session import Session, environments_of
from autotune.search.trial_spec import MEASURE, Run
from autotune.space.candidate import Candidate
from autotune.trial.guest.edits import DESCRIPTION_FILE, EDITS_FILE

Note = Callable[[str], None]

FIRST_RUN = "observed"
"""Folder below a study: what the command wrote when it ran for the first time."""
COMMAND_FILE = "command.sh"
MODEL_FILE = "model.json"
"""Files of a study of a command of Megatron-LM."""


def _other_folder() -> str:
    return f"name a folder that you may write, such as {flag('results')} ~/autotune"


_FIRST_TIMEOUT_S = 1200.0
"""Time for the first run: a Python that is not ours may compile DeepSpeed's extensions in it."""


def open_command_session(
    command: Sequence[str],
    flags: Mapping[str, Any],
    *,
    results: Path,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
    fresh: bool = False,
    note: Note,
) -> Session:
    """A session for a user's command; the first time, it runs as it is for a few steps.

    A command of Megatron-LM need not run to tell what it trains: its arguments do. It is the
    baseline, and its arguments stay in every trial but for those that a knob governs.

    Other arguments are those of `open_session`. A fleet that only answers leaves the first run to
    this machine; on others the command, and the folder that it runs in, have the same paths.
    `fresh` sets an old study aside first, and observes the command anew.

    Raises:
        JobError: The command cannot be started or was not measured, or a flag says what the
            command decides.
        StudyError: The results cannot be written there.
        FleetError: The devices are not there.
    """
    command, folder = list(command), Path.cwd()
    if given := [
        key.named
        for name, key in keys_of("search").items()
        if key.is_of_command and flags.get(name) is not None
    ]:
        raise JobError(
            f"{', '.join(given)}: your command sets this",
            "leave it out, and change the command instead",
        )
    check_command(command)
    if flags.get("gpu") is not None:  # before anything runs
        check_devices(flags, find_place(fleet, None, flags, options).environment)
    study = Study(results, str(flags.get("study") or study_name(command, str(folder))))
    job = _job_in_words(command, folder, flags.get("engine"), note)
    if fresh and (aside := study.set_aside()) is not None:
        note(f"the old study is kept as {aside}")
    versions: dict[str, str] = {}
    if job is not None:
        keys = _keys_of_arguments(job, command, study, note)
    else:
        script = _observed(command, flags, study, fleet=fleet, options=options, note=note)
        keys, found = _keys_of_script(script, study, flags), script.measured.versions
        versions = {f"{name}_version": found[name] for name in VERSIONED if name in found}
    return open_session(
        None,
        {**flags, **keys, "study": study.name},
        results=results,
        fleet=fleet,
        options=options,
        versions=versions,
    )


def _job_in_words(
    command: Sequence[str], folder: Path, named: object, note: Note
) -> CommandJob | None:
    """The job of a command, by the engine that reads it in its words; None: none does.

    Raises:
        JobError: The engine that is named cannot be loaded; one that nobody named is left out.
    """
    for name in plugin_names("engine"):
        try:
            engine = find_engine(name)
        except AutotuneError as error:
            if name == named:
                raise
            note(f"the command is read without an engine: {error.message}")
            continue
        if (job := engine.read_command(command, folder, is_named=name == named)) is not None:
            return job
    return None


def _keys_of_arguments(
    job: CommandJob, command: Sequence[str], study: Study, note: Note
) -> dict[str, Any]:
    """Keys of the job of a command whose words tell it; its files are written into its study."""
    if job.left_out:
        note(f"left out in trials: {', '.join(job.left_out)}")
    try_folder(study.folder, named=study.folder, hint=_other_folder())
    study.folder.mkdir(parents=True, exist_ok=True)
    texts = {COMMAND_FILE: f"{shlex.join(command)}\n", MODEL_FILE: canonical_json(job.model)}
    for name, text in texts.items():
        mode = PRIVATE_MODE if name == COMMAND_FILE else None
        write_text(study.folder / name, text, error=StudyError, hint=_other_folder(), mode=mode)
    return {
        **job.keys,
        "model": str(study.folder / MODEL_FILE),
        "baseline": str(study.folder / COMMAND_FILE),
    }


def _keys_of_script(script: Observed, study: Study, flags: Mapping[str, Any]) -> dict[str, Any]:
    path = str(study.folder / OBSERVED_FILE)
    return {
        "model": path,
        "script": path,
        "workload": "script",
        "seq_len": script.seq_len,
        "global_batch": script.global_batch,
        "world": script.world,
        "precision": script.precision,
        "optimizer": script.optimizer,
        "space": flags.get("space") or SCRIPT_SPACE,
    }


def _observed(
    command: list[str],
    flags: Mapping[str, Any],
    study: Study,
    *,
    fleet: str,
    options: FleetOptions,
    note: Note,
) -> Observed:
    """What the first run of a command showed; it runs where its files are not as they were."""
    path, folder = study.folder / OBSERVED_FILE, os.getcwd()
    script = Observed.read(path) if path.exists() else None
    if script is not None and script.command != command:
        raise StudyError(
            f"{study.folder}: is the study of another command: {in_short(script.command)}",
            f"give this one its own {flag('study')} NAME",
        )
    if script is not None and script.digest() == script.observed_digest:
        return script
    refuse_missing_script(command, Path(folder))
    place = find_place(fleet, None, {}, options)
    if not place.is_elsewhere:
        place = find_place("local", None, {}, NO_OPTIONS)
    return observe(command, flags, place=place, study=study, folder=folder, note=note)


def refuse_missing_script(command: Sequence[str], folder: Path) -> None:
    """Refuse a launch of a script that is not there: it would end before it can say why.

    Raises:
        JobError: It is not there.
    """
    parts = parts_of(command)
    before, script = command[: parts.script_at], "".join(command[parts.script_at :][:1])
    is_here = {word.partition("=")[0] for word in before}.isdisjoint(PROGRAMS["changes_folder"])
    is_started = script.endswith(".py") and any(is_launch([word], parts) for word in before)
    if is_here and is_started and not (folder / script).exists():
        raise JobError(
            f"{script}: there is no such script in {folder}",
            "start in the folder where you start your training, or give the script's path",
        )


def observe(
    command: Sequence[str],
    flags: Mapping[str, Any],
    *,
    place: Place,
    study: Study,
    folder: str,
    note: Note,
) -> Observed:
    """Run a command as it is for a few steps, and keep what it showed in its study.

    Raises:
        JobError: It was not measured, or is of several nodes.
        StudyError: The study cannot be written.
        FleetError: The devices are not there.
    """
    here, in_words = place.environment, ranks_in_words(command)
    named_world = flags.get("world") or in_words
    # Ranks that it is likely to start, where it does not say; its first run tells.
    world = named_world or (CPU_WORLD if here.accelerator == "cpu" else here.n_devices)
    try_folder(study.folder, named=study.folder, hint=_other_folder())
    timeout_s = _FIRST_TIMEOUT_S
    if (asked := flags.get("trial_timeout")) is not None:
        timeout_s = parse_seconds(asked, where=flag("trial_timeout"))
    note(
        f"first, the command runs as it is for a few steps, {format_seconds(timeout_s)} at most: "
        f"{in_short(command)}"
    )
    for remark in place.remarks(named_world or 1):  # else the first run tells how many
        note(remark)
    is_new = not study.folder.exists()
    try:
        study.lock()
        limit_bytes = _limit_bytes(flags, place.environment)
        for _ in range(3):
            result, seen = _run_once(
                command,
                flags,
                world=world,
                limit_bytes=limit_bytes,
                timeout_s=timeout_s,
                place=place,
                study=study,
                folder=folder,
                note=note,
            )
            reports = (study.folder / FIRST_RUN / RANKS_DIR).glob("[0-9]*.json")
            started = int(seen.get("world", 0)) or len(list(reports))
            if started not in (0, world):
                note(f"ranks that it starts: {started}, not {world}; once more, with as many")
                world = started
            elif limit_bytes is not None and result.outcome is Outcome.OOM:
                within = f"it does not fit in {format_bytes(limit_bytes)} as it is"
                note(f"{within}: once more without the limit, to see what it trains")
                limit_bytes = None
            else:
                break
        refuse_unobserved(result, study.folder / FIRST_RUN / STDERR_FILE)
        if not seen:
            raise JobError(
                "the command, as it is, was measured but did not say what it trains",
                f"see {study.folder / FIRST_RUN / STDERR_FILE}",
            )
        read = [source["file"] for source in seen.get("sources") or ()]
        sources = sources_of(command, Path(folder), [*read, *seen.get("files", [])])
        script = Observed(
            command=list(command),
            folder=folder,
            world=world,
            description=scrubbed(seen),
            result=scrubbed(to_dict(result)),
            sources=sources,
            memory_limit_bytes=limit_bytes,
            observed_digest=digest_of(list(command), sources),
            source_digests={name: file_digest(name) for name in sources},
        )
        text = canonical_json(dataclasses.asdict(script))
        file = study.folder / OBSERVED_FILE
        write_text(file, text, error=StudyError, hint=_other_folder(), mode=PRIVATE_MODE)
        return script
    except (KeyboardInterrupt, FleetError):
        if is_new:  # there is no study yet, and no failure of the command to look into
            shutil.rmtree(study.folder, ignore_errors=True)
        raise
    finally:
        study.unlock()


def adopt_first_run(session: Session) -> None:
    """Put the first run of a command into an empty record as its trial 0: the baseline.

    One with another memory limit than the job's is none of its trials.

    Raises:
        StudyError: The record cannot be written.
    """
    script, study = session.job.script, session.study
    if script is None or study.next_number():
        return
    limit_bytes = session.job.enforced_limit_bytes(session.environment.device_memory_bytes)
    if script.memory_limit_bytes != limit_bytes:
        return
    candidate = own_candidate(session)
    study.update_state(environments=environments_of(session, lambda _: None))
    spec = session.spec_of(Run(candidate=candidate, role=Role.BASELINE), 0)
    folder = study.write_spec(spec, session.engine.files(candidate))
    for name in (STDOUT_FILE, STDERR_FILE):
        if (log := study.folder / FIRST_RUN / name).is_file():
            shutil.copy(log, folder / name)  # with its mode
    ranks = study.folder / FIRST_RUN / RANKS_DIR
    if ranks.is_dir():
        shutil.copytree(ranks, folder / RANKS_DIR, dirs_exist_ok=True)
    study.take_result(folder, spec, _as_trial(script, spec))


def own_candidate(session: Session) -> Candidate:
    """The user's command as it is."""
    return next(iter(session.engine.ladder()))[0]


def ranks_in_words(command: Sequence[str]) -> int | None:
    """Ranks that a command says it starts; one of several nodes would wait for the others."""
    words = filled_in(list(command), {})
    world, n_nodes = find_engine(DEFAULT_ENGINE).ranks_of_command(words, Path.cwd())
    if n_nodes > 1:
        raise JobError(
            f"the command starts its ranks on {n_nodes} nodes: commands are run on one node alone",
            "give it with the ranks of one node, such as --nnodes 1; a search of a named model "
            f"({flag('model')}) runs on several, with {flag('fleet')}",
        )
    return world


def study_name(command: Sequence[str], folder: str) -> str:
    """A name that the same command in the same folder always gets: it resumes."""
    digest = hashlib.sha256("\0".join([*command, folder]).encode()).hexdigest()[:6]
    return f"{name_of(command)}-{digest}"


def _run_once(
    command: Sequence[str],
    flags: Mapping[str, Any],
    *,
    world: int,
    limit_bytes: int | None,
    timeout_s: float,
    place: Place,
    study: Study,
    folder: str,
    note: Note,
) -> tuple[TrialResult, dict[str, Any]]:
    environment, where = place.environment, study.folder / FIRST_RUN
    shutil.rmtree(where, ignore_errors=True)
    (where / CONFIG_DIR).mkdir(parents=True)
    spec = TrialSpec(
        identity=Identity(
            study=study.name, number=0, role=Role.BASELINE, candidate_hash="0" * 12, knobs={}
        ),
        layout=Layout(
            accelerator=environment.accelerator,
            **{"world": world, "tp": 1, "pp": 1, "dp": world},
            **{"micro_batch": 1, "grad_accum": 1, "global_batch": world},
        ),
        workload=Workload(
            name="script",
            model={},
            seq_len=1,
            precision="fp32",
            command=filled_in(list(command), {}),
            folder=folder,
        ),
        engine=EngineSettings(expected={}),
        measure=dataclasses.replace(
            MEASURE,
            diagnoses=bool(flags.get("diagnose", True)),
            memory_limit_bytes=limit_bytes,
            timeout_s=timeout_s,
        ),
    )
    write_spec_file(where, spec)
    (where / CONFIG_DIR / EDITS_FILE).write_text('{"observes": true}\n', encoding="utf-8")
    if not place.is_elsewhere and is_of_this_environment(command, os.environ):
        find_engine(DEFAULT_ENGINE).build(environment.accelerator, note)
    fleet = place.gangs(world)
    try:
        result = fleet.submit(spec, where).wait()
    finally:
        fleet.close()
    assert result is not None, "waited for its end"
    try:
        return result, read_json(where / RANKS_DIR / DESCRIPTION_FILE)
    except ContractError:
        return result, {}


def _limit_bytes(flags: Mapping[str, Any], environment: Environment) -> int | None:
    """What a trial of the job may take per device, by its flags: as `Job` has it."""
    text, room = flags.get("memory_limit"), flags.get("head_room")
    limit_bytes = None if text is None else parse_bytes(text, where=flag("memory_limit"))
    return enforced_limit_bytes(limit_bytes, room or 0.0, environment.device_memory_bytes)


def _as_trial(script: Observed, spec: TrialSpec) -> TrialResult:
    """The first run as the trial of a spec: its rates by the samples that were counted."""
    seen, batch = script.measured, script.global_batch

    def rate(step_time_s: float | None) -> float | None:
        return batch / step_time_s if step_time_s else None

    return dataclasses.replace(
        seen,
        number=spec.identity.number,
        role=spec.identity.role,
        candidate_hash=spec.identity.candidate_hash,
        samples_per_s=rate(seen.step_time_s),
        samples_per_s_low=rate(seen.step_time_high_s),
        samples_per_s_high=rate(seen.step_time_low_s),
    )
