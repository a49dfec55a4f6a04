"""A job with everything that it needs on this machine; nothing runs here."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune import DEFAULT_ENGINE
from autotune.base.data import shipped_spaces
from autotune.base.errors import FleetError, JobError
from autotune.base.files import try_folder
from autotune.base.flags import flag
from autotune.base.plugins import load_plugin, plugin_names
from autotune.base.text import Say
from autotune.contract import Origin
from autotune.cost.problem import accelerator_of
from autotune.devices.accelerators import find_accelerator, named_accelerator, shipped_accelerators
from autotune.devices.hardware import Environment, detect_environment
from autotune.engines.base import BOTH, Engine, find_engine, installed_engines
from autotune.export.base import Dialect
from autotune.export.door import find_dialect
from autotune.fleet.base import FleetPlugin, Obtaining, Place
from autotune.fleet.options import NO_OPTIONS, FleetOptions
from autotune.job.adapters import with_rank
from autotune.job.job import (
    PLAN_SPACE,
    Job,
    JobText,
    accelerators_of,
    given_keys,
    keys_of,
    make_job,
    resolve_paths,
)
from autotune.job.price import price_for
from autotune.planning.lattice import Lattice
from autotune.planning.outlook import FleetWishes, described
from autotune.record.study import Study
from autotune.search.history import History
from autotune.search.plan import Plan, make_plan
from autotune.search.prospect import Prospect
from autotune.search.session import Session

DEMO: dict[str, dict[str, Any]] = {
    "cpu": {
        # Few layers under the vocabulary of a real Llama: the loss is what costs, as in many a
        # small model, and how much of it is done at once decides.
        "model": "tiny-llama-32k",
        "seq_len": 64,
        "precision": "fp32",
        "space": "cpu",
        "trials": 6,
        "budget": "140s",
    },
    "cuda": {"model": "gpt2", "seq_len": 1024, "budget": "6m"},
}
"""The job where nobody names a model: small enough for a few minutes, with room for choices."""
DEMO_BATCH_PER_RANK = 16
"""The small job's global batch is so many times the world: every world has legal candidates."""
CPU_WORLD = 2
"""Ranks on CPU by default: enough to communicate, few enough for any machine."""


def open_session(
    job_file: JobText | None,
    flags: Mapping[str, Any],
    *,
    results: Path,
    fleet: str = "local",
    options: FleetOptions = NO_OPTIONS,
    versions: Mapping[str, str] | None = None,
    study_ending: str = "",
) -> Session:
    """Read the job, and find out what is legal for it on a fleet.

    Args:
        job_file: The job's file, or None.
        flags: Keys of the job that come before the file's.
        results: Folder of all studies.
        fleet: Name of an installed one, and after a colon what it takes: `simulate:8xH100`.
        options: What was said of the fleet besides.
        versions: Releases that its trials run with, by the fields of `Environment`, where they
            are none of this Python's.
        study_ending: What the study's name ends in, unless there is only one without it: that
            was begun by a search of that engine alone, and goes on.

    Raises:
        JobError: The job, the space, the fleet or a file that it names is not valid.
        RenderError: A template or the base configuration does not render.
        StudyError: The results cannot be written there.
        FleetError: torch is missing, or a package that the engine needs, or the fleet has no
            such devices.
        NothingFeasibleError: The rules refuse every candidate.
    """
    path = None if job_file is None else job_file.path
    place = find_place(fleet, path, flags, options)
    known: dict[str, Any] = {**(versions or {})}
    place.environment = replace(place.environment, **known)
    job, data = place.finish_job(*read_job(job_file, place.flags, place.environment))
    if study_ending:
        ended = job.study + study_ending
        names = (ended, job.study)
        study_name = next((n for n in names if Study(results, n).job_file.exists()), ended)
        job, data = replace(job, study=study_name), {**data, "study": study_name}
    table = accelerators_of(data)
    check_devices(data, place.environment)
    study = Study(results, job.study)
    hint = f"name a folder that you may write, such as {flag('results')} ~/autotune"
    try_folder(study.folder, named=study.folder, hint=hint)
    engine = place.bind(job)
    # Before anything runs: a file that cannot be used is a matter of the command.
    check_baseline(job, engine, place.environment)
    session = Session(job=job, job_data=data, engine=engine, study=study, place=place, table=table)
    check_space_is_read(session.lattice, data)
    _ = session.make_fleet  # what cannot run at all is said now
    return session


