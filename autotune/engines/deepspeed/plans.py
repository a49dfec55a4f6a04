"""Candidates of a job under DeepSpeed, as the columns of `Plans`."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.plans import Column, Plans, Recompute, Tier
from autotune.cost.problem import fleet_columns, model_columns, unseen_model_columns
from autotune.cost.traits import FRAMEWORKS, GROWING_SEGMENTS
from autotune.devices.accelerators import Accelerator, shipped_accelerators
from autotune.devices.hardware import Environment
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rows import answers_of

K = TypeVar("K", bound=Hashable)
Floats = NDArray[np.float64]

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
    *("zero.stage", "tp", "pp", "sp", "ep", "ep.dispatch", "micro_batch", "recompute"),
    *("offload.optimizer", "offload.param", "attention", "compile", "loss_chunk_tokens"),
    *("mlp_chunk_tokens", "offload.activations", "tp.head"),
    *("allocator", "host_allocator", "precision"),
    *("zeropp.quantized_weights", "zeropp.hpz_partition_size", "overlap_comm"),
    *("grad_accum_dtype", "communication_dtype", "master_dtype", "optimizer_states_dtype"),
)
"""Knobs whose values the cost model tells apart by more than its error."""
_ENGINE = next(traits.columns for traits in FRAMEWORKS if traits.name == "deepspeed")
_COMPILED = {"fused_kernels": 0.7, "launch_free": 0.5}
"""Columns as of torchtitan's compiled blocks: fused but for what breaks the graph."""
_COMPILED_LOGIT_BYTES = {"fp32": 8.0}
"""Held per logit at the peak where torch compiles the loss with the model: a logit and its
gradient. In 16 bits 4; two trials in results/recorded/gpu/h100-1b-search.csv hold 4.2 and 4.9.
Nobody has measured DeepCompile."""
_HAS_GROUPED_PRODUCTS = re.compile(r"\bG?[HB]\d{2,3}\b")
"""Names of devices of NVIDIA from Hopper on."""
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
    ratio of offload, ZenFlow and binding to cores: candidates that differ in
    these alone look alike. Arguments and errors are those of `Engine.plans`; the table of
    accelerators is the shipped one by default.
    """
    if not candidates:
        raise JobError("no candidates to predict", "give at least one")
    table = accelerators or shipped_accelerators()
    columns = {
        **_ENGINE,
        **(
            _alike(
                candidates,
                lambda c: (c.layers, c.get("attention")),
                lambda kind: _trained_columns(job, *kind),
            )
            if needs_shape
            else unseen_model_columns(job)
        ),
        **_alike(
            candidates,
            lambda c: (c.world, c.precision(job.precision)),
            lambda kind: fleet_columns(job, environment, table, world=kind[0], precision=kind[1]),
        ),
        **_lengths(candidates, job),
        **_layout(candidates, job, environment),
        **_dtypes(candidates, job),
        **_recompute_and_offload(candidates),
        **_zero(candidates),
        **_kernels(candidates, job),
        "whole_logits": _floats(candidates, lambda c: _gathers_logits(c, job, environment)),
    }
    return Plans(**columns)


def _gathers_logits(candidate: Candidate, job: Job, environment: Environment) -> float:
    """Whether tensor parallel ranks each have the logits of the whole vocabulary.

    AutoTP gathers the head's output, unless it is asked not to, or the head is the embedding.
    Source: DeepSpeed, runtime/engine.py, _apply_autotp_partitioning; module_inject/layers.py,
    LinearLayer.
    """
    head = candidate.get("tp.head")
    if head is None:
        return float(environment.accelerator == "cpu")
    is_split = head == "split" or (head == "default" and job.model.shape.tied_embeddings)
    return float(not is_split)


def _trained_columns(job: Job, layers: int | None, attention: object) -> dict[str, float]:
    """The columns of the model as transformers trains it.

    It builds no layers that predict further tokens. Windows save time in FlashAttention alone:
    torch's kernels are given them as a mask, and compute every score (masking_utils.py).
    """
    columns = {**model_columns(job, layers), "n_mtp_layers": 0.0}
    return columns if attention == "flash_attention_2" else {**columns, "n_windowed_layers": 0.0}


def _alike(
    candidates: Sequence[Candidate],
    kind_of: Callable[[Candidate], K],
    columns: Callable[[K], Mapping[str, float]],
) -> dict[str, Column]:
    """Columns in which only reduced forms differ; plain numbers where all candidates are alike."""
    kinds = answers_of(candidates, kind_of)
    of_kind = {kind: columns(kind) for kind in kinds.distinct}
    first = of_kind[kinds.distinct[0]]
    if len(of_kind) == 1:
        return dict(first)
    return {name: kinds.of(partial(_column, of_kind, name)) for name in first}


def _column(of_kind: Mapping[K, Mapping[str, float]], name: str, kind: K) -> float:
    return of_kind[kind][name]


def _floats(candidates: Sequence[Candidate], function: Callable[[Candidate], float]) -> Floats:
    return answers_of(candidates, function).of(float)


def _value(candidate: Candidate, knob: str, otherwise: KnobValue) -> KnobValue:
    """A knob's value; `otherwise` where it does not act."""
    value = candidate.get(knob)
    return otherwise if value is None else value


