"""The sampler `grid`: every candidate of the lattice once, in an order that the seed shuffles."""

import numpy as np

from autotune.search.sampler import Request, Sampler
from autotune.space.candidate import Candidate


class Grid(Sampler):
    """Walks the lattice; the record is the only state."""

    is_exhaustive = True

    def propose(self, request: Request) -> Candidate | None:
        """The first candidate of the walk that is open and legal."""
        lattice = request.lattice
        for place in np.random.default_rng(request.seed).permutation(len(lattice.candidates)):
            candidate = lattice.candidates[int(place)]
            if candidate.hash not in request.closed and lattice.is_legal(int(place)):
                return candidate
        return None