def check_devices(keys: Mapping[str, Any], environment: Environment) -> None:
    """Refuse devices that are not the accelerators that the keys of a job name, if they name any.

    Their entries of the table are compared. Words of the device's own name count where the table
    has neither.

    Raises:
        JobError: The table has no accelerator of that name, or it is no table.
        FleetError: The devices are others.
    """
    if keys.get("gpu") is None:
        return
    gpu, here, known = str(keys["gpu"]), environment.device_name, None
    table = accelerators_of(keys)
    memory_gib = environment.device_memory_bytes / 2**30  # it tells A100-40GB and A100-80GB apart
    for entries in (table, shipped_accelerators()):  # an entry of a user's has any name
        with suppress(FleetError):
            known = accelerator_of(environment, entries)
            if find_accelerator(gpu, memory_gib=memory_gib, table=entries) == known:
                return
    try:
        gpu = named_accelerator(gpu, where=flag("gpu"), table=table).name
    except JobError:
        words = re.escape(gpu.strip()) or "(?!)"
        if known is None and re.search(rf"(?<!\w){words}(?!\w)", here, re.IGNORECASE):
            return
        raise
    meant = f"; or name these: {flag('gpu')} {known.name}" if known else ""
    raise FleetError.of("app.other_gpu", gpu=gpu, here=here, meant=meant)


def check_space_is_read(lattice: Lattice, keys: Mapping[str, Any]) -> None:
    """See that nobody named a space that its engine does not read.

    Raises:
        JobError: The keys of the job name the default engine's own one.
    """
    if lattice.is_laid_out and keys.get("space") not in (None, PLAN_SPACE):
        shipped = ", ".join(shipped_spaces(lattice.context.engine)) or "a file"
        raise JobError.of(
            "app.others_space",
            lattice=lattice,
            keys=keys,
            own=shipped,
            default_engine=DEFAULT_ENGINE,
            plan_space=PLAN_SPACE,
        )


def both_engines(
    job_file: JobText | None, flags: Mapping[str, Any]
) -> list[tuple[dict[str, Any], str]]:
    """The flags of each search that is asked for: of one engine, or of all that run trials.

    A key that is one engine's goes to no other. Beside the flags stands what the study's name has
    to end in, as of `open_session`.
    """
    keys = given_keys(job_file, flags)
    if keys.get("engine") != BOTH:
        return [(dict(flags), "")]
    study = keys.get("study")
    found = []
    for plugin in sorted(installed_engines(), key=lambda one: one.name != DEFAULT_ENGINE):
        if not plugin.is_driven:
            continue
        others = {
            name for name, key in keys_of("search").items() if key.engine not in ("", plugin.name)
        }
        if flags.get("space") == PLAN_SPACE:  # each engine has its own
            others -= {"space"}
        taken = {name: value for name, value in flags.items() if name not in others}
        taken["engine"], ending = plugin.name, f"-{plugin.name}"
        if study:
            taken["study"], ending = f"{study}{ending}", ""
        found.append((taken, ending))
    return found


@contextmanager
def obtained_fleet(fleet: str, options: FleetOptions, *, say: Say, agree: Say) -> Iterator[str]:
    """Hold what a fleet has to ask for while the block runs; the value is the fleet's name then.

    `say` and `agree` are as of `Obtaining.obtain`.

    Raises:
        JobError: There is no such fleet, or it is asked for something else.
        FleetError: The nodes are not given.
    """
    kind, _, of = fleet.partition(":")
    plugin = load_plugin("fleet", kind, where=flag("fleet"))
    if not isinstance(plugin, Obtaining):
        yield fleet
        return
    with plugin.obtain(of, options, say=say, agree=agree) as held:
        yield f"{kind}:{held}"


def check_baseline(job: Job, engine: Engine, environment: Environment) -> None:
    """Refuse a baseline that would not run as it is written, in the words of `check`.

    Something else would be measured in its place, and every gain would be a gain over that.

    Raises:
        JobError: Its program or a rule refuses it, or it trains something else than the job.
        RenderError: It cannot be read.
    """
    path = job.baseline
    if path is None:
        return
    dialect = find_dialect(find_engine(job.engine).dialect)
    if isinstance(dialect, Dialect):
        _refuse(path, dialect.refusals(path, world=job.world, environment=environment))
    engine_of_file, candidate = engine.baseline(path)
    _refuse(path, [(v.message, v.fix) for v in engine_of_file.judge(candidate)])


def _refuse(path: Path, refusals: Sequence[tuple[str, str]]) -> None:
    if refusals:
        raise JobError(
            "\n".join(f"{flag('baseline')} {path}: {message}" for message, _ in refusals),
            "; ".join(dict.fromkeys(fix for _, fix in refusals if fix)),
        )


