"""What a candidate's trial trains: the job's model, with the knobs that the script applies."""

import hashlib
from functools import cache
from importlib import resources

from autotune.contract import KnobValue, Workload
from autotune.job.job import Job
from autotune.space.candidate import Candidate

SCRIPT_FILES = ("train.py", "lengths.py", "transformer.py")
"""The built-in training script and what it imports, in `autotune.trial.scripts`."""

_NEUTRAL: dict[str, KnobValue] = {
    "recompute": "none",
    "attention": "default",
    "loss_chunk_tokens": 0,
    "compile": "none",
}
"""Knobs that the built-in training script applies, at the values that change nothing."""


@cache
def built_in_digest() -> str:
    """A hash of the built-in training script and of what it imports: 12 hex digits."""
    folder = resources.files("autotune.trial.scripts")
    texts = [(folder / name).read_bytes() for name in SCRIPT_FILES]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]


def workload_of(job: Job, candidate: Candidate) -> Workload:
    """What a trial of a candidate trains, for the record, a soak and an export alike.

    Raises:
        JobError: The job's model is not one to leave layers out of, as the candidate asks.
    """
    return Workload(
        model=job.model_with(candidate.layers).source,
        seq_len=job.seq_len,
        precision=job.precision,
        lengths=job.lengths.as_spec(),
        seed=job.seed,
        settings={name: candidate.values.get(name, value) for name, value in _NEUTRAL.items()},
        digest=built_in_digest(),
    )
