"""Asks for a candidate's step to be traced, or refuses one whose ranks hold something else."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autotune.base.child_process import ask
from autotune.base.errors import JobError
from autotune.base.flags import switch
from autotune.base.plugins import load_plugin
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.tracing.moments import Traced

_TIMEOUT_S = 600.0
_CUDA_GRANULE_BYTES = 512
"""Torch's allocator rounds up to a multiple of it. Source: torch, c10/cuda/CUDACachingAllocator.h,
`kMinBlockSize`."""
_SPLITS = {
    "tp": "each rank would hold a part of every layer",
    "pp": "each rank would hold some of the layers, and several micro-batches at once",
    "sp": "each rank would hold a part of every sample",
    "ep": "each rank would hold some of the experts",
}
"""Knobs above 1 with which no rank runs the model as it is."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """Result of a trace, and its method."""

    traced: Traced
    took_s: float
    notes: tuple[str, ...]
    """Where a trial may hold something else."""


def trace_candidate(job: Job, candidate: Candidate, *, accelerator: str) -> Trace:
    """Trace one training step of a candidate, as one of its ranks would run it on `cpu` or `cuda`.

    Raises:
        JobError: Its ranks do not run the model as it is, or its code cannot run on fake tensors.
    """
    for knob, why in _SPLITS.items():
        if (value := int(candidate.get(knob, 1) or 1)) > 1:
            raise JobError(
                f"{switch('trace')}: {knob}={value}: a trace is of the whole model, and {why}",
                f"trace {knob}=1, with any zero.stage and offload; or leave out {switch('trace')}",
            )
    if job.lengths.kind == "histogram":
        raise JobError(
            f"{switch('trace')}: lengths: a trace is of samples of seq_len tokens, not of a "
            "histogram",
            "leave out `lengths` for batches of the longest samples, or leave out "
            f"{switch('trace')}",
        )
    found = ask(
        module="autotune.tracing.child",
        request=_request(job, candidate, accelerator),
        about=f"{switch('trace')}: model {job.model.name!r}",
        doing="tracing its step",
        timeout_s=_TIMEOUT_S,
        if_slow="all layers are traced: trace a shallower model",
        if_dead="run its forward pass in a Python shell to see why",
    )
    return Trace(
        traced=Traced.from_dict(found),
        took_s=found["took_s"],
        notes=tuple(_notes(candidate, accelerator)),
    )


def _request(job: Job, candidate: Candidate, accelerator: str) -> dict[str, Any]:
    is_cuda = accelerator == "cuda"
    return {
        "source": job.model.source,
        "seq_len": job.seq_len,
        "micro_batch": candidate.micro_batch,
        "precision": job.precision,
        "attention": str(candidate.get("attention", "default")),
        "recompute": str(candidate.get("recompute", "none")),
        "loss_chunk_tokens": int(candidate.get("loss_chunk_tokens", 0) or 0),
        "mlp_chunk_tokens": int(candidate.get("mlp_chunk_tokens", 0) or 0),
        "gradients": _gradients(job, candidate),
        "granule_bytes": _CUDA_GRANULE_BYTES if is_cuda else 1,
        "has_fused_dropout": is_cuda,
    }


def _gradients(job: Job, candidate: Candidate) -> str:
    if load_plugin("engine", job.engine).takes_gradients(candidate.values):
        return "taken"
    return "kept" if candidate.grad_accum > 1 else "grow"


def _notes(candidate: Candidate, accelerator: str) -> Iterator[str]:
    if candidate.get("compile", "none") != "none":
        yield "traced uncompiled: a compiled model fuses kernels, and keeps less or other tensors"
    if accelerator != "cpu":
        yield "traced with torch's CPU kernels: memory inside a GPU's kernels is not seen"
