"""The words that a trial's files use: how it ended, why it was run, how it starts, its phases."""

import sys
from functools import cached_property

if sys.version_info >= (3, 11):  # noqa: UP036  # a user's own Python may be older than ours
    from enum import StrEnum as StrEnum  # others take it from here
else:
    from enum import Enum

    class StrEnum(str, Enum):  # noqa: UP042  # it is that class
        """Text of a closed list, as Python 3.11 has it."""

        __str__ = str.__str__
        __format__ = str.__format__


class Outcome(StrEnum):
    """How a trial ended."""

    OK = "ok"
    STOPPED_EARLY = "stopped_early"
    """Measured, but no longer than it took to see that it is far behind the best so far."""
    OOM = "oom"
    TIMEOUT = "timeout"
    NONFINITE = "nonfinite"
    INVALID = "invalid"
    COMM = "comm"
    LAUNCH = "launch"
    CRASH = "crash"
    LOST = "lost"
    CANCELLED = "cancelled"

    @cached_property
    def is_measured(self) -> bool:
        """Whether the trial has a step time that a search may compare."""
        return self in (Outcome.OK, Outcome.STOPPED_EARLY)

    @cached_property
    def is_config_fault(self) -> bool:
        """Whether the configuration caused it: it would happen again, so a search learns by it."""
        return self in (Outcome.OOM, Outcome.TIMEOUT, Outcome.NONFINITE, Outcome.INVALID)

    @cached_property
    def is_platform_fault(self) -> bool:
        """Whether the machine caused it: the same candidate deserves another try."""
        return self in (Outcome.COMM, Outcome.LAUNCH, Outcome.CRASH, Outcome.LOST)


class Role(StrEnum):
    """Why a trial was run."""

    BASELINE = "baseline"
    SEARCH = "search"
    CONFIRM = "confirm"
    SOAK = "soak"
    """Trains for minutes instead of seconds, with a checkpoint on the way; no part of a search."""


class Origin(StrEnum):
    """Where a trial's figures come from."""

    MEASURED = "measured"
    """From ranks that trained."""
    REPLAYED = "replayed"
    """From a table of runs that were measured elsewhere; nothing ran."""
    SIMULATED = "simulated"
    """From the analytic model, with noise; nothing ran."""


class Start(StrEnum):
    """How the ranks of a trial start."""

    COLD = "cold"
    """Each rank a Python of its own: the reference."""
    WARM = "warm"
    """Forked from a process that has imported what they need, where the fleet can."""


class Phase(StrEnum):
    """The phases of a trial, in order; each rank records how many seconds it spent in each."""

    SPAWN = "spawn"
    IMPORT = "import"
    PROCESS_GROUP = "process_group"
    MODEL = "model"
    ENGINE_INIT = "engine_init"
    WARM_UP = "warm_up"
    MEASURED = "measured"
    DIAGNOSE = "diagnose"
    """A few steps more, watched closely; whatever happens in them, the trial has its figure."""
    TEARDOWN = "teardown"


LIST_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF",)
"""Environment variables that hold a list of settings: what the user has in them comes first."""
