"""The ladder that a search climbs for its baseline, as a careful user of DeepSpeed would.

The lowest ZeRO stage without offload, tensor degree 1, every other knob at the engine's default,
and recomputation only where nothing runs without it.
"""

from collections.abc import Iterator

from autotune.contract import KnobValue
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical

STAGES = (0, 1, 2, 3)


def ladder(job: Job, context: Context) -> Iterator[list[Candidate]]:
    """Stage by stage, the power-of-two micro-batches; none where none divides the global batch."""
    share, rest = divmod(job.global_batch, job.world)
    sizes = [] if rest else [2**k for k in range(share.bit_length()) if share % 2**k == 0]
    for recompute in ("none", "full") if job.model.supports_recompute else ("none",):
        for stage in STAGES:
            if sizes:
                yield [_rung(job, context, stage, size, recompute) for size in sizes]


def _rung(job: Job, context: Context, stage: int, micro_batch: int, recompute: str) -> Candidate:
    """A candidate of the ladder: knobs that it does not choose are at the engine's defaults."""
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
