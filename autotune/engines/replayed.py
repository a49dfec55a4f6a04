"""The engine of a replay: a configuration is what its table says, and nothing is rendered."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.plans import Plans
from autotune.devices.accelerators import Accelerator
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, RankSettings, bind_engine
from autotune.job.job import Job
from autotune.replay.problem import ReplayProblem
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.rule import Violation


class ReplayedEngine:
    """A table's runs, of whatever framework; implements `Engine`."""

    name = "replay"

    def __init__(self, job: Job, environment: Environment, problem: ReplayProblem) -> None:
        self._job = job
        self._environment = environment
        self._problem = problem
        self._engine = bind_engine(job, environment)

    @property
    def context(self) -> Context:
        """The job's context; tables do not name one."""
        return Context.of(self._job, self._environment)

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

    def plans(
        self,
        candidates: Sequence[Candidate],
        accelerators: Sequence[Accelerator],
        *,
        needs_shape: bool = True,
    ) -> Plans:
        """The candidates in columns, by the engine whose knobs the table is read in.

        Raises:
            FleetError: The accelerator is in no table.
        """
        plans = self._engine.plans
        return plans(candidates, accelerators, needs_shape=needs_shape)

    def layouts(self) -> tuple[Candidate, ...]:
        """The table's configurations, in its order."""
        return tuple(self._problem.configurations)

    def describe(self, candidate: Candidate) -> str:
        """What a user has to set, in words."""
        return self._engine.describe(candidate)

    def steps(self, candidate: Candidate) -> list[tuple[str, KnobValue]]:
        """No steps: a table has no neighbours but its rows."""
        return []

    def ranks(self, candidate: Candidate) -> RankSettings:
        """There are none."""
        return RankSettings()

    def expected(self, candidate: Candidate) -> dict[str, Any]:
        """No values: there is no engine to ask."""
        return {}

    def files(self, candidate: Candidate) -> dict[str, str]:
        """The rows of the table, so that trials of an edited table are answered anew."""
        found = self._problem.configurations.get(candidate)
        rows = [] if found is None else [dict(row.cells) for row in found.rows]
        return {"rows.json": json.dumps(rows, indent=2, sort_keys=True) + "\n"}

    def ladder(self) -> Iterable[Sequence[Candidate]]:
        """The ladder of the engine whose knobs the table is read in."""
        return self._engine.ladder()

    def preparation(self, candidates: Sequence[Candidate]) -> tuple[str, ...]:
        """Nothing is built."""
        return ()

    def overridden(self, candidate: Candidate) -> Mapping[str, tuple[Any, Any]]:
        """Nothing."""
        return {}

    def baseline(self, path: Path) -> tuple[Engine, Candidate]:
        """There is none.

        Raises:
            JobError: Always.
        """
        raise JobError(
            f"{path}: a replay has no configuration but the table's", "leave --baseline out"
        )
