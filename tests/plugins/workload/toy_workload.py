"""A workload whose script trains the job's model by itself, and brings no knob into force."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from autotune.contract import Workload
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.workload import Way, WorkloadPlugin

SCRIPT = Path(__file__).with_name("toy_workload_script.py")


class Short(WorkloadPlugin):
    applies: ClassVar[Mapping[str, Way]] = {}

    def workload(self, job: Job, candidate: Candidate) -> Workload:
        return Workload(
            name="toy-short",
            model=job.model_with(candidate.layers).source,
            seq_len=job.seq_len,
            precision=job.precision,
            seed=job.seed,
            script=str(SCRIPT),
            arguments=["--tokens", str(job.seq_len)],
            digest=hashlib.sha256(SCRIPT.read_bytes()).hexdigest()[:12],
        )
