"""The built-in workload: the job's model with random weights on random tokens."""

import hashlib
from functools import cache
from importlib import resources

from autotune.contract import KnobValue, Workload
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.workload import WorkloadPlugin

SCRIPT_FILES = ("train.py", "lengths.py", "transformer.py")
"""Its training script and what that imports, in `autotune.trial.scripts`."""

NEUTRAL: dict[str, KnobValue] = {
    "recompute": "none",
    "attention": "default",
    "loss_chunk_tokens": 0,
    "compile": "none",
    "mlp_chunk_tokens": 0,
    "offload.activations": "none",
}
"""Settings of its script, at the values that change nothing."""


class BuiltIn(WorkloadPlugin):
    """A trial runs the script, and an export carries it as it is."""

    applies = dict.fromkeys((*NEUTRAL, "pp", "sp"), "code")

    def workload(self, job: Job, candidate: Candidate) -> Workload:
        return Workload(
            model=job.model_with(candidate.layers).source,
            seq_len=job.seq_len,
            precision=candidate.precision(job.precision),
            lengths=job.lengths.as_spec(),
            seed=job.seed,
            settings={name: candidate.values.get(name, value) for name, value in NEUTRAL.items()},
            digest=script_digest(),
        )


@cache
def script_digest() -> str:
    """A hash of the training script and of what it imports: 12 hex digits."""
    folder = resources.files("autotune.trial.scripts")
    texts = [(folder / name).read_bytes() for name in SCRIPT_FILES]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()[:12]
