"""The protocol of a fleet: it runs a trial on a gang of slots and says how it ended.

A `FleetPlugin` is registered by name (entry points of the group `autotune.fleets`). What it finds
is a `Place`, and what that makes for a job is the `Fleet`.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from autotune.base.clock import unix_now_s
from autotune.base.errors import FleetError, JobError
from autotune.base.text import Say
from autotune.contract import Origin, Outcome, Phase, TrialResult, TrialSpec
from autotune.cost.forecast import Forecast
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine, find_engine
from autotune.fleet.options import FleetOptions
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class Progress:
    """State of a running trial."""

    phase: Phase
    elapsed_s: float


class Handle(Protocol):
    """A trial in flight."""

    spec: TrialSpec
    folder: Path

    def poll(self) -> TrialResult | None:
        """The result once every process of the trial has ended, else None; never waits.

        The result has not been written to the record yet: that is the coordinator's to do.

        Raises:
            FleetError: The trial could not be started where it was submitted.
            StudyError: Its files could not be written there.
        """

    def wait(self, timeout_s: float = math.inf) -> TrialResult | None:
        """The result once every process of the trial has ended; None: it took longer."""
        deadline_s = time.monotonic() + timeout_s
        while (result := self.poll()) is None and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return result

    def progress(self) -> Progress:
        """The phase that the slowest rank is in."""

    def cancel(self) -> None:
        """Begin to end all processes of the trial; `poll` answers with `cancelled` in the end.

        One that has ended by itself meanwhile keeps its outcome.
        """


class Fleet(Protocol):
    """Runs trials, on accelerators or not."""

    def capacity(self, world: int) -> int:
        """How many trials of `world` slots can run at once; falls when slots are left out.

        Raises:
            FleetError: None can any more: too many nodes are lost.
        """

    def quarantined(self) -> tuple[str, ...]:
        """Slots that run no more trials, since the platform ended several in a row there.

        Named as in a result's `devices`. They leave room for a trial at least.
        """
        return ()

    def absent(self) -> Mapping[str, str]:
        """Nodes that run no trials for the time being, and why: they do not answer."""
        return {}

    def reap(self, folder: Path) -> None:
        """End what a dead coordinator may have left of the trials below a folder; waits for it.

        Raises:
            FleetError: A node does not answer.
        """

    def prepare(self, command: Sequence[str], note: Say) -> None:
        """Run `Engine.preparation` on every node before the first trial, and wait for it.

        An empty command is nothing to do; `note` is told what happens, a line at a time.

        Raises:
            FleetError: It failed on a node.
        """

    def submit(self, spec: TrialSpec, folder: Path) -> Handle:
        """Start a trial whose `spec.json` and `config/` are already in `folder`.

        Raises:
            FleetError: No gang is free.
        """

    def close(self) -> None:
        """End everything that still runs."""


THIS_MACHINE = "localhost"
"""Name of this machine among the nodes of a fleet."""


class Place(ABC):
    """A place that runs the trials of a search or answers for them; nothing is started yet."""

    is_elsewhere = False
    """Whether trials run on other machines than this one."""
    origin = Origin.MEASURED
    """Origin of the figures."""
    compares = True
    """Whether the best runs again beside the baseline; a table would only repeat itself."""
    forecaster: Callable[[Sequence[Candidate]], Forecast] | None = None
    """Forecast of candidates before they are tried; None: that of the analytic model."""
    host_memory_bytes: int | None = None
    """Memory of a node that ranks may take together, whatever devices it has; None: unknown."""

    def __init__(self, environment: Environment, flags: Mapping[str, Any]) -> None:
        self.environment = environment
        self.flags = flags

    def remarks(self, world: int) -> Sequence[str]:
        """What to know of figures that trials of so many ranks have here now, a line each."""
        return ()

    def finish_job(self, job: Job, data: dict[str, Any]) -> tuple[Job, dict[str, Any]]:
        """The job and its YAML, completed by what only the place knows."""
        return job, data

    def bind(self, job: Job) -> Engine:
        """The engine of a job, as it is here.

        Raises:
            JobError: There is none of that name, or its trials cannot be run.
            RenderError: A template or the base configuration cannot be used.
        """
        plugin = find_engine(job.engine)
        if not plugin.is_driven:
            raise JobError.of("fleet.not_driven", job=job)
        return plugin.bind(job, self.environment)

    @abstractmethod
    def fleet_for(self, job: Job, engine: Engine, lattice: Lattice) -> Callable[[], Fleet]:
        """A call that makes the fleet of a job; what cannot work at all is said at once.

        Raises:
            JobError: The job cannot be run or answered for here.
            FleetError: Likewise, by the call that is returned as well.
        """

    def gangs(self, world: int) -> Fleet:
        """A fleet for trials of so many ranks that are no search's.

        Raises:
            JobError: Nothing runs here: the place only answers for trials.
            FleetError: There are fewer devices than ranks.
        """
        raise JobError.of("fleet.only_answers")

    def at_once(self, world: int) -> int:
        """Trials of so many ranks that run at the same time; 0: there are fewer devices."""
        return 1

    def rank_places(self, world: int) -> tuple[str, ...]:
        """Name of where each rank of a job lies: its node, and the devices that are joined there.

        Returns:
            Empty where nobody knows.

        Raises:
            FleetError: The devices are not there.
        """
        return ()

    def node_environments(self) -> Sequence[Environment]:
        """The environment of each node.

        Raises:
            FleetError: A node does not answer.
        """
        return [self.environment]

    def nodes_without(self, folder: Path) -> tuple[str, ...]:
        """Nodes that do not see a folder of this machine under the same name.

        Raises:
            FleetError: Nothing can be written there.
        """
        return ()


@runtime_checkable
class Obtaining(Protocol):
    """A `FleetPlugin` whose nodes may have to be asked for, and given back."""

    def obtain(
        self, of: str, options: FleetOptions, *, say: Say, agree: Say
    ) -> AbstractContextManager[str]:
        """Hold the nodes that a search asks for; the value is what `find` takes for them.

        Args:
            of: Text after the name, as of `FleetPlugin.find`.
            options: What was said of the fleet besides.
            say: Takes a line of what happens meanwhile.
            agree: Shows the user what is asked for, and raises where they do not agree.

        Raises:
            JobError: That is no request.
            FleetError: The nodes are not given.
        """


class FleetPlugin(Protocol):
    """A kind of fleet by name; made without arguments."""

    def find(
        self, of: str, job_file: Path | None, flags: Mapping[str, Any], options: FleetOptions
    ) -> Place:
        """Find what a search asks for; nothing is started.

        Args:
            of: Text after the name: `8xH100` of `simulate:8xH100`; may be empty.
            job_file: YAML, or None.
            flags: Keys of the job that come before the file's.
            options: What was said of the fleet besides.

        Raises:
            JobError: That is none of this kind, or it does not go with the job.
            FleetError: The devices are not there.
        """


Answer = Callable[[TrialSpec], TrialResult]
"""A trial's result; it says that it was not measured (`TrialResult.origin`)."""


