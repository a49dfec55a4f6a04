"""Searches in which nothing runs: a table or the analytic model answers, and it is said."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune.app.session import Session, open_session, read_accelerators_of
from autotune.base.errors import JobError
from autotune.base.plugins import load_plugin
from autotune.contract import Origin
from autotune.cost.constants import constants_of
from autotune.cost.forecast import Forecast
from autotune.cost.predict import predict
from autotune.devices.hardware import Environment, detect_environment, version_of
from autotune.engines.replayed import ReplayedEngine
from autotune.fleet.answering import AnsweringFleet
from autotune.fleet.replay import replayed
from autotune.fleet.simulate import Luck, Said, simulated
from autotune.job.job import Job, make_job
from autotune.job.model import model_from_config
from autotune.planning.lattice import lattice_of
from autotune.planning.outlook import FleetWishes, described
from autotune.record.study import Study
from autotune.replay.forecast import forecast_of
from autotune.replay.problem import ReplayProblem, read_problem
from autotune.space.candidate import Candidate

FLEETS = "local, simulate, simulate:8xH100, replay:FILE.csv or replay:FILE.csv#GROUP"
_DESCRIBED = re.compile(r"(?:(\d+)\s*x\s*)?(.+)")
_GIVEN_BY_TABLE = (
    *("model", "seq_len", "global_batch", "world", "precision", "lora_rank", "lengths", "space"),
    *("baseline", "base_config", "templates", "nvme_path", "accelerators"),
)


def open_fleet(
    fleet: str, job_file: Path | None, flags: Mapping[str, Any], *, results: Path
) -> Session:
    """A session on a fleet by its name.

    Args:
        fleet: One of `FLEETS`.
        job_file: YAML, or None.
        flags: Keys of the job that come before the file's.
        results: Folder of all studies.

    Raises:
        JobError: There is no such fleet, or what it names is not valid; and as `open_session`.
        AutotuneError: As `open_session`.
    """
    kind, _, of = fleet.partition(":")
    if fleet == "local":
        return open_session(job_file, flags, results=results)
    if kind == "simulate":
        return _open_simulated(of, job_file, flags, results=results)
    if kind == "replay" and of:
        if job_file is not None:
            raise JobError(
                f"--fleet replay: the table says what is trained, not {job_file}",
                "leave the job file out",
            )
        path, _, wanted = of.partition("#")
        return _open_replayed(read_problem(Path(path), wanted), flags, results=results)
    raise JobError(f"--fleet {fleet}: there is no such fleet", f"name one of {FLEETS}")


def _open_simulated(
    of: str, job_file: Path | None, flags: Mapping[str, Any], *, results: Path
) -> Session:
    """The job on devices that the model speaks for."""
    environment = detect_environment()
    if of:
        table = read_accelerators_of(job_file, flags.get("accelerators"))
        environment = described(_wishes(of), environment, table)
    session = open_session(job_file, flags, results=results, environment=environment)
    job = session.job
    if "study" not in flags:
        job = dataclasses.replace(job, study=f"simulated-{job.study}")
    constants = constants_of(environment)

    def say(candidate: Candidate) -> Said:
        predicted = predict(session.engine.plans([candidate], session.table), constants)
        return Said(
            step_time_s=float(predicted.step_time_s[0]),
            peak_memory_bytes=float(predicted.peak_memory_bytes[0]),
        )

    say(session.lattice.candidates[0])  # what cannot be predicted is said now
    luck = Luck(seed=job.seed)
    limit_bytes = job.memory_limit_bytes or environment.device_memory_bytes
    return dataclasses.replace(
        session,
        job=job,
        job_data={**session.job_data, "study": job.study},
        study=Study(results, job.study),
        origin=Origin.SIMULATED,
        make_fleet=lambda: AnsweringFleet(simulated(say, luck, device_memory_bytes=limit_bytes)),
    )


def _wishes(of: str) -> FleetWishes:
    found = _DESCRIBED.fullmatch(of)
    assert found is not None, "it takes any text"
    per_node = None if found[1] is None else int(found[1])
    if per_node == 0:
        raise JobError(f"--fleet simulate:{of}: no devices", "name at least one: 8xH100")
    return FleetWishes(gpu=found[2], per_node=per_node)


def _open_replayed(problem: ReplayProblem, flags: Mapping[str, Any], *, results: Path) -> Session:
    """A group of a table as a job."""
    if clash := [name for name in _GIVEN_BY_TABLE if name in flags]:
        raise JobError(
            f"--fleet replay: the table says {', '.join(clash)}",
            f"leave --{clash[0].replace('_', '-')} out",
        )
    if "fidelity" in flags:
        raise JobError("--fleet replay: a table has no reduced runs", "leave --fidelity out")
    job = _replayed_job(problem, flags)
    environment = _environment(problem)
    engine = ReplayedEngine(job, environment, problem)
    order = {candidate.hash: row for row, candidate in enumerate(problem.configurations)}
    said = forecast_of(problem.group)

    def forecaster(candidates: Sequence[Candidate]) -> Forecast:
        return said.take(np.array([order[c.hash] for c in candidates], dtype=np.intp))

    by_hash = {c.hash: found for c, found in problem.configurations.items()}
    return Session(
        job=job,
        job_data={
            "model": problem.group.name,
            "seq_len": job.seq_len,
            "global_batch": job.global_batch,
            "world": job.world,
            "precision": job.precision,
            "study": job.study,
        },
        environment=environment,
        engine=engine,
        lattice=lattice_of(job, engine),
        study=Study(results, job.study),
        origin=Origin.REPLAYED,
        make_fleet=lambda: AnsweringFleet(replayed(by_hash)),
        forecaster=forecaster,
    )


def _replayed_job(problem: ReplayProblem, flags: Mapping[str, Any]) -> Job:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", problem.group.name).strip("-.")
    data = {
        "study": f"replayed-{name}",
        **flags,
        # Any shipped model: it gives way to the table's.
        "model": "gpt2",
        "seq_len": problem.seq_len,
        "global_batch": problem.global_batch,
        "world": problem.world,
        "precision": problem.precision,
    }
    job = make_job(data, where="command line", flags=flags)
    load_plugin("sampler", job.sampler).check_installed()
    model = model_from_config(
        problem.group.problem["model_name"] or "table's", problem.model_config, where="the table"
    )
    return dataclasses.replace(job, model=model)


def _environment(problem: ReplayProblem) -> Environment:
    return Environment(
        accelerator="cuda",
        n_devices=problem.devices_per_node,
        device_name=problem.device_name,
        device_memory_bytes=problem.device_memory_bytes,
        peak_flops=None,
        deepspeed_version=version_of("deepspeed") or "0",
        torch_version=version_of("torch") or "0",
    )