def _numbers(candidates: Sequence[Candidate], knob: str, otherwise: KnobValue) -> Floats:
    return _floats(candidates, lambda c: float(_value(c, knob, otherwise)))


def _spelled(
    candidates: Sequence[Candidate], knob: str, otherwise: str, meanings: Mapping[str, float]
) -> Floats:
    """Each candidate's choice as a number."""
    return _floats(candidates, lambda c: meanings[str(_value(c, knob, otherwise))])


def _lengths(candidates: Sequence[Candidate], job: Job) -> dict[str, Column]:
    """Columns of samples that differ in length; empty where all have `seq_len` tokens."""
    if job.lengths.kind != "histogram":
        return {}
    padded = partial(job.lengths.mean_padded, job.global_batch)
    return {
        "seq_len": float(job.lengths.longest_padded),
        "padded_seq_len": _floats(candidates, lambda candidate: padded(candidate.micro_batch)),
    }


def _layout(
    candidates: Sequence[Candidate], job: Job, environment: Environment
) -> dict[str, Floats]:
    # What the model computes grows with the rows that go through it.
    n_rows = (job.script.rows_per_sample or 1) if job.script is not None else 1
    return {
        "dp": _floats(candidates, lambda c: c.dp),
        "tp": _floats(candidates, lambda c: c.tp),
        "pp": _floats(candidates, lambda c: c.pp),
        "ulysses": _floats(candidates, lambda c: c.sp),
        **_experts(candidates, job, environment),
        "micro_batch": _floats(candidates, lambda c: c.micro_batch * n_rows),
        "grad_accum": _floats(candidates, lambda c: c.grad_accum),
    }


def _experts(
    candidates: Sequence[Candidate], job: Job, environment: Environment
) -> dict[str, Floats]:
    """Columns of AutoEP, and of transformers' own experts without it.

    Both call torch's grouped product, which is one kernel in bf16 from Hopper on; elsewhere it
    goes through the experts one by one. On older devices AutoEP takes a kernel of Triton. Source:
    transformers 5, integrations/moe.py (grouped_mm by default); torch, aten/src/ATen/native/cuda/
    GroupedBlas.cpp; DeepSpeed, moe/ep_experts.py.
    """
    ep = _numbers(candidates, "ep", 1)
    is_bf16 = _floats(candidates, lambda c: c.precision(job.precision) == "bf16")
    has_kernel = _HAS_GROUPED_PRODUCTS.search(environment.device_name) is not None
    is_cpu = environment.accelerator == "cpu"  # the host is the device: no launch is saved
    return {
        "ep": ep,
        # AutoTP splits no expert.
        "expert_tp": np.where(ep > 1, 1.0, 0.0),
        "grouped_experts": np.maximum(is_bf16 * np.where(ep > 1, 1.0, has_kernel), is_cpu),
        "flex_dispatch": _floats(candidates, lambda c: c.get("ep.dispatch") == "deepep"),
    }


def _dtypes(candidates: Sequence[Candidate], job: Job) -> dict[str, Any]:
    """Bytes per parameter, as DeepSpeed holds them.

    Its ZeRO optimizers keep a flat fp32 copy of their partition, in fp32 training as well. Source:
    DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py (`single_partition_of_fp32_groups`,
    `fp32_partitioned_groups_flat`).
    """
    precision_bytes = _floats(candidates, lambda c: _BYTES[c.precision(job.precision)])

    def spelled(knob: str, otherwise: str) -> Floats:
        chosen = _spelled(candidates, knob, otherwise, {**_BYTES, "model": 0.0})
        return np.where(chosen > 0, chosen, precision_bytes)

    master = spelled("master_dtype", "fp32")
    moments = spelled("optimizer_states_dtype", "fp32")
    keeps_copy = (_numbers(candidates, "zero.stage", 0) >= 1) | (precision_bytes < 4)
    is_quantized = _numbers(candidates, "zeropp.quantized_weights", False)
    return {
        "weight_bytes": precision_bytes,
        "activation_bytes": precision_bytes,
        "gather_bytes": np.where(is_quantized, 1.0, precision_bytes),
        "grad_bytes": spelled("grad_accum_dtype", "model"),
        "reduce_bytes": spelled("communication_dtype", "model"),
        "optimizer_bytes": keeps_copy * master + _n_moments(job) * moments,
    }


