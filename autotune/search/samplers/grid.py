"""The sampler `grid`: every candidate of the lattice once, in an order that is balanced early.

Optuna's GridSampler and BruteForceSampler walk products of values and keep the place in a study;
a lattice is a product with holes, and the record is the only state. So the next candidate follows
from the record alone.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.contract import KnobValue
from autotune.search.sampler import Request, Sampler
from autotune.space.candidate import Candidate


class Grid(Sampler):
    """Walks the lattice; cut short, it has seen every value about equally often."""

    is_exhaustive = True

    def propose(self, request: Request) -> Candidate | None:
        """The open candidate whose values were tried least often so far."""
        candidates = request.lattice.candidates
        tried = {t.candidate.hash for t in request.history.tried}
        is_tried = np.array([c.hash in tried for c in candidates])
        is_open = np.array([c.hash not in request.closed for c in candidates])
        columns = {name: [c.get(name) for c in candidates] for name in request.lattice.values}
        while is_open.any():
            place = least_used(columns, is_tried, is_open, seed=request.seed)
            if request.lattice.is_legal(place):
                return candidates[place]
            is_open[place] = False
        return None


def least_used(
    columns: Mapping[str, Sequence[KnobValue | None]],
    is_tried: NDArray[np.bool_],
    is_open: NDArray[np.bool_],
    *,
    seed: int,
) -> int:
    """Which open candidate has the values that were tried least often; the seed orders equals.

    A knob's column has its value in every candidate, None where it does not act.
    """
    usage = np.where(is_open, _usage(columns, is_tried), np.inf)
    ties = np.flatnonzero(usage <= usage.min() + 1e-9)
    place = np.random.default_rng(seed).permutation(len(is_open))
    return int(ties[np.argmin(place[ties])])


def _usage(
    columns: Mapping[str, Sequence[KnobValue | None]], is_tried: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """How often a candidate's values were tried, over their fair share; the mean of its knobs.

    A value's fair share is that of the trials in which its knob acts, divided by the number of
    its values: 1 means that it had its turn, 0 that it was never tried.
    """
    total = np.zeros(len(is_tried))
    n_acting = np.zeros(len(is_tried))
    for column in columns.values():
        acts = np.array([value is not None for value in column])
        n_tried = max(1, int((acts & is_tried).sum()))
        values = {value for value in column if value is not None}
        for value in values:
            has = np.array([entry == value for entry in column])
            total += has * ((has & is_tried).sum() * len(values) / n_tried)
        n_acting += acts
    return total / np.maximum(1, n_acting)
