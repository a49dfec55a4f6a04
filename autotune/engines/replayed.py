"""The engine of a replay: a configuration is what its table says, and nothing is rendered."""

import json
from collections.abc import Iterable, Sequence

from autotune.cost.plans import Plans
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, bind_engine
from autotune.job.job import Job
from autotune.replay.problem import ReplayProblem
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
        """The settings that a user has to make, in words."""
        return self._engine.describe(candidate)

    def files(self, candidate: Candidate) -> dict[str, str]:
        """The rows of the table, so that trials of an edited table are answered anew."""
        found = self._problem.configurations.get(candidate)
        rows = [] if found is None else [dict(row.cells) for row in found.rows]
        return {"rows.json": json.dumps(rows, indent=2, sort_keys=True) + "\n"}

    def ladder(self) -> Iterable[Sequence[Candidate]]:
        """The ladder of the engine whose knobs the table is read in."""
        return self._engine.ladder()
