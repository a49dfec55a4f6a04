"""How the training frameworks differ for memory and time, as columns of `Plans`.

A row of a table names a framework; what it does not say beyond that is taken from its row of
`frameworks.json`. Each value is the framework's documented default at the time when such rows were
measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.base.data import table_beside
from autotune.cost.plans import LoggedStage

Meter = Literal["peak_bytes", "reserved_bytes", "allocated_bytes"]
"""A field of `Memory`: what nvidia-smi shows, what the allocator holds, or has handed out."""


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A framework."""

    name: str
    spelled: str = ""
    """Its word in a table, where that is not its name."""
    zero_stage: int
    """Where a row says nothing."""
    columns: Mapping[str, float] = field(default_factory=dict)
    """Columns of `Plans`, in mixed precision of bf16."""
    fp16_columns: Mapping[str, float] = field(default_factory=dict)
    """Columns that differ in fp16."""
    low_precision_columns: Mapping[str, float] = field(default_factory=dict)
    """Columns that differ in fp8 and fp4."""
    mixture_columns: Mapping[str, float] = field(default_factory=dict)
    """Columns of mixtures of experts."""
    stage_3_columns: Mapping[str, float] = field(default_factory=dict)
    """Columns that differ where parameters are sharded: Megatron's own FSDP has no buckets."""
    attention_on_hopper: float = 0.65
    """Column `attention_speed` on devices that have fp8: FlashAttention-2, torch's own too, does
    not use what Hopper added; Transformer Engine does (1). Source: Shah et al., FlashAttention-3
    (arXiv:2407.08608)."""
    adapters: float = 1.0
    """Column of that name."""
    recompute: str = "none"
    """Where a row says nothing."""
    splits_local_batch: bool = False
    """`micro_batch` is what a rank is given, and the pipeline takes it sample by sample."""
    selective_operators: bool = False
    """`selective` means torch's per-operator checkpoints, not the attention's core."""
    sequence_parallel: bool = False
    """Sequence parallelism is on wherever tp is above one."""
    adapter_columns: Mapping[str, float] = field(default_factory=dict)
    """Columns that differ where adapters are trained beside frozen weights."""
    eager_logit_bytes: float = 12.0
    """Column `logit_bytes` of its loss where nothing is fused: of torch's cross-entropy in 32 bits
    the log-softmax, its gradient and that of the logits."""
    parallel_logit_bytes: float = 0.0
    """Column `logit_bytes` where tensor parallel ranks share the logits; 0: as otherwise. The loss
    of DTensors is no fused kernel, and no compiler's. Source: torch,
    distributed/tensor/parallel/loss.py."""
    chunked_loss: Mapping[str, float] = field(default_factory=dict)
    """Columns of a loss in chunks where the framework keeps the logits of all chunks."""
    weighs_head: bool = False
    """Layers go to the stages by their parameters and the head's, not by their number."""
    meter: Meter = "peak_bytes"
    """Meter of memory that its log prints, for tables that do not name theirs."""
    watched_stage: LoggedStage = LoggedStage.FULLEST
    """Stage whose memory its log prints."""

    @property
    def word(self) -> str:
        """How a table says it."""
        return self.spelled or self.name


RECOMPUTED_MODULES = {
    "core_attn": "recomputes_scores",
    "layernorm": "recomputes_norms",
    "mlp": "recomputes_mlp",
    "moe": "recomputes_experts",
    "moe_act": "recomputes_expert_act",
    "mla_up_proj": "recomputes_latent",
    "shared_experts": "recomputes_shared",
}
"""Module that Megatron can recompute -> column of `Plans`."""
CAPTURED_SHARES = {
    **{"attn": 0.25, "mlp": 0.5, "moe_router": 0.2, "moe_preprocess": 0.2},
    "full_iteration": 1.0,
}
"""Part of a layer that Megatron's CUDA graphs capture -> its share of the layer's launches."""
SCALINGS: Mapping[str, Mapping[str, float]] = {
    "delayed": {},
    "tensorwise": {"cast_bytes": 5.0, "cast_kernels": 3.0},
    "blockwise": {"cast_bytes": 4.1},
    "mxfp8": {"cast_bytes": 4.1},
    "nvfp4": {"cast_bytes": 5.1, "cast_kernels": 3.0},
}
"""How fp8 and fp4 choose their scales -> what a cast moves and launches.

Delayed scales are those of steps before. `tensorwise` reads once more what no norm wrote, half of
it, and finds the largest value and a scale by kernels of their own. Blocks have a scale of a byte
for 32 elements (mxfp8) or of four for 128. nvfp4 reads once more for the scale of the tensor, and
rotates what it casts by columns. Source: NVIDIA/TransformerEngine, transformer_engine/pytorch/
csrc/quantizer.cpp (Float8CurrentScalingQuantizer, Float8BlockQuantizer, MXFP8Quantizer,
NVFP4Quantizer)."""
BLOCKWISE_GAIN_SHARE = 0.7
"""Share of the gain of fp8 over bf16 that products with scales by blocks reach where the tensor
cores know none: Hopper adds up each 128 of a sum outside of them. Source: NVIDIA, Boosting Matrix
Multiplication Speed and Flexibility with cuBLAS 12.9, whose products with blocks of 128 reach 1.2
to 1.5 times the rate of bf16 on H200 and those with one scale up to 1.75."""
GROWING_SEGMENTS = 0.1
"""Part of the fragmentation that is left with expandable segments. In the two trials of
results/recorded/gpu/h100-1b-search.csv 1.0% and 1.7% of what the allocator held was free at the
peak; 13% without them."""

_FILE = table_beside(__file__, "frameworks.json")


def _columns(parts: Sequence[str | Mapping[str, float]]) -> dict[str, float]:
    """Columns of a row: names of sets that several frameworks share, and its own."""
    sets = (_FILE["shared"][part] if isinstance(part, str) else part for part in parts)
    return {name: float(value) for columns in sets for name, value in columns.items()}


def _traits(row: Mapping[str, Any]) -> Traits:
    fields: dict[str, Any] = {
        key: _columns(value) if isinstance(value, list) else value
        for key, value in row.items()
        if key != "about"
    }
    if stage := fields.get("watched_stage"):
        fields["watched_stage"] = LoggedStage[stage.upper()]
    return Traits(**fields)


DROPPED_BYTES = _columns(["adapters"])["adapter_bytes"]
"""Column `adapter_bytes` of inputs that adapters drop; those that drop nothing keep none."""
PURE_16_BIT = _columns(["pure_16_bit"])
"""Weights, gradients and both moments of Adam in 16 bits, and no other copy."""
FRAMEWORKS = tuple(_traits(row) for row in _FILE["frameworks"])
"""A word that holds another one comes first: `megatron-deepspeed` before `megatron`."""
ASSUMED = "deepspeed"
"""The framework of rows that name none."""
