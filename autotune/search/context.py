"""The context of a search: one value for the loop, its stages and everything they call."""

from dataclasses import dataclass, field
from functools import cached_property

from autotune.contract import Origin
from autotune.fleet.base import Fleet
from autotune.planning.lattice import Lattice
from autotune.search.base import Observer
from autotune.search.interrupt import Interrupt
from autotune.search.objective import Objective
from autotune.search.recorded import Task
from autotune.search.steering import Steering
from autotune.search.trial_spec import may_start_warm
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchContext(Task):
    """A job with everything that its search needs."""

    fleet: Fleet
    """Fleet on which trials run."""
    lattice: Lattice
    """The legal candidates."""
    observer: Observer
    """Observer that is shown what happens."""
    interrupt: Interrupt
    """Asks the search to drain or to end."""
    steering: Steering | None = None
    """Predicts what trials will measure, for samplers that go by it; None: nothing can be
    predicted."""
    no_comparison: str = ""
    """Why the best does not run again beside the baseline, in words; empty: it does."""
    origin: Origin = Origin.MEASURED
    """Origin of the figures."""
    notes: list[str] = field(default_factory=list)
    """Notes that were made so far."""
    _noted: set[str] = field(default_factory=set)

    @cached_property
    def objective(self) -> Objective:
        """Objective of the job, within the memory of the devices."""
        return Objective.of(self.job, self.environment)

    def note(self, text: str) -> None:
        """Keep a note, and hand it to the observer."""
        self.notes.append(text)
        self.observer.on_note(text)

    def note_once(self, of: str, text: str) -> None:
        """Note it unless something was noted of the same before."""
        if of not in self._noted:
            self._noted.add(of)
            self.note(text)

    def may_start_warm(self, candidate: Candidate | None) -> bool:
        """Whether a trial of a candidate may start warm; None is none."""
        if candidate is None:
            return False
        return may_start_warm(self.job, self.engine_of(candidate), candidate, self.environment)

    @property
    def capacity(self) -> int:
        """How many trials can run at once; the fleet may leave out slots meanwhile."""
        return self.fleet.capacity(self.job.world)
