"""A sampler that walks the lattice from its last candidate to its first."""

from autotune.search.sampler import Request, Sampler
from autotune.space.candidate import Candidate


class Backwards(Sampler):
    """Tries every candidate once, the last one first."""

    is_exhaustive = True

    def propose(self, request: Request) -> Candidate | None:
        """The last candidate that is open."""
        candidates = reversed(request.lattice.candidates)
        return next((c for c in candidates if c.hash not in request.closed), None)