def find_place(
    fleet: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
) -> Place:
    """The place of a fleet's name, and of what comes after its colon; nothing is started.

    Raises:
        JobError: There is no such fleet, or it takes no such options.
        FleetError: Its devices are not there.
    """
    kind, _, of = fleet.partition(":")
    plugin: FleetPlugin = load_plugin("fleet", kind, where=flag("fleet"))
    return plugin.find(of, job_file, flags, options)


def find_running_place(fleet: str, options: FleetOptions) -> Place:
    """The place of a fleet that runs trials outside of a search; nothing is started.

    Raises:
        JobError: There is no such fleet, it takes no such options, or it only answers for trials.
        FleetError: Its devices are not there.
    """
    place = find_place(fleet, None, {}, options)
    if place.origin is not Origin.MEASURED:
        raise JobError.of("fleet.only_answers")
    return place


def plan_search(session: Session, prospect: Prospect | None = None, *, fresh: bool) -> Plan:
    """What a search would run and what it costs, by what is predicted of its trials.

    Raises:
        StudyError: The record cannot be read.
        JobError: No file can be made for what is searched.
    """
    if why := session.engine.no_files():
        instead = "search by a script of your own, or by another engine that trains it"
        raise JobError(why, f"{instead}; `autotune plan` ranks this one")
    history = History() if fresh else session.history_to_resume()
    return make_plan(session, history, prospect)


def read_job_on(
    wishes: FleetWishes, job_file: JobText | None, flags: Mapping[str, Any]
) -> tuple[Job, dict[str, Any], Environment]:
    """Read a job for a fleet that is described, or for this machine where no GPU is named.

    Returns:
        What `read_job` does, and the devices.

    Raises:
        JobError: The job, the table or the description is not valid.
    """
    if wishes.gpu is None and wishes.per_node is not None:
        raise JobError.of("app.per_node_of_unnamed", wishes=wishes)
    table = accelerators_of(given_keys(job_file, flags))
    try:
        environment = (
            detect_environment()
            if wishes.gpu is None
            else described(wishes, table, where=flag("gpu"))
        )
    except FleetError as error:
        there = f"or name an accelerator, which need not be here: {flag('gpu')} H100"
        raise FleetError(error.message, f"{error.hint}; {there}") from error
    job, keys = read_job(job_file, flags, environment)
    if (size := wishes.per_node) is not None and job.world > size and (rest := job.world % size):
        less, more = job.world - rest, job.world - rest + size
        raise JobError.of("app.node_in_part", size=size, job=job, rest=rest, less=less, more=more)
    return job, keys, environment


def read_job(
    job_file: JobText | None, flags: Mapping[str, Any], environment: Environment
) -> tuple[Job, dict[str, Any]]:
    """Read a job, with the defaults of some devices.

    Returns:
        The job, and its keys for a YAML file that is readable from any folder.

    Raises:
        JobError: It is not valid.
    """
    path = "" if job_file is None else str(job_file.path)
    keys = given_keys(job_file, flags)
    if "lora_rank" in keys:
        keys["finetune"] = with_rank(keys.get("finetune"), keys.pop("lora_rank"))
    given = {"finetune" if name == "lora_rank" else name for name in flags}
    price = keys.get("price")
    if isinstance(price, str) and ("price" in given or "=" in price):
        where = flag("price") if "price" in given else f"{path}: price"
        keys["price"] = price_for(price, environment.device_name, where=where)
    data = {**_defaults(keys, environment), **keys}
    job = make_job(data, where=path, flags=given)
    readable = resolve_paths(data, Path.cwd())
    names = ("seq_len", "global_batch", "precision")
    read = {name: getattr(job, name) for name in names if name in readable}
    return job, {**readable, **read, "study": job.study, "lengths": job.lengths.as_yaml()}


def _defaults(given: Mapping[str, Any], environment: Environment) -> dict[str, Any]:
    """This machine's devices; and where no model is named, a small job for them."""
    is_cpu = environment.accelerator == "cpu"
    world = given.get("world", CPU_WORLD if is_cpu else environment.n_devices)
    if "model" in given:
        return {"world": world}
    # A world that is no number is refused later, by name.
    batch = DEMO_BATCH_PER_RANK * max(1, world if isinstance(world, int) else 1)
    small = dict(DEMO[environment.accelerator])
    engine = given.get("engine", DEFAULT_ENGINE)
    if engine in plugin_names("engine") and find_engine(engine).lays_out:
        small.pop("space", None)  # it reads none; an engine that is not there is refused later
    return {"world": world, "global_batch": batch, **small}
