"""The protocol of a workload: what a trial trains, and which knobs its script brings into force.

A workload is a plug-in, found by name under the entry-point group `autotune.workloads`; a job
names it. Its contract is in `autotune.testing`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from autotune.base.plugins import load_plugin
from autotune.contract import Workload
from autotune.job.job import Job
from autotune.space.candidate import Candidate

Way = Literal["code", "configuration", "arguments", "environment"]
"""How a knob's value reaches a training script: by its own code, or by what it is given."""


class WorkloadPlugin(ABC):
    """A workload by name; made without arguments, and cheap to make."""

    applies: ClassVar[Mapping[str, Way]]
    """Knobs that no engine can bring into force without the script -> how this script does; the
    others of that kind do not act."""

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
