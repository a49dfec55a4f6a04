"""What the rules say of many candidates: how many violations of which rule each has."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

MOST_ONE_BY_ONE = 200_000
"""More candidates than this are not judged one by one: it would take minutes."""

Counts = NDArray[np.int16]
Judge = Callable[[Candidate], Sequence[Violation]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdicts:
    """Violations of candidates, in their order."""

    n: int
    """Candidates."""
    broken: Mapping[str, Counts]
    """Rule -> by candidate how many violations of it there are; only rules that one breaks."""

    @property
    def total(self) -> Counts:
        """Violations of each candidate."""
        total = np.zeros(self.n, np.int16)
        for counts in self.broken.values():
            total += counts
        return total


def judge_each(candidates: Sequence[Candidate], judge: Judge) -> Verdicts:
    """Judge candidates one by one.

    Raises:
        JobError: They are more than `MOST_ONE_BY_ONE`.
    """
    n = len(candidates)
    if n > MOST_ONE_BY_ONE:
        raise JobError(
            f"{n} candidates to be judged one by one, more than {MOST_ONE_BY_ONE}",
            "list fewer values, or tie a knob to others with `when`; templates of the job's own "
            "and rules about keys that the engine's release lacks cannot be judged in columns",
        )
    broken: dict[str, Counts] = {}
    for index in range(n):
        for rule, count in Counter(v.rule for v in judge(candidates[index])).items():
            broken.setdefault(rule, np.zeros(n, np.int16))[index] = count
    return Verdicts(n=n, broken=broken)
