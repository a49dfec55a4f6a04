"""The protocol of a workload: what a trial trains, and which knobs its script brings into force.

A workload is a plug-in, found by name under the entry-point group `autotune.workloads`; a job
names it. Its contract is in `autotune.testing`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from autotune.base.plugins import load_plugin
from autotune.contract import Workload
from autotune.job.job import Job
from autotune.space.candidate import Candidate

Way = Literal["code", "configuration", "arguments", "placeholders", "environment"]
"""How a knob's value reaches a training script: by its own code, or by what it is given."""


@dataclass(frozen=True, kw_only=True)
class Reach:
    """Which knobs reach what a job trains."""

    ways: Mapping[str, Way]
    """Knobs that reach it -> how."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Knobs that do not -> why. Those of neither kind are the engine's own, and reach it."""


class WorkloadPlugin(ABC):
    """A workload by name; made without arguments, and cheap to make."""

    applies: ClassVar[Mapping[str, Way]]
    """Knobs that no engine can bring into force without the script -> how this script does; the
    others of that kind do not act."""

    dialect: ClassVar[str] = ""
    """Name of the dialect that hands its configurations out where nobody names one; empty: the
    engine's own."""

    def reach(self, job: Job) -> Reach:
        """Which knobs reach a job of this kind; by default those that it applies by itself."""
        return Reach(ways=self.applies)

    @abstractmethod
    def workload(self, job: Job, candidate: Candidate) -> Workload:
        """The workload of a candidate's trial, for the record, a soak and an export alike.

        Raises:
            JobError: The job is none that it trains, or its model is not one to leave layers out
                of, as the candidate asks.
        """


def workload_of(job: Job, candidate: Candidate) -> Workload:
    """The workload of a candidate's trial, by the plug-in that the job names.

    Raises:
        JobError: There is none of that name, or as `WorkloadPlugin.workload`.
    """
    plugin: WorkloadPlugin = load_plugin("workload", job.workload)
    return plugin.workload(job, candidate)
