"""Candidates of a job under DeepSpeed, as the columns of `Plans`."""

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
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
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.situation import recompute_interval
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rows import answers_of

K = TypeVar("K", bound=Hashable)
Floats = NDArray[np.float64]

_TIERS = {"none": Tier.DEVICE, "cpu": Tier.CPU, "nvme": Tier.NVME}
_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
_MOMENTS = {
    **dict.fromkeys(("adam", "adamw", "fusedadam", "deepspeedcpuadam", "lamb"), 2),
    **{"lion": 1, "adagrad": 1, "muon": 1, "sgd": 0},
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
_FLEX_SPEED = 0.61
"""Attention of kernels that Triton compiles, beside FlashAttention-3's on an H100 with 4,096
tokens. Source: Shah et al., FlashAttention-3 (arXiv:2407.08608), figure 5b: 389 of 638 TFLOP/s."""
_HAS_GROUPED_PRODUCTS = re.compile(r"\bG?[HB]\d{2,3}\b")
"""Names of devices of NVIDIA from Hopper on."""
_ACTIVATION_COPIES = {"gelu_new": 3.0, "gelu_fast": 6.0, "quick_gelu": 1.0, "relu2": 1.0}
"""Intermediate results that a function's backward pass needs, beside its input and its result.
Source: transformers, activations.py; torch, tools/autograd/derivatives.yaml (what is kept)."""


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
    ratio of offload, ZenFlow and binding to cores: candidates that differ in these alone look
    alike. Arguments and errors are those of `Engine.plans`; the shipped table is the default.
    """
    if not candidates:
        raise JobError("no candidates to predict", "give at least one")
    table = accelerators or shipped_accelerators()
    rows = _Rows(candidates=candidates, job=job, environment=environment)
    model: Mapping[str, Column] = unseen_model_columns(job) if not needs_shape else {}
    if needs_shape:
        model = rows.alike(
            lambda c: (c.layers, _attention(c, job)), lambda kind: _trained_columns(job, *kind)
        )
    columns = {
        **_ENGINE,
        **_dtypes(rows),
        **model,
        **rows.alike(
            lambda c: (c.world, rows.precision(c)),
            lambda kind: fleet_columns(job, environment, table, world=kind[0], precision=kind[1]),
        ),
        **_lengths(rows),
        **_layout(rows),
        **_recompute_and_offload(rows),
        **_zero(rows),
        **_kernels(rows),
        "whole_logits": rows.of(lambda c: _gathers_logits(c, job, environment)),
    }
    return Plans(**columns)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The candidates of a job, as numbers by one of their knobs or several."""

    candidates: Sequence[Candidate]
    job: Job
    environment: Environment

    def precision(self, candidate: Candidate) -> str:
        return candidate.precision(self.job.precision)

    def of(self, function: Callable[[Candidate], float]) -> Floats:
        return answers_of(self.candidates, function).of(float)

    def number(self, knob: str) -> Floats:
        """A knob's value; its default where it does not act."""
        return self.of(lambda c: float(_value(c, knob)))

    def word(self, knob: str, meanings: Mapping[str, float]) -> Floats:
        """The meaning of a knob's value as a number."""
        return self.of(lambda c: meanings[str(_value(c, knob))])

    def alike(
        self, kind_of: Callable[[Candidate], K], columns: Callable[[K], Mapping[str, float]]
    ) -> dict[str, Column]:
        """Columns in which only reduced forms differ; plain numbers where all are alike."""
        kinds = answers_of(self.candidates, kind_of)
        of_kind = {kind: columns(kind) for kind in kinds.distinct}
        first = of_kind[kinds.distinct[0]]
        if len(of_kind) == 1:
            return dict(first)
        by_name = {name: {kind: row[name] for kind, row in of_kind.items()} for name in first}
        return {name: kinds.of(values.__getitem__) for name, values in by_name.items()}


def _value(candidate: Candidate, knob: str) -> KnobValue:
    """A knob's value; its default where it does not act."""
    return KNOBS[knob].default if (value := candidate.get(knob)) is None else value


def _gathers_logits(candidate: Candidate, job: Job, environment: Environment) -> float:
    """Whether tensor parallel ranks each have the logits of the whole vocabulary.

    AutoTP gathers the head's output, unless it is asked not to, or the head is the embedding.
    Source: DeepSpeed, runtime/engine.py, _apply_autotp_partitioning; module_inject/layers.py.
    """
    head = candidate.get("tp.head")
    if head is None:
        return float(environment.accelerator == "cpu")
    return float(head != "split" and not (head == "default" and job.model.shape.tied_embeddings))


def _attention(candidate: Candidate, job: Job) -> str:
    """The attention that a candidate runs, a script's own too; stages take torch's fused one."""
    found = "sdpa" if candidate.pp > 1 else str(_value(candidate, "attention"))
    if found == "default" and job.script is not None:
        found = str(job.script.measured.read_back.get("attention") or found)
    usual = "sdpa" if "sdpa" in job.model.attention else "eager"
    return usual if found == "default" else found


def _trained_columns(job: Job, layers: int | None, attention: str) -> dict[str, float]:
    """The columns of the model as transformers trains it.

    It builds no layers that predict further tokens. Windows save time in kernels such as
    FlashAttention: torch's are given them as a mask, and compute every score (masking_utils.py).
    """
    columns = {**model_columns(job, layers), "n_mtp_layers": 0.0}
    return columns | ({"n_windowed_layers": 0.0} if attention in ("eager", "sdpa") else {})


def _lengths(rows: _Rows) -> dict[str, Column]:
    """Columns of samples that differ in length; empty where all have `seq_len` tokens."""
    job = rows.job
    if job.lengths.kind != "histogram":
        return {}
    padded = partial(job.lengths.mean_padded, job.global_batch)
    return {
        "seq_len": float(job.lengths.longest_padded),
        "padded_seq_len": rows.of(lambda candidate: padded(candidate.micro_batch)),
    }


def _layout(rows: _Rows) -> dict[str, Floats]:
    # What the model computes grows with the rows that go through it.
    script = rows.job.script
    n_rows = (script.rows_per_sample or 1) if script is not None else 1
    return {
        "dp": rows.of(lambda c: c.dp),
        "tp": rows.of(lambda c: c.tp),
        "pp": rows.of(lambda c: c.pp),
        "ulysses": rows.of(lambda c: c.sp),
        **_experts(rows),
        "micro_batch": rows.of(lambda c: c.micro_batch * n_rows),
        "grad_accum": rows.of(lambda c: c.grad_accum),
    }


def _experts(rows: _Rows) -> dict[str, Floats]:
    """Columns of AutoEP, and of transformers' own experts without it.

    Both call torch's grouped product, which is one kernel in bf16 from Hopper on; elsewhere it
    goes through the experts one by one. On older devices AutoEP takes a kernel of Triton. Source:
    transformers 5, integrations/moe.py (grouped_mm by default); torch, aten/src/ATen/native/cuda/
    GroupedBlas.cpp; DeepSpeed, moe/ep_experts.py.
    """
    ep = rows.number("ep")
    is_bf16 = rows.of(lambda c: rows.precision(c) == "bf16")
    has_kernel = _HAS_GROUPED_PRODUCTS.search(rows.environment.device_name) is not None
    is_cpu = rows.environment.accelerator == "cpu"  # the host is the device: no launch is saved
    return {
        "ep": ep,
        # AutoTP splits no expert.
        "expert_tp": np.where(ep > 1, 1.0, 0.0),
        "grouped_experts": np.maximum(is_bf16 * np.where(ep > 1, 1.0, has_kernel), is_cpu),
        "flex_dispatch": rows.of(lambda c: c.get("ep.dispatch") == "deepep"),
    }


def _dtypes(rows: _Rows) -> dict[str, Any]:
    """Bytes per parameter, as DeepSpeed holds them.

    Its ZeRO optimizers keep a flat fp32 copy of their partition, in fp32 training as well. Source:
    DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py (`single_partition_of_fp32_groups`,
    `fp32_partitioned_groups_flat`).
    """
    precision_bytes = rows.of(lambda c: _BYTES[rows.precision(c)])

    def chosen(knob: str) -> Floats:
        found = rows.word(knob, {**_BYTES, "model": 0.0})
        return np.where(found > 0, found, precision_bytes)

    keeps_copy = (rows.number("zero.stage") >= 1) | (precision_bytes < 4)
    moments = _n_moments(rows.job) * chosen("optimizer_states_dtype")
    is_quantized = rows.number("zeropp.quantized_weights")
    return {
        "weight_bytes": precision_bytes,
        "activation_bytes": precision_bytes,
        "gather_bytes": np.where(is_quantized, 1.0, precision_bytes),
        "grad_bytes": chosen("grad_accum_dtype"),
        "reduce_bytes": chosen("communication_dtype"),
        "optimizer_bytes": keeps_copy * chosen("master_dtype") + moments,
    }


def _n_moments(job: Job) -> int:
    kind = str(job.optimizer.get("type", "adamw")).lower()
    params = job.optimizer.get("params", {})
    if kind == "sgd" and isinstance(params, Mapping) and params.get("momentum"):
        return 1
    return _MOMENTS.get(kind, 2)


def _recompute_and_offload(rows: _Rows) -> dict[str, Floats]:
    """Columns of recomputation and offload.

    In a pipeline `every_K` recomputes all layers, K at once; the model takes it for full.
    """

    def every(candidate: Candidate) -> float:
        interval = recompute_interval(_value(candidate, "recompute"))
        return float(max(1, interval)) if candidate.pp == 1 else 1.0

    def recompute(candidate: Candidate) -> float:
        is_none = _value(candidate, "recompute") == "none"
        return float(Recompute.NONE if is_none else Recompute.FULL)

    return {
        "recompute": rows.of(recompute),
        "recompute_every": rows.of(every),
        "optimizer_tier": rows.word("offload.optimizer", _TIERS),
        "param_tier": rows.word("offload.param", _TIERS),
        "offloaded_activations": rows.of(lambda c: c.get("offload.activations") == "cpu"),
    }


def _zero(rows: _Rows) -> dict[str, Floats]:
    stages, hpz = rows.number("zero.stage"), rows.number("zeropp.hpz_partition_size")

    def elements(knob: str) -> Floats:
        return np.maximum(1.0, rows.number(knob))

    return {
        "zero_stage": stages,
        "flat_buffers": ((stages == 1) | (stages == 2)) * 1.0,
        "overlap_reduce": rows.number("overlap_comm"),
        # Stage 3 prefetches whatever `overlap_comm` says; stages 1 and 2 gather at the step's end.
        "overlap_gather": (stages == 3) * 1.0,
        "reduces_every_micro_batch": (stages >= 2) * 1.0,
        "gather_group": np.where(hpz > 1, hpz, 0.0),  # 0 stands for the whole group
        "reduce_bucket_elements": elements("reduce_bucket_size"),
        # The BF16_Optimizer has no such bucket, and the knob does not act there.
        "copies_grads": rows.of(
            lambda c: (
                c.get("reduce_bucket_size") is not None and bool(_value(c, "contiguous_gradients"))
            )
        ),
        "gather_bucket_elements": elements("allgather_bucket_size"),
        "prefetch_elements": elements("stage3.prefetch_bucket_size"),
        "reuse_elements": elements("stage3.max_reuse_distance"),
        "live_elements": elements("stage3.max_live_parameters"),
        "persistent_elements": rows.number("stage3.param_persistence_threshold"),
    }


def _kernels(rows: _Rows) -> dict[str, Floats]:
    copies = _activation_copies(rows.job.model.source.get("config") or {})
    is_compiled = rows.of(lambda c: _value(c, "compile") != "none")
    return {
        **{name: is_compiled * value for name, value in _COMPILED.items()},
        "logit_bytes": rows.of(lambda c: _logit_bytes(c, rows.precision(c))),
        "fragments": rows.of(
            lambda c: GROWING_SEGMENTS if c.get("allocator") == "expandable_segments" else 1.0
        ),
        # Our own pipeline's stages take torch's fused functions.
        "activation_copies": rows.of(lambda c: copies if c.pp == 1 else 0.0),
        "flash_attention": rows.of(lambda c: _attention(c, rows.job) != "eager"),
        "attention_speed": rows.of(
            lambda c: _FLEX_SPEED if _attention(c, rows.job) == "flex_attention" else 1.0
        ),
        # The knob acts on CPU ranks alone.
        "clears_pages": rows.of(lambda c: c.get("host_allocator") == "default"),
        "keeps_heap": rows.of(lambda c: c.get("host_allocator") == "keep"),
        "loss_chunk_tokens": rows.number("loss_chunk_tokens"),
        "mlp_tile_tokens": rows.number("mlp_chunk_tokens"),
    }


def _logit_bytes(candidate: Candidate, precision: str) -> float:
    if candidate.get("compile") != "torch":
        return float(Plans.logit_bytes)
    return _COMPILED_LOGIT_BYTES.get(precision, 4.0)


def _activation_copies(config: Mapping[str, Any]) -> float:
    name = config.get("hidden_act")
    if config.get("model_type") == "gpt2":
        name = config.get("activation_function", "gelu_new")  # transformers' own default
    return _ACTIVATION_COPIES.get(str(name), 0.0)
