"""How the training frameworks differ for memory and time, as columns of `Plans`.

A row of a table names a framework; what it does not say beyond that is taken from here. Each value
is the framework's documented default at the time when such rows were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A framework."""

    name: str
    spelled: str = ""
    """A part of how rows spell it, where that is not its name."""
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
    attention_on_hopper: float = 0.65
    """Column `attention_speed` on devices that have fp8: FlashAttention-2, torch's own too, does
    not use what Hopper added; Transformer Engine does (1). Source: Shah et al., FlashAttention-3
    (arXiv:2407.08608)."""
    recompute: str = "none"
    """Where a row says nothing."""
    splits_local_batch: bool = False
    """`micro_batch` is what a rank is given, and the pipeline takes it sample by sample."""
    selective_operators: bool = False
    """`selective` means torch's per-operator checkpoints, not the attention's core."""
    sequence_parallel: bool = False
    """Sequence parallelism is on wherever tp is above one."""


_LOOP = {"grouped_experts": 0.0}
"""Hugging Face's modules: one expert after the other."""
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

_FP32 = {"weight_bytes": 4.0, "grad_bytes": 4.0, "optimizer_bytes": 8.0}

_FSDP = {
    # 32-bit shards are cast to 16 bits for the layers; Adam's two moments lie beside them.
    **_FP32,
    "layer_wise_gather": 1.0,
    "gather_calls_per_layer": 1.0,
    "reduces_every_micro_batch": 1.0,
}

_MEGATRON = {"grad_bytes": 4.0, "reduce_bytes": 4.0, "overlap_sends": 1.0, "logit_bytes": 8.0}

_NEMO = {**_MEGATRON, "grad_bytes": 2.0, "reduce_bytes": 2.0, "overlap_tp": 0.7}

_ZERO_3 = {
    # Parameters are fetched one module at a time. Source: DeepSpeed,
    # runtime/zero/partition_parameters.py.
    "gather_calls_per_layer": 4.0,
    "cuts_by_rank": 1.0,
}

