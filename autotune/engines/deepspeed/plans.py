"""Candidates of a job under DeepSpeed, as the columns of `Plans`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.plans import Column, Plans, Recompute, Tier
from autotune.cost.problem import fleet_columns, model_columns, unseen_model_columns
from autotune.cost.traits import FRAMEWORKS
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.space.candidate import Candidate

K = TypeVar("K")

_TIERS = {"none": Tier.DEVICE, "cpu": Tier.CPU, "nvme": Tier.NVME}
_EVERY = "every_"
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
_MOMENTS = {
    "adam": 2,
    "adamw": 2,
    "fusedadam": 2,
    "deepspeedcpuadam": 2,
    "lamb": 2,
    "lion": 1,
    "adagrad": 1,
    "muon": 1,
    "sgd": 0,
}
"""Values that an optimizer keeps per parameter, beside the master copy; SGD without momentum."""
PREDICTED = (
    *("zero.stage", "tp", "pp", "sp", "ep", "micro_batch", "recompute"),
    *("offload.optimizer", "offload.param", "attention", "compile", "loss_chunk_tokens"),
    "host_allocator",
    *("zeropp.quantized_weights", "zeropp.hpz_partition_size", "overlap_comm"),
    *("grad_accum_dtype", "communication_dtype", "master_dtype", "optimizer_states_dtype"),
)
"""Knobs whose values the cost model tells apart by more than its error."""
_ENGINE = next(traits.columns for traits in FRAMEWORKS if traits.name == "deepspeed")
_COMPILED = {"fused_kernels": 0.7, "launch_free": 0.5}
"""Columns as of torchtitan's compiled blocks: fused but for what breaks the graph."""
_ACTIVATION_COPIES = {"gelu_new": 3.0, "gelu_fast": 6.0, "quick_gelu": 1.0, "relu2": 1.0}
"""Intermediate results that a function's backward pass needs, beside its input and its result.
Source: transformers, activations.py; torch, tools/autograd/derivatives.yaml, for what steps keep.
"""


def plans_of(
    candidates: Sequence[Candidate],
    job: Job,
    environment: Environment,
    *,
    accelerators: Sequence[Accelerator] | None = None,
    needs_shape: bool = True,
) -> Plans:
    """The candidates in columns, in their order.

    A knob that does not act is at the value that changes nothing. The model knows nothing of the
    ratio of offload, ZenFlow, allocators of GPUs and binding to cores: candidates that differ in
    these alone look alike.

    Args:
        candidates: At least one; legal ones of the job, or reduced forms of such.
        job: What is trained.
        environment: Where. Its accelerators are one node's.
        accelerators: The table to look its device up in; the shipped one by default.
        needs_shape: Whether the model's sizes are read; a trace does without.

    Raises:
        FleetError: The accelerator is in no table.
        JobError: The model's sizes cannot be seen (a factory's), or there is no candidate.
    """
    if not candidates:
        raise JobError("no candidates to predict", "give at least one")
    stages = _column(candidates, lambda c: _number(c, "zero.stage", 0))
    table = accelerators or shipped_accelerators()
    columns = {
        **_ENGINE,
        **(
            _alike(candidates, lambda c: c.layers, lambda layers: model_columns(job, layers))
            if needs_shape
            else unseen_model_columns(job)
        ),
        **_alike(
            candidates,
            lambda c: c.world,
            lambda w: fleet_columns(job, environment, table, world=w),
        ),
        **_layout(candidates),
        **_dtypes(candidates, job, stages),
        **_kept(candidates),
        **_zero(candidates, stages),
        **_kernels(candidates, job),
    }
    return Plans(**columns)


def _alike(
    candidates: Sequence[Candidate],
    kind: Callable[[Candidate], K],
    columns: Callable[[K], Mapping[str, float]],
) -> dict[str, Column]:
    """Columns in which only reduced forms differ; plain numbers where all candidates are alike."""
    kinds = [kind(candidate) for candidate in candidates]
    of_kind = {each: columns(each) for each in set(kinds)}
    first = of_kind[kinds[0]]
    if len(of_kind) == 1:
        return dict(first)
    return {
        name: np.array([of_kind[each][name] for each in kinds], dtype=np.float64) for name in first
    }


def _layout(candidates: Sequence[Candidate]) -> dict[str, NDArray[np.float64]]:
    return {
        "dp": _column(candidates, lambda c: c.dp),
        "tp": _column(candidates, lambda c: c.tp),
        "pp": _column(candidates, lambda c: c.pp),
        "ulysses": _column(candidates, lambda c: c.sp),
        "ep": _column(candidates, lambda c: _number(c, "ep", 1)),
        "micro_batch": _column(candidates, lambda c: c.micro_batch),
        "grad_accum": _column(candidates, lambda c: c.grad_accum),
    }


