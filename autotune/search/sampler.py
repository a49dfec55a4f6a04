"""The base of samplers, and what a search hands to one when it asks for the next candidate.

A sampler is a class of one file, offered under the entry-point group `autotune.samplers` and
chosen by its name there: `--sampler NAME`.
"""

from abc import ABC, abstractmethod
from collections.abc import Set
from dataclasses import dataclass

from autotune.planning.lattice import Lattice
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.search.steering import Steering
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """The state of a search that asks for its next candidate: all that a sampler may go by."""

    lattice: Lattice
    """The legal candidates."""
    history: History
    """Trials so far."""
    objective: Objective
    """Objective of the search."""
    closed: Set[str]
    """Hashes of candidates that need no further trial."""
    n_budget: int
    """Trials of the whole search."""
    seed: int
    """The job's seed."""
    steering: Steering | None = None
    """Predicts what trials will measure; None: nothing can be predicted."""


class Sampler(ABC):
    """Proposes the next candidate of a search. It keeps no state: the record is the only one."""

    is_exhaustive: bool = False
    """Whether a search that names no number of trials goes on until every candidate was tried."""
    goes_by_forecast: bool = False
    """Whether it follows the forecast where there is one, so that reduced trials teach it."""

    @abstractmethod
    def propose(self, request: Request) -> Candidate | None:
        """The candidate to try next; the same request gives the same one.

        Returns:
            A candidate of the lattice that is not closed; None if every one is closed.
        """