class AnsweringFleet(Fleet):
    """Answers instead of running, one trial at a time."""

    def __init__(self, answer: Answer, origin: Origin) -> None:
        self._answer = answer
        self._origin = origin
        self._trial: _AnsweredTrial | None = None

    def capacity(self, world: int) -> int:
        return 1

    def reap(self, folder: Path) -> None:
        """See `Fleet.reap`: nothing runs."""

    def prepare(self, command: Sequence[str], note: Say) -> None:
        note(f"figures are {self._origin}: nothing runs on this machine")

    def submit(self, spec: TrialSpec, folder: Path) -> "_AnsweredTrial":
        if self._trial is not None and self._trial.result is None:
            raise FleetError("a trial is in flight, and this fleet takes one", "wait for it")
        self._trial = _AnsweredTrial(spec, folder, self._answer)
        return self._trial

    def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()


class _AnsweredTrial(Handle):
    """One answer, given when it is first asked for."""

    def __init__(self, spec: TrialSpec, folder: Path, answer: Answer) -> None:
        self.spec = spec
        self.folder = folder
        self.result: TrialResult | None = None
        self._answer = answer
        self._started_at_s = unix_now_s()
        self._is_cancelled = False

    def poll(self) -> TrialResult | None:
        if self.result is None:
            self.result = replace(self._answer(self.spec), started_at_s=self._started_at_s)
            if self._is_cancelled:
                self.result = TrialResult.of(
                    self.spec.identity,
                    Outcome.CANCELLED,
                    origin=self.result.origin,
                    started_at_s=self._started_at_s,
                )
        return self.result

    def progress(self) -> Progress:
        return Progress(phase=Phase.SPAWN, elapsed_s=unix_now_s() - self._started_at_s)

    def cancel(self) -> None:
        self._is_cancelled = self.result is None
