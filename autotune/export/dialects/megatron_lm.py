"""The dialect of Megatron-LM: a layout as the flags of its pretrain scripts, and a README."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.cost.plans import Recompute
from autotune.devices.hardware import Environment
from autotune.engines.megatron.layouts import PADDED_TO, Layouts
from autotune.export.export import write_export
from autotune.job.job import Job

NAME = "megatron"
LAYOUT_FILE = "layout.json"


def export_layout(
    layouts: Layouts,
    index: int,
    folder: Path,
    *,
    job: Job,
    environment: Environment,
    to: str | None = None,
) -> list[Path]:
    """Write a layout's files; those of an earlier export are replaced.

    Args:
        layouts: The lattice.
        index: Of the layout.
        folder: Where to; made if it is not there.
        job: What it was planned for.
        environment: The fleet.
        to: Name of the dialect; there is one.

    Raises:
        RenderError: There is no such dialect, a template does not render, or the folder cannot
            be written.
    """
    if to not in (None, NAME):
        raise RenderError(
            f"--to {to}: a Megatron layout is not written for that", f"leave it out, or {NAME}"
        )
    row = layouts.row(index)
    templates = Templates(job.templates)
    values = _values(layouts, row, job, environment)
    files = {
        LAYOUT_FILE: canonical_json({**layouts.knobs(index), "dp": row["dp"], **_job(job)}),
        "megatron_args.sh": templates.text("megatron/megatron_args.sh.j2", values),
        "README.md": templates.text("megatron/README.md.j2", values),
    }
    return write_export(folder, files, marker=LAYOUT_FILE)


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


def _job(job: Job) -> dict[str, Any]:
    return {
        "model": job.model.name,
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "world": job.world,
        "precision": job.precision,
    }


def _values(
    layouts: Layouts, row: Mapping[str, int], job: Job, environment: Environment
) -> dict[str, Any]:
    """What the templates may use."""
    fused = layouts.task.fused_attention
    # Megatron refuses to start without it before Blackwell (megatron/training/arguments.py).
    orders = row["tp"] > 1 or row["cp"] > 1
    return {
        **row,
        **_job(job),
        "device": environment.device_name,
        "arguments": arguments(row, job),
        "variables": [("CUDA_DEVICE_MAX_CONNECTIONS", "1")] if orders else [],
        "attention": "a fused attention kernel" if fused else "attention that writes its scores",
        "padded_to": PADDED_TO,
        "has_experts": layouts.task.n_experts > 1,
    }
