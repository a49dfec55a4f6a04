"""Whether another trial is worth its accelerator hours to the training that it is for."""

import math
from dataclasses import dataclass

from autotune.job.job import Job
from autotune.search.history import History
from autotune.search.objective import Objective
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class TrialBalance:
    """What another trial is expected to save and to cost, in accelerators times hours."""

    saved_hours: float
    """Infinite while nothing was measured."""
    cost_hours: float
    price_per_hour: float | None = None

    @property
    def pays(self) -> bool:
        """Whether it saves more than it costs."""
        return self.saved_hours >= self.cost_hours

    def __str__(self) -> str:
        return (
            f"another trial is expected to save {self._worded(self.saved_hours)} of the training "
            f"and costs {self._worded(self.cost_hours)}"
        )

    def _worded(self, hours: float) -> str:
        priced = "" if self.price_per_hour is None else f" ({hours * self.price_per_hour:.2g})"
        return f"{hours:.2g} GPU-hours{priced}"


def weigh_trial(
    expected_gain: float,
    history: History,
    objective: Objective,
    job: Job,
    *,
    baseline: Candidate | None,
) -> TrialBalance:
    """Weigh another trial.

    The training's hours are those at the baseline's speed; what was found since has made them
    fewer. Without a baseline they are those at the best speed so far.

    Args:
        expected_gain: What the trial is expected to take off the best step time, as a share.
        history: What was tried.
        objective: What is feasible.
        job: Names the training's hours.
        baseline: The candidate that the hours are meant for, if one ran.
    """
    assert job.budget.gpu_hours is not None, "asked for only where the job names the hours"
    rates = {t.candidate: f.samples_per_s for t in history.tried if (f := objective.figure(t))}
    cost_hours = job.world * (history.typical_s or 0.0) / 3600
    if not rates:
        return TrialBalance(
            saved_hours=math.inf, cost_hours=cost_hours, price_per_hour=job.price_per_hour
        )
    best = max(rates.values())
    left_share = rates.get(baseline, best) / best if baseline is not None else 1.0
    return TrialBalance(
        saved_hours=job.budget.gpu_hours * left_share * expected_gain,
        cost_hours=cost_hours,
        price_per_hour=job.price_per_hour,
    )