def _dtypes(
    candidates: Sequence[Candidate], job: Job, stages: NDArray[np.float64]
) -> dict[str, Any]:
    """Bytes per parameter, as DeepSpeed holds them.

    Its ZeRO optimizers keep a flat fp32 copy of their partition, in fp32 training as well. Source:
    DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py (`single_partition_of_fp32_groups`,
    `fp32_partitioned_groups_flat`).
    """
    model_bytes = _BYTES[job.precision]

    def dtype_bytes(knob: str) -> NDArray[np.float64]:
        spelled = {**_BYTES, "model": model_bytes}
        return _column(candidates, lambda c: spelled[str(c.get(knob) or "model")])

    states = {"fp32": 4.0, "model": model_bytes}
    master = _column(candidates, lambda c: states[str(c.get("master_dtype") or "fp32")])
    moments = _column(candidates, lambda c: states[str(c.get("optimizer_states_dtype") or "fp32")])
    keeps_copy = (stages >= 1) | (model_bytes < 4)
    return {
        "weight_bytes": model_bytes,
        "activation_bytes": model_bytes,
        "gather_bytes": _column(
            candidates, lambda c: 1.0 if c.get("zeropp.quantized_weights") else model_bytes
        ),
        "grad_bytes": dtype_bytes("grad_accum_dtype"),
        "reduce_bytes": dtype_bytes("communication_dtype"),
        "optimizer_bytes": keeps_copy * master + _n_moments(job) * moments,
    }


def _n_moments(job: Job) -> int:
    kind = str(job.optimizer.get("type", "adamw")).lower()
    params = job.optimizer.get("params", {})
    if kind == "sgd" and isinstance(params, Mapping) and params.get("momentum"):
        return 1
    return _MOMENTS.get(kind, 2)


def _kept(candidates: Sequence[Candidate]) -> dict[str, NDArray[np.float64]]:
    """What is recomputed and offloaded.

    In a pipeline `every_K` recomputes all layers, K at once; the model takes it for full.
    """
    kinds = [str(c.get("recompute") or "none") for c in candidates]
    return {
        "recompute": np.array(
            [float(Recompute.NONE if kind == "none" else Recompute.FULL) for kind in kinds]
        ),
        "recompute_every": np.array(
            [
                float(kind.removeprefix(_EVERY)) if kind.startswith(_EVERY) and c.pp == 1 else 1.0
                for kind, c in zip(kinds, candidates, strict=True)
            ]
        ),
        "optimizer_tier": _tier(candidates, "offload.optimizer"),
        "param_tier": _tier(candidates, "offload.param"),
    }


def _tier(candidates: Sequence[Candidate], knob: str) -> NDArray[np.float64]:
    return _column(candidates, lambda c: _TIERS[str(c.get(knob) or "none")])


def _zero(
    candidates: Sequence[Candidate], stages: NDArray[np.float64]
) -> dict[str, NDArray[np.float64]]:
    overlaps = _column(candidates, lambda c: bool(c.get("overlap_comm", False)))
    return {
        "zero_stage": stages,
        "flat_buffers": ((stages == 1) | (stages == 2)) * 1.0,
        "overlap_reduce": overlaps,
        # Stage 3 prefetches whatever `overlap_comm` says; stages 1 and 2 gather at the step's end.
        "overlap_gather": (stages == 3) * 1.0,
        "reduces_every_micro_batch": (stages >= 2) * 1.0,
        "gather_group": _column(
            candidates, lambda c: _above_one(_number(c, "zeropp.hpz_partition_size", 1))
        ),
        "reduce_bucket_elements": _elements(candidates, "reduce_bucket_size", 5e8),
        "gather_bucket_elements": _elements(candidates, "allgather_bucket_size", 5e8),
        "prefetch_elements": _elements(candidates, "stage3.prefetch_bucket_size", 5e7),
        "live_elements": _elements(candidates, "stage3.max_live_parameters", 1e9),
        "persistent_elements": _column(
            candidates, lambda c: _number(c, "stage3.param_persistence_threshold", 1e5)
        ),
    }


def _elements(candidates: Sequence[Candidate], knob: str, otherwise: float) -> NDArray[np.float64]:
    return _column(candidates, lambda c: max(1.0, _number(c, knob, otherwise)))


def _above_one(size: float) -> float:
    """0 stands for the whole group."""
    return size if size > 1 else 0.0


def _kernels(candidates: Sequence[Candidate], job: Job) -> dict[str, NDArray[np.float64]]:
    def compiled(name: str) -> NDArray[np.float64]:
        value = _COMPILED[name]
        return _column(candidates, lambda c: value if c.get("compile", "none") != "none" else 0.0)

    copies = _activation_copies(job.model.source.get("config") or {})
    return {
        # Our own pipeline's stages take torch's fused functions.
        "activation_copies": _column(candidates, lambda c: copies if c.pp == 1 else 0.0),
        "flash_attention": _column(candidates, lambda c: c.get("attention") != "eager"),
        "fused_kernels": compiled("fused_kernels"),
        "launch_free": compiled("launch_free"),
        # The knob acts on CPU ranks alone.
        "clears_pages": _column(candidates, lambda c: c.get("host_allocator") == "default"),
        "keeps_heap": _column(candidates, lambda c: c.get("host_allocator") == "keep"),
        "loss_chunk_tokens": _column(candidates, lambda c: _number(c, "loss_chunk_tokens", 0)),
    }


def _activation_copies(config: Mapping[str, Any]) -> float:
    name = config.get("hidden_act")
    if config.get("model_type") == "gpt2":
        name = config.get("activation_function", "gelu_new")  # transformers' own default
    return _ACTIVATION_COPIES.get(str(name), 0.0)


def _number(candidate: Candidate, knob: str, otherwise: float) -> float:
    value: KnobValue | None = candidate.get(knob)
    return otherwise if value is None else float(value)


def _column(
    candidates: Sequence[Candidate], value: Callable[[Candidate], float]
) -> NDArray[np.float64]:
    return np.array([value(candidate) for candidate in candidates], dtype=np.float64)
