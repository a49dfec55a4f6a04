"""The baseline: found on the ladder of the engine, in few trials."""

from collections.abc import Callable, Iterable, Sequence

from autotune.space.candidate import Candidate


def find_baseline(
    ladder: Iterable[Sequence[Candidate]], runs: Callable[[Candidate], bool]
) -> Candidate | None:
    """Climb a ladder, then bisect the rung that holds.

    On each rung the largest candidate comes first (one trial where it runs), then the smallest
    (one trial more to leave a rung that is hopeless), then bisection between them. With more
    answers it takes the same way again, so an interrupted climb resumes.

    Args:
        ladder: What `Engine.ladder` returns.
        runs: Whether a candidate runs within the limits; may raise to say that nobody knows yet.

    Returns:
        The baseline; None if nothing runs, or if there is no rung.
    """
    rungs = (_largest_that_runs(rung, runs) for rung in ladder)
    return next((found for found in rungs if found is not None), None)


def _largest_that_runs(
    steps: Sequence[Candidate], runs: Callable[[Candidate], bool]
) -> Candidate | None:
    if runs(steps[-1]):
        return steps[-1]
    if len(steps) == 1 or not runs(steps[0]):
        return None
    good, bad = 0, len(steps) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if runs(steps[middle]):
            good = middle
        else:
            bad = middle
    return steps[good]