def _n_moments(job: Job) -> int:
    kind = str(job.optimizer.get("type", "adamw")).lower()
    params = job.optimizer.get("params", {})
    if kind == "sgd" and isinstance(params, Mapping) and params.get("momentum"):
        return 1
    return _MOMENTS.get(kind, 2)


def _recompute_and_offload(candidates: Sequence[Candidate]) -> dict[str, Floats]:
    """Columns of recomputation and offload.

    In a pipeline `every_K` recomputes all layers, K at once; the model takes it for full.
    """

    def every(candidate: Candidate) -> float:
        kind = str(_value(candidate, "recompute", "none"))
        is_apart = kind.startswith(_EVERY) and candidate.pp == 1
        return float(kind.removeprefix(_EVERY)) if is_apart else 1.0

    return {
        "recompute": _floats(
            candidates,
            lambda c: float(
                Recompute.NONE if _value(c, "recompute", "none") == "none" else Recompute.FULL
            ),
        ),
        "recompute_every": _floats(candidates, every),
        "optimizer_tier": _spelled(candidates, "offload.optimizer", "none", _TIERS),
        "param_tier": _spelled(candidates, "offload.param", "none", _TIERS),
        "offloaded_activations": _floats(
            candidates, lambda c: c.get("offload.activations") == "cpu"
        ),
    }


def _zero(candidates: Sequence[Candidate]) -> dict[str, Floats]:
    stages = _numbers(candidates, "zero.stage", 0)
    hpz = _numbers(candidates, "zeropp.hpz_partition_size", 1)

    def elements(knob: str, otherwise: int) -> Floats:
        return np.maximum(1.0, _numbers(candidates, knob, otherwise))

    return {
        "zero_stage": stages,
        "flat_buffers": ((stages == 1) | (stages == 2)) * 1.0,
        "overlap_reduce": _numbers(candidates, "overlap_comm", False),
        # Stage 3 prefetches whatever `overlap_comm` says; stages 1 and 2 gather at the step's end.
        "overlap_gather": (stages == 3) * 1.0,
        "reduces_every_micro_batch": (stages >= 2) * 1.0,
        "gather_group": np.where(hpz > 1, hpz, 0.0),  # 0 stands for the whole group
        "reduce_bucket_elements": elements("reduce_bucket_size", 500_000_000),
        # The BF16_Optimizer has no such bucket, and the knob does not act there.
        "copies_grads": _floats(
            candidates,
            lambda c: (
                c.get("reduce_bucket_size") is not None
                and bool(_value(c, "contiguous_gradients", True))
            ),
        ),
        "gather_bucket_elements": elements("allgather_bucket_size", 500_000_000),
        "prefetch_elements": elements("stage3.prefetch_bucket_size", 50_000_000),
        "reuse_elements": elements("stage3.max_reuse_distance", 1_000_000_000),
        "live_elements": elements("stage3.max_live_parameters", 1_000_000_000),
        "persistent_elements": _numbers(candidates, "stage3.param_persistence_threshold", 100_000),
    }


def _kernels(candidates: Sequence[Candidate], job: Job) -> dict[str, Floats]:
    copies = _activation_copies(job.model.source.get("config") or {})
    is_compiled = _floats(candidates, lambda c: _value(c, "compile", "none") != "none")
    return {
        **{name: is_compiled * value for name, value in _COMPILED.items()},
        "logit_bytes": _floats(candidates, lambda c: _logit_bytes(c, job)),
        "fragments": _floats(
            candidates,
            lambda c: GROWING_SEGMENTS if c.get("allocator") == "expandable_segments" else 1.0,
        ),
        # Our own pipeline's stages take torch's fused functions.
        "activation_copies": _floats(candidates, lambda c: copies if c.pp == 1 else 0.0),
        "flash_attention": _floats(candidates, lambda c: c.get("attention") != "eager"),
        # The knob acts on CPU ranks alone.
        "clears_pages": _floats(candidates, lambda c: c.get("host_allocator") == "default"),
        "keeps_heap": _floats(candidates, lambda c: c.get("host_allocator") == "keep"),
        "loss_chunk_tokens": _numbers(candidates, "loss_chunk_tokens", 0),
        "mlp_tile_tokens": _numbers(candidates, "mlp_chunk_tokens", 0),
    }


def _logit_bytes(candidate: Candidate, job: Job) -> float:
    if candidate.get("compile") != "torch":
        return float(Plans.logit_bytes)
    return _COMPILED_LOGIT_BYTES.get(candidate.precision(job.precision), 4.0)


def _activation_copies(config: Mapping[str, Any]) -> float:
    name = config.get("hidden_act")
    if config.get("model_type") == "gpt2":
        name = config.get("activation_function", "gelu_new")  # transformers' own default
    return _ACTIVATION_COPIES.get(str(name), 0.0)
