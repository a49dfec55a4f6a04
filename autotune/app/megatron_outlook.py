"""A job on a fleet under Megatron: every layout that its rules allow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.app.outlook import FleetWishes, Outlook
from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost import Plans
from autotune.devices.accelerators import Accelerator
from autotune.devices.hardware import Environment
from autotune.engines.megatron.knobs import parse_layout, row_of, steps_of
from autotune.engines.megatron.layouts import Layouts, lay_out, task_of
from autotune.export.base import Handout
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

_NOT_ITS_OWN = ("space", "base_config", "baseline")
"""Keys of a job that are about DeepSpeed's configuration."""


@dataclass(frozen=True, kw_only=True)
class MegatronOutlook(Outlook[Layouts]):
    """What Megatron may run."""

    layouts: Layouts

    @property
    def choices(self) -> Layouts:
        """The lattice."""
        return self.layouts

    @property
    def home(self) -> str:
        """The lattice of layouts is no file."""
        return "the lattice of layouts"

    def read(self, settings: Sequence[str]) -> tuple[Layouts, tuple[str, ...]]:
        """A layout; other knobs are at 1, off or none.

        Raises:
            JobError: A setting is not one.
        """
        return self._of(row_of(self.layouts.task, parse_layout(settings))), ()

    def placed(self, choice: Layouts) -> tuple[Layouts, int, bool]:
        """The lattice with a layout in it."""
        index = self.layouts.find(choice.row(0))
        if index is not None:
            return self.layouts, index, True
        return self.layouts.joined(choice), len(self.layouts), False

    def violations(self, choices: Layouts, index: int) -> tuple[Violation, ...]:
        """What the rules say of a layout."""
        return tuple(choices.violations(index))

    def neighbours(self, choice: Layouts) -> tuple[Layouts, list[tuple[str, KnobValue]]]:
        """One knob a step up and down, and at its other choices."""
        knobs = choice.knobs(0)
        steps = list(steps_of(choice.task, knobs))
        rows = [row_of(choice.task, {**knobs, name: value}) for name, value in steps]
        columns = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        return self._of(columns), steps

    @property
    def dialect(self) -> str:
        """The flags of its scripts."""
        return "megatron"

    def handout(self, index: int) -> Handout:
        """A layout with what follows from it."""
        return Handout(
            engine="megatron",
            job=self.job,
            candidate=Candidate.of(
                self.layouts.knobs(index), world=self.job.world, global_batch=self.job.global_batch
            ),
            environment=self.environment,
            settings={
                **self.layouts.row(index),
                "fused_attention": self.layouts.task.fused_attention,
            },
        )

    def columns(self, choices: Layouts) -> Plans:
        """Layouts in the model's columns."""
        return choices.plans(self.job, self.environment, accelerators=self.table)

    def _of(self, columns: Mapping[str, Any]) -> Layouts:
        return Layouts(task=self.layouts.task, columns=columns)


def megatron_outlook(
    job: Job,
    keys: Mapping[str, Any],
    environment: Environment,
    wishes: FleetWishes,
    table: tuple[Accelerator, ...],
) -> MegatronOutlook:
    """Lay the job out on the fleet.

    Args:
        job: What is trained.
        keys: Those of the job that somebody set.
        environment: The fleet.
        wishes: As the command line describes it.
        table: Accelerators.

    Raises:
        JobError: The job is not one that Megatron-LM trains.
        FleetError: The accelerator is in no table.
        NothingFeasibleError: The rules refuse every layout.
    """
    task = task_of(job, environment, accelerators=table)
    theirs = [key for key in _NOT_ITS_OWN if keys.get(key) is not None]
    if theirs:
        raise JobError(
            f"engine megatron: {', '.join(theirs)}: only DeepSpeed's candidates have that",
            "leave it out: Megatron's layouts are all that are legal",
        )
    return MegatronOutlook(
        job=job,
        environment=environment,
        wishes=wishes,
        table=table,
        layouts=lay_out(task),
    )
