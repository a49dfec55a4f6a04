"""The best of another job on the same fleet: with more ranks, another batch, space or engine."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.base.errors import AutotuneError
from autotune.cost import Prediction
from autotune.job.job import Job
from autotune.planning.choices import ordered
from autotune.planning.lattice import Lattice, lattice_of
from autotune.planning.outlook import Outlook
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True, eq=False)
class OtherJob:
    """A change of the job or the fleet, and the best candidate there."""

    flags: str
    """What asks for it, such as `--world 64`."""
    outlook: Outlook
    """The job and the fleet after the change."""
    candidate: Candidate
    step_time_s: float
    fit_probability: float

    @classmethod
    def of_row(
        cls, flags: str, outlook: Outlook, candidate: Candidate, found: Prediction, row: int
    ) -> Self:
        """The change whose best candidate has a row of a prediction."""
        return cls(
            flags=flags,
            outlook=outlook,
            candidate=candidate,
            step_time_s=float(found.step_time_s[row]),
            fit_probability=float(found.fit_probability[row]),
        )

    @property
    def described(self) -> str:
        return self.outlook.engine.describe(self.candidate)

    def speedup(self, job: Job, step_time_s: float) -> float:
        """Tokens/s over those of a job whose step takes so long."""
        there = self.outlook.job
        n_tokens = there.seq_len * there.global_batch / (job.seq_len * job.global_batch)
        return n_tokens * step_time_s / self.step_time_s

    @property
    def has_files(self) -> bool:
        """Whether the engine can build the model and write the candidate's files."""
        try:
            self.outlook.engine.files(self.candidate)
        except AutotuneError:
            return False
        return True


def rank_other_job(
    outlook: Outlook,
    flags: str,
    changes: Mapping[str, Any],
    *,
    min_fit: float,
    lattice: Callable[[Outlook], Lattice] = lambda there: lattice_of(there.engine),
) -> OtherJob | None:
    """The first row where the job is changed; None: the rules refuse everything there.

    Args:
        outlook: The job as it is.
        flags: What asks for the change.
        changes: Fields of the job, and their values there.
        min_fit: Probability to fit from which on a candidate surely does.
        lattice: Makes the candidates that are ranked there; all, by default.
    """
    there = dataclasses.replace(outlook, job=dataclasses.replace(outlook.job, **changes))
    try:
        there = dataclasses.replace(there, lattice=lattice(there))
        found = there.predict(there.lattice.candidates)
    except AutotuneError:
        return None
    setbacks = there.setbacks(there.lattice.candidates)
    first = there.lattice.first_legal(ordered(found, setbacks, min_fit=min_fit))
    if first is None:
        return None
    return OtherJob.of_row(flags, there, there.lattice.candidates[first], found, first)
