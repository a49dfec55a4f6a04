"""The dialect of Megatron-LM: a layout as the flags of its pretrain scripts, and a README."""

from collections.abc import Mapping
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.cost.plans import Recompute
from autotune.engines.megatron.layouts import PADDED_TO
from autotune.export.base import Dialect, Handout, Launch
from autotune.job.job import Job

LAYOUT_FILE = "layout.json"


class MegatronArguments(Dialect):
    """For Megatron-LM's pretrain scripts: a file of flags to source, with nothing to start."""

    engines = ("megatron",)

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """The files of an export.

        Raises:
            RenderError: A template does not render.
        """
        knobs, values = handout.candidate.values, _values(handout)
        layout = {**knobs, "dp": handout.settings["dp"], **_job(handout.job)}
        return {
            LAYOUT_FILE: canonical_json(layout),
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


def _job(job: Job) -> dict[str, Any]:
    return {
        "model": job.model.name,
        "seq_len": job.seq_len,
        "global_batch": job.global_batch,
        "world": job.world,
        "precision": job.precision,
    }


def _values(handout: Handout) -> dict[str, Any]:
    """What the templates may use."""
    row, job = handout.settings, handout.job
    # Megatron refuses to start without it before Blackwell (megatron/training/arguments.py).
    orders = row["tp"] > 1 or row["cp"] > 1
    kernel = "a fused attention kernel"
    return {
        **row,
        **_job(job),
        "device": handout.environment.device_name,
        "arguments": arguments(row, job),
        "variables": [("CUDA_DEVICE_MAX_CONNECTIONS", "1")] if orders else [],
        "attention": kernel if row["fused_attention"] else "attention that writes its scores",
        "padded_to": PADDED_TO,
        "has_experts": job.model.shape.n_experts > 1,
    }
