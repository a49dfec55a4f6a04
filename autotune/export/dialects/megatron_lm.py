"""The dialect of Megatron-LM: a layout as the flags of its pretrain scripts, and a README."""

from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Templates
from autotune.contract import settings_of
from autotune.cost.plans import Recompute
from autotune.engines.megatron.engine import PADDED_TO, task_of
from autotune.engines.megatron.knobs import columns_of
from autotune.engines.megatron.rules import Rows
from autotune.export.base import Dialect, Handout, Launch
from autotune.job.job import Job


class MegatronArguments(Dialect):
    """For Megatron-LM's pretrain scripts: a file of flags to source, with nothing to start."""

    engines = ("megatron",)

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        values = _values(handout)
        return {
            **handout.files,
            "megatron_args.sh": templates.text("megatron/megatron_args.sh.j2", values),
            "README.md": templates.text("megatron/README.md.j2", values),
        }


def arguments(row: Mapping[str, int], job: Job) -> list[list[str]]:
    """The flags of a layout, each with its value.

    Source: NVIDIA/Megatron-LM, megatron/training/arguments.py of Megatron Core 0.12, and from 0.16
    on the fields of its configuration classes, which keep the names.
    """
    found = [
        ["--tensor-model-parallel-size", str(row["tp"])],
        ["--pipeline-model-parallel-size", str(row["pp"])],
        ["--context-parallel-size", str(row["cp"])],
        ["--expert-model-parallel-size", str(row["ep"])],
        ["--micro-batch-size", str(row["micro_batch"])],
        ["--global-batch-size", str(job.global_batch)],
        ["--seq-length", str(job.seq_len)],
    ]
    if row["vp"] > 1:
        found.append(["--num-virtual-stages-per-pipeline-rank", str(row["vp"])])
    if row["ends_as_layers"]:
        found.append(["--account-for-embedding-in-pipeline-split"])
        found.append(["--account-for-loss-in-pipeline-split"])
    if row["sequence_parallel"]:
        found.append(["--sequence-parallel"])
    found += _recompute(row)
    found.append(["--overlap-grad-reduce"])
    if row["distributed_optimizer"]:
        found += [["--use-distributed-optimizer"], ["--overlap-param-gather"]]
    if job.model.shape.n_experts > 1:
        # What the cost model counts; the default gathers all tokens instead.
        found.append(["--moe-token-dispatcher-type", "alltoall"])
    if job.precision != "fp32":
        found.append([f"--{job.precision}"])
    return found


def _recompute(row: Mapping[str, int]) -> list[list[str]]:
    if row["recompute"] == Recompute.SELECTIVE:
        return [["--recompute-granularity", "selective"]]
    if row["recompute"] != Recompute.FULL:
        return []
    method = "block" if row["recompute_layers"] else "uniform"
    return [
        ["--recompute-granularity", "full"],
        ["--recompute-method", method],
        ["--recompute-num-layers", str(row["recompute_layers"] or 1)],
    ]


def _values(handout: Handout) -> dict[str, Any]:
    """Values for the templates."""
    job, task = handout.job, task_of(handout.job, handout.environment)
    row = Rows(task=task, columns=columns_of(task, [handout.candidate])).row(0)
    fused = task.fused_attention
    return {
        **settings_of(handout.workload, handout.layout),
        **handout.settings,
        **row,
        "device": handout.environment.device_name,
        "arguments": arguments(row, job),
        "variables": sorted(handout.variables.items()),
        "attention": "a fused attention kernel" if fused else "attention that writes its scores",
        "padded_to": PADDED_TO,
        "has_experts": task.n_experts > 1,
    }
