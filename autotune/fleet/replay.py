"""Answers a search from a table of runs that were measured elsewhere."""

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune.base.errors import JobError
from autotune.base.flags import flag
from autotune.contract import Origin, Outcome, TrialResult, TrialSpec
from autotune.cost.forecast import Forecast
from autotune.cost.plans import Plans
from autotune.devices.hardware import Environment, versions_here
from autotune.engines.base import Engine, bind_engine
from autotune.fleet.base import Answer, AnsweringFleet, Place
from autotune.fleet.options import FleetOptions
from autotune.job.job import Job
from autotune.job.model import model_from_config
from autotune.planning.lattice import Lattice
from autotune.replay.groups import Configuration
from autotune.replay.problem import ReplayProblem, forecast_of, read_problem
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation


class ReplayedEngine(Engine):
    """A table's runs, of whatever framework, in the knobs of the engine that the job names."""

    name = "replay"

    def __init__(self, job: Job, environment: Environment, problem: ReplayProblem) -> None:
        super().__init__(job, environment)
        self._problem = problem
        self._engine = bind_engine(job, environment)

    def judge(self, candidate: Candidate) -> list[Violation]:
        """A configuration that the table has no run of is illegal."""
        if candidate in self._problem.configurations:
            return []
        return [
            Violation(
                rule="replay.in_table",
                message="the table has no run of this configuration",
                fix="choose one of its rows",
            )
        ]

    def plans(self, candidates: Sequence[Candidate], *, needs_shape: bool = True) -> Plans:
        """The candidates in columns, by the engine whose knobs the table is read in."""
        return self._engine.plans(candidates, needs_shape=needs_shape)

    def layouts(self, *, saves_memory: bool = False) -> tuple[Candidate, ...]:
        """The table's configurations, in its order."""
        return tuple(self._problem.configurations)

    def describe(self, candidate: Candidate) -> str:
        return self._engine.describe(candidate)

    def files(self, candidate: Candidate) -> dict[str, str]:
        """The rows of the table, so that trials of an edited table are answered anew."""
        found = self._problem.configurations.get(candidate)
        rows = [] if found is None else [dict(row.cells) for row in found.rows]
        return {"rows.json": json.dumps(rows, indent=2, sort_keys=True) + "\n"}

    def ladder(self) -> Iterable[Sequence[Candidate]]:
        return self._engine.ladder()


_GIVEN_BY_TABLE = (
    *("model", "seq_len", "global_batch", "world", "precision", "lora_rank", "lengths", "space"),
    *("baseline", "base_config", "templates", "nvme_path", "accelerators"),
)


class Replay:
    """A table of runs; implements `FleetPlugin`."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> "_ReplayedPlace":
        """A CSV file, and after `#` which of its groups."""
        options.refuse("replay")
        if not of:
            raise JobError.of("fleet.no_table")
        if job_file is not None:
            raise JobError.of("fleet.table_beside_job", job_file=job_file)
        if clash := [name for name in _GIVEN_BY_TABLE if name in flags]:
            flags_named = ", ".join(map(flag, clash))
            raise JobError.of("fleet.table_decides", flags_named=flags_named)
        if "fidelity" in flags:
            raise JobError.of("fleet.table_without_reduced")
        path, _, wanted = of.partition("#")
        return _ReplayedPlace(read_problem(Path(path), wanted), flags)


class _ReplayedPlace(Place):
    """A group of a table as a job, and its rows as what trials of that come to."""

    origin = Origin.REPLAYED
    compares = False

    def __init__(self, problem: ReplayProblem, flags: Mapping[str, Any]) -> None:
        environment = Environment(
            accelerator="cuda",
            n_devices=problem.devices_per_node,
            device_name=problem.device_name,
            device_memory_bytes=problem.device_memory_bytes,
            peak_flops=None,
            **versions_here(unknown="0"),
        )
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", problem.group.name).strip("-.")
        self._table_flags = {
            "seq_len": problem.seq_len,
            "global_batch": problem.global_batch,
            "world": problem.world,
            "precision": problem.precision,
        }
        # Any shipped model: it gives way to the table's.
        job_flags = {"study": f"replayed-{name}", **flags, "model": "gpt2", **self._table_flags}
        super().__init__(environment, job_flags)
        self._problem = problem
        self._order = {c.hash: row for row, c in enumerate(problem.configurations)}
        self._forecast = forecast_of(problem.group)

    def forecaster(self, candidates: Sequence[Candidate]) -> Forecast:
        rows = [self._order[candidate.hash] for candidate in candidates]
        return self._forecast.take(np.array(rows, dtype=np.intp))

    def finish_job(self, job: Job, data: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
        group = self._problem.group
        named = group.problem["model_name"] or "table's"
        model = model_from_config(named, self._problem.model_config, where="the table")
        facts = {"model": group.name, **self._table_flags, "study": job.study}
        return dataclasses.replace(job, model=model), facts

    def bind(self, job: Job) -> Engine:
        return ReplayedEngine(job, self.environment, self._problem)

    def fleet_for(
        self, job: Job, engine: Engine, lattice: Lattice
    ) -> Callable[[], AnsweringFleet]:
        by_hash = {c.hash: found for c, found in self._problem.configurations.items()}
        return partial(AnsweringFleet, replayed(by_hash), self.origin)


def replayed(configurations: Mapping[str, Configuration]) -> Answer:
    """The table's figures of a trial's candidate, found by hash; one that it lacks is invalid."""

    def answer(spec: TrialSpec) -> TrialResult:
        found = configurations.get(spec.identity.candidate_hash)
        made = partial(TrialResult.of, spec.identity, origin=Origin.REPLAYED)
        if found is None:
            evidence = "the table has no run of this configuration"
            return made(Outcome.INVALID, evidence=evidence, evidence_source="replay")
        where = ", ".join(row.where for row in found.rows)
        if found.step_time_s is None:
            evidence = f"the table says {found.rows[0].text('status')}"
            return made(Outcome.OOM, evidence=evidence, evidence_source=where)
        return made(
            Outcome.OK,
            evidence_source=where,
            step_times_s=[found.step_time_s],
            step_time_s=found.step_time_s,
            samples_per_s=spec.layout.global_batch / found.step_time_s,
            peak_memory_bytes=found.peak_memory_bytes,
        )

    return answer
