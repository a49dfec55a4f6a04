"""Single ranks of a layout, each trained alone on this machine, to see what they allocate."""

import dataclasses
from collections.abc import Mapping, Sequence

from autotune.base.child_process import ask
from autotune.base.errors import JobError
from autotune.base.flags import flag, switch
from autotune.contract import settings_of
from autotune.engines.base import RankMemory
from autotune.engines.megatron.arguments import ON_CPU, SCRIPT_ON_CPU, arguments_of
from autotune.engines.megatron.flags import flags, known_release, release_of, releases
from autotune.engines.megatron.knobs import rows_of
from autotune.engines.megatron.layout_task import LayoutTask
from autotune.engines.megatron.rules import RULES
from autotune.job.job import Job
from autotune.space.candidate import Candidate, layout_of
from autotune.space.rule import judge_by
from autotune.space.workload import workload_of
from autotune.trial.engines.megatron import words_of

FLAG = "--fake-process-group"
_WITHOUT_GLOO = "--disable-gloo-process-groups"
_TIMEOUT_S = 1200.0


def probe_ranks(candidate: Candidate, *, task: LayoutTask, job: Job) -> Sequence[RankMemory]:
    """Train the first, a middle and the last rank of a layout for a step, each by itself.

    Raises:
        JobError: The layout is illegal or needs a GPU, the checkout has no fake process group, or
            a rank fails.
    """
    here = dataclasses.replace(
        task, on_cpu=True, without_te=False, has_torch_norms=False, fused_attention=False
    )
    rows = rows_of(here, [candidate])
    if broken := judge_by(RULES, rows):
        raise JobError(
            f"{switch('probe_memory')}: {broken[0].rule}: {broken[0].message}",
            f"{broken[0].fix}; a probed rank trains on this machine's CPU",
        )
    row = rows.row(0)
    arguments = {**arguments_of(row, job, layers=candidate.layers), **ON_CPU}
    arguments["global_batch_size"] = micro_batches(row) * candidate.micro_batch * candidate.dp
    workload = workload_of(job, candidate)
    words: list[str] = []
    if job.megatron_path is not None:
        release = known_release(release_of(job.megatron_path), where="megatron_path")
        arguments |= SCRIPT_ON_CPU
        words = [*words_of({**arguments, "train_iters": 2}), *workload.arguments]
        words += _words_of_fakes(release)
    settings = settings_of(workload, layout_of(candidate, "cpu"))
    found = ask(
        "autotune.engines.megatron.probe",
        {
            "ranks": ranks_of(row, candidate.world),
            "world": candidate.world,
            "arguments": arguments,
            "settings": settings,
            "script": workload.script,
            "words": words,
        },
        about=switch("probe_memory"),
        doing="training single ranks on the CPU",
        timeout_s=_TIMEOUT_S,
        if_slow=f"give a shorter {flag('seq_len')}: weights, gradients and optimizer states "
        "stay the same",
        if_dead="see whether a search on CPU ranks starts: autotune doctor",
    )
    return [RankMemory(**rank) for rank in found["ranks"]]


def ranks_of(row: Mapping[str, int], world: int) -> list[int]:
    """The first rank of the first and the middle stage, and the last replica's of the last.

    Each is the first of its tensor parallel ranks: that one has the samples, and sends them.
    """
    per_stage = row["tp"] * row["cp"] if row["order"] else world // row["pp"]
    return sorted({0, row["pp"] // 2 * per_stage, world - row["tp"] * row["cp"]})


def micro_batches(row: Mapping[str, int]) -> int:
    """Micro-batches of the step: no more than it takes to fill the pipeline."""
    return min(row["grad_accum"], 2 * row["pp"])


def _words_of_fakes(release: str) -> list[str]:
    known = flags(release)
    if FLAG not in known:
        releases_with_it = ", ".join(version for version in releases() if FLAG in flags(version))
        raise JobError(
            f"{switch('probe_memory')}: Megatron Core {release} has no {FLAG}",
            f"name a checkout of {releases_with_it}, or leave {flag('megatron_path')} out",
        )
    return [FLAG, *([_WITHOUT_GLOO] if _WITHOUT_GLOO in known else [])]
