"""The baseline: what a careful user would start from, found with few trials.

The lowest ZeRO stage that runs without offload, tensor degree 1, every other knob at the engine's
default, the largest power-of-two micro-batch that runs there, and recomputation only if nothing
runs without it.
"""

from collections.abc import Callable

from autotune.contract import KnobValue
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical

STAGES = (0, 1, 2, 3)


def find_baseline(
    job: Job, context: Context, runs: Callable[[Candidate], bool]
) -> Candidate | None:
    """Climb the ladder of stages, then bisect the micro-batch where it holds.

    At each stage the largest micro-batch comes first (one trial where it runs), then the smallest
    (one trial more to leave a stage that is hopeless), then bisection over the powers of two.
    Asked again with more answers it takes the same way, so an interrupted climb resumes.

    Args:
        job: The job.
        context: Its shapes, and what the user's base configuration sets.
        runs: Whether a candidate runs within the limits; may raise to say that nobody knows yet.

    Returns:
        The baseline; None if nothing runs, or if no micro-batch divides the global batch.
    """
    micro_batches = powers_of_two(job)
    if not micro_batches:
        return None
    for recompute in ("none", "full") if job.model.supports_recompute else ("none",):
        for stage in STAGES:
            steps = [rung(job, context, stage, size, recompute) for size in micro_batches]
            found = _largest_that_runs(steps, runs)
            if found is not None:
                return found
    return None


def powers_of_two(job: Job) -> list[int]:
    """Micro-batches that divide each rank's share of the global batch exactly, at tp 1."""
    share, rest = divmod(job.global_batch, job.world)
    if rest:
        return []
    return [2**k for k in range(share.bit_length()) if share % 2**k == 0]


def rung(job: Job, context: Context, stage: int, micro_batch: int, recompute: str) -> Candidate:
    """A candidate of the ladder: what it does not choose is as the engine has it by default."""
    chosen: dict[str, KnobValue] = {
        "zero.stage": stage,
        "tp": 1,
        "sp": 1,
        "ep": 1,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "offload.optimizer": "none",
        "offload.param": "none",
    }
    return Candidate.of(canonical(chosen, context), world=job.world, global_batch=job.global_batch)


def _largest_that_runs(
    steps: list[Candidate], runs: Callable[[Candidate], bool]
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
