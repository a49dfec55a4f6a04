"""One candidate, with what single ranks of it allocated on this machine."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.cost import predict
from autotune.cost.memory import Memory
from autotune.engines.base import RankMemory
from autotune.planning.explained import Estimated, estimate_candidate
from autotune.planning.outlook import Outlook


@dataclass(frozen=True, kw_only=True, eq=False)
class ProbedEstimate:
    """A candidate that is predicted, and of which single ranks ran alone."""

    predicted: Estimated
    states: Memory
    """Its memory as the cost model counts it: no trial corrects the size of a state."""
    ranks: Sequence[RankMemory]
    took_s: float


def probe_estimate(outlook: Outlook, settings: Sequence[str]) -> ProbedEstimate:
    """Predict one candidate, and train single ranks of it for a step; settings as of `explain`.

    Raises:
        JobError: A setting is not one, or the ranks cannot run alone.
    """
    predicted = estimate_candidate(outlook, settings)
    began_s = time.monotonic()
    ranks = outlook.engine.probe_memory(predicted.candidate)
    return ProbedEstimate(
        predicted=predicted,
        states=predict(outlook.plans([predicted.candidate])).memory,
        ranks=ranks,
        took_s=time.monotonic() - began_s,
    )