FRAMEWORKS = (
    Traits(
        # torchtitan: fp32 reduction, per-operator selective checkpoints, compiled blocks, sequence
        # parallelism of DTensors. Source: Liang et al. (arXiv:2410.06511).
        name="torchtitan",
        zero_stage=3,
        columns={**_FSDP, "reduce_bytes": 4.0, "fused_kernels": 0.7, "keeps_gathered": 1.0},
        recompute="selective",
        splits_local_batch=True,
        selective_operators=True,
        sequence_parallel=True,
    ),
    Traits(
        # NeMo AutoModel on FSDP2: Hugging Face modules with fused kernels where there are some.
        name="nemo-automodel",
        spelled="automodel",
        zero_stage=3,
        columns={**_FSDP, "fused_kernels": 0.0},
    ),
    Traits(
        # Megatron-Bridge is NeMo's successor. Its recipes of mixtures send tokens by DeepEP or
        # HybridEP and fuse the permutation. Source: NVIDIA-NeMo/Megatron-Bridge,
        # scripts/performance.
        name="nemo",
        spelled="bridge",
        zero_stage=1,
        columns=_NEMO,
        low_precision_columns={"product_input_bytes": 1.0},
        mixture_columns={"flex_dispatch": 1.0, "fused_routing": 1.0},
        attention_on_hopper=1.0,
        sequence_parallel=True,
    ),
    Traits(
        # NeMo and Megatron-Bridge: Transformer Engine, distributed optimizer, gradients reduced in
        # bf16, everything overlapped. Source: NVIDIA-NeMo/Megatron-Bridge,
        # docs/performance-guide.md.
        name="nemo",
        zero_stage=1,
        columns=_NEMO,
        low_precision_columns={"product_input_bytes": 1.0},
        attention_on_hopper=1.0,
        sequence_parallel=True,
    ),
    Traits(
        # InternEvo: hybrid ZeRO-1 with flash attention. Its optimizer keeps gradients in 32 bit
        # beside the states, and torch's Adam takes temporaries of their size. Source:
        # InternLM/InternEvo, doc/en/ and internlm/solver/optimizer/hybrid_zero_optim.py.
        name="internevo",
        zero_stage=1,
        columns={
            "fused_kernels": 0.5,
            "optimizer_bytes": 16.0,
            "upcasts_grads": 2.0,
            "sends_by_owner": 1.0,
        },
    ),
    Traits(
        # Megatron-DeepSpeed: the PipelineModule forces overlap_comm off (DeepSpeed,
        # runtime/engine.py), stages 1 and 2 hold flat buffers, bf16 accumulates in fp32.
        name="megatron-deepspeed",
        zero_stage=0,
        columns={
            # In bf16 a second copy in 32 bit, which is not sharded.
            "grad_bytes": 6.0,
            "logit_bytes": 8.0,
            "keeps_stage_outputs": 1.0,
            "has_dropout": 1.0,
            "flat_buffers": 1.0,
            "accumulate_bytes": 24.0,
            "overlap_reduce": 0.0,
            "overlap_gather": 0.0,
            **_ZERO_3,
        },
        fp16_columns={"grad_bytes": 2.0, "upcasts_grads": 1.0, "flash_attention": 0.0},
    ),
    Traits(
        # Kwai's Megatron: what is cheap to compute again is not kept. Source: Yuan et al.
        # (USENIX ATC 2024).
        name="megatron-kwai",
        spelled="kwai",
        zero_stage=1,
        columns=_MEGATRON,
        selective_operators=True,
    ),
    Traits(
        # Megatron-LM: fp32 accumulation; in fp16, as in 2021, no flash attention and no overlap.
        # Source: Narayanan et al. (arXiv:2104.04473); NVIDIA/Megatron-LM,
        # docs/user-guide/features/dist_optimizer.md, for the bytes.
        name="megatron",
        zero_stage=1,
        attention_on_hopper=1.0,
        columns=_MEGATRON,
        fp16_columns={
            "reduce_bytes": 2.0,
            "flash_attention": 0.0,
            "has_dropout": 1.0,
            "overlap_reduce": 0.0,
            "overlap_gather": 0.0,
            "overlap_sends": 0.0,
        },
    ),
    Traits(
        # nanotron: fp32 gradients, ZeRO-1. Source: huggingface/nanotron, docs/.
        name="nanotron",
        zero_stage=1,
        columns={"grad_bytes": 4.0, "reduce_bytes": 4.0, "fused_kernels": 0.5},
        sequence_parallel=True,
    ),
    Traits(
        # DeepSpeed under Hugging Face or alone; attention as torch or the model brings it.
        name="deepspeed",
        mixture_columns=_LOOP,
        zero_stage=0,
        columns={"flat_buffers": 1.0, "upcasts_grads": 1.0, "fused_kernels": 0.0, **_ZERO_3},
        fp16_columns={
            "flash_attention": 0.0,
            "has_dropout": 1.0,
            "overlap_reduce": 0.0,
            "overlap_gather": 0.0,
        },
    ),
    Traits(
        # FSDP, as in llm-foundry: PURE mixed precision reduces in 16 bits, norms run in 16 bits,
        # and attention is the first FlashAttention, which FlashAttention-2 is about twice as fast
        # as; its loss overwrites the 16-bit logits. Source: mosaicml/llm-foundry,
        # scripts/train/benchmarking/README.md; Dao (arXiv:2307.08691), section 4.1.
        name="fsdp",
        mixture_columns=_LOOP,
        zero_stage=3,
        columns={**_FSDP, "attention_speed": 0.55, "logit_bytes": 4.0},
    ),
    Traits(
        # Hugging Face under DistributedDataParallel: everything whole on every rank.
        name="ddp",
        mixture_columns=_LOOP,
        zero_stage=0,
        columns={**_FP32, "reduce_bytes": 4.0, "fused_kernels": 0.0},
    ),
)


ASSUMED = "deepspeed"
"""The framework of rows that name none."""


def traits_of(framework: str) -> Traits | None:
    """The first that a framework's name has in it; None if none is."""
    spelled = framework.lower()
    return next(
        (traits for traits in FRAMEWORKS if (traits.spelled or traits.name) in spelled), None
    )
