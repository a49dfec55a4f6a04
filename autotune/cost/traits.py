"""How the training frameworks differ for memory and time, as columns of `Plans`.

A row of a table names a framework; what it does not say beyond that is taken from here. Each value
is the framework's documented default at the time when such rows were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

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

_JOINED_ADAPTERS = 0.5
"""Queries, keys and values are one projection with one adapter: Megatron's."""
_DDP_BUCKET_ELEMENTS = 25.0 * 2**20 / 4.0
"""torch's DistributedDataParallel, `bucket_cap_mb` of 25, in fp32."""

_FP32 = {"weight_bytes": 4.0, "grad_bytes": 4.0, "optimizer_bytes": 8.0}

PURE_16_BIT = {
    **{"weight_bytes": 2.0, "grad_bytes": 2.0, "reduce_bytes": 2.0, "optimizer_bytes": 4.0},
}
"""Weights, gradients and both moments of Adam in 16 bits, and no other copy."""

GROWING_SEGMENTS = 0.1
"""Part of the fragmentation that is left with expandable segments. In the two trials of
results/recorded/gpu/h100-1b-search.csv 1.0% and 1.7% of what the allocator held was free at the
peak; 13% without them."""

_FOREACH = {"fresh_grads": 1.0, "optimizer_temporary_bytes": 4.0}
"""torch's Adam by default: the roots of the second moments are there at once. Source: torch,
optim/adam.py, _multi_tensor_adam (exp_avg_sq_sqrt)."""

_FSDP = {
    # 32-bit shards are cast to 16 bits for the layers; Adam's two moments lie beside them.
    **_FP32,
    "layer_wise_gather": 1.0,
    "gather_calls_per_layer": 1.0,
    "reduces_every_micro_batch": 1.0,
}

_MEGATRON = {"grad_bytes": 4.0, "reduce_bytes": 4.0, "overlap_sends": 1.0, "logit_bytes": 6.0}

_NEMO = {**_MEGATRON, "grad_bytes": 2.0, "reduce_bytes": 2.0, "overlap_tp": 0.7}

_ZERO_3 = {
    # Parameters are fetched one module at a time. Source: DeepSpeed,
    # runtime/zero/partition_parameters.py.
    "gather_calls_per_layer": 4.0,
    "cuts_by_rank": 1.0,
}

_ADAPTER_BYTES = 12.0
"""Inputs of four adapters of a layer after dropout, with its masks: 4 (2 + 1). Source:
huggingface/peft, src/peft/tuners/lora/layer.py."""
_CAST_ADAPTER_BYTES = 76.0
"""The same where FSDP wraps adapters: they run in 32 bits, on copies of the inputs and of what
came of them, and so do their gradients. Measured by foundation-model-stack/fms-acceleration beside
one device, which holds 64 less."""

FRAMEWORKS = (
    Traits(
        # torchtune: all in bf16, fused AdamW, a loss whose 16-bit logits are all there, and one in
        # eight of them in 32 bits at a time: 2 + 12 / 8. Source: pytorch/torchtune,
        # recipes/configs/, modules/loss/.
        name="torchtune",
        zero_stage=0,
        columns={**_FSDP, **PURE_16_BIT, "fresh_grads": 1.0, "logit_bytes": 3.5},
        chunked_loss={"logit_bytes": 3.5, "loss_chunk_tokens": 0.0},
        meter="allocated_bytes",
    ),
    Traits(
        # prime-rl: FSDP2 with 32-bit parameters, frozen ones too; its supervised loss is torch's
        # own in 32 bits. Source: PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/sft/train.py.
        name="prime-rl",
        zero_stage=3,
        columns={**_FSDP, **_FOREACH, "reduce_bytes": 4.0},
        adapter_columns={"weight_bytes": 4.0},
        meter="reserved_bytes",
    ),
    Traits(
        # Unsloth: inputs of checkpoints lie on the host, the loss comes in chunks, kernels work in
        # place. Source: unslothai/unsloth-zoo, gradient_checkpointing.py and fused_losses/;
        # unslothai/unsloth, unsloth/kernels/swiglu.py.
        name="unsloth",
        zero_stage=0,
        columns={
            "mlp_grads_in_place": 1.0,
            "fresh_grads": 1.0,
            "offloaded_activations": 1.0,
            "loss_chunk_tokens": 4096.0,
        },
        recompute="full",
    ),
    Traits(
        # Arctic Long Sequence Training: DeepSpeed with tiles of the loss and of MLPs. Source:
        # Bekman et al. (arXiv:2506.13996); snowflakedb/ArcticTraining.
        name="alst",
        zero_stage=3,
        columns={
            "flat_buffers": 1.0,
            "upcasts_grads": 1.0,
            "fused_kernels": 0.0,
            "loss_chunk_tokens": 1024.0,
            "mlp_tile_tokens": 4096.0,
            **_ZERO_3,
        },
        recompute="full",
    ),
    Traits(
        # torchtitan: fp32 reduction, per-operator selective checkpoints, compiled blocks, sequence
        # parallelism of DTensors. Source: Liang et al. (arXiv:2410.06511).
        name="torchtitan",
        zero_stage=3,
        columns={
            **_FSDP,
            "reduce_bytes": 4.0,
            "fused_kernels": 0.6,
            "keeps_gathered": 1.0,
            "logit_bytes": 8.0,
        },
        parallel_logit_bytes=12.0,
        meter="reserved_bytes",
        recompute="selective",
        splits_local_batch=True,
        selective_operators=True,
        sequence_parallel=True,
    ),
    Traits(
        # NeMo AutoModel on FSDP2: Hugging Face modules with Liger's kernels, adapters in Triton.
        # Without recomputation its published runs would take up to twice their devices' memory.
        # Source: NVIDIA-NeMo/Automodel, nemo_automodel/_transformers/auto_model.py
        # (use_liger_kernel) and components/_peft/lora_kernel.py.
        name="nemo-automodel",
        spelled="automodel",
        zero_stage=3,
        columns={**_FSDP, "fused_kernels": 0.7},
        recompute="full",
        adapters=0.5,
    ),
    Traits(
        # Megatron-Bridge is NeMo's successor. Its recipes of mixtures send tokens by DeepEP or
        # HybridEP and fuse the permutation. Source: NVIDIA-NeMo/Megatron-Bridge,
        # scripts/performance.
        name="nemo",
        adapters=_JOINED_ADAPTERS,
        spelled="bridge",
        zero_stage=1,
        columns=_NEMO,
        eager_logit_bytes=_MEGATRON["logit_bytes"],
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
        adapters=_JOINED_ADAPTERS,
        zero_stage=1,
        columns=_NEMO,
        eager_logit_bytes=_MEGATRON["logit_bytes"],
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
            "fused_kernels": 0.4,
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
        # Kwai's Megatron: what is cheap to compute again is not kept, so all products are. Source:
        # Yuan et al. (USENIX ATC 2024).
        name="megatron-kwai",
        spelled="kwai",
        zero_stage=1,
        columns={**_MEGATRON, "kept_products": 1.0},
        sequence_parallel=True,
        eager_logit_bytes=_MEGATRON["logit_bytes"],
        selective_operators=True,
    ),
    Traits(
        # Megatron-LM: fp32 accumulation; in fp16, as in 2021, no flash attention and no overlap.
        # Source: Narayanan et al. (arXiv:2104.04473); NVIDIA/Megatron-LM,
        # docs/user-guide/features/dist_optimizer.md, for the bytes.
        name="megatron",
        adapters=_JOINED_ADAPTERS,
        zero_stage=1,
        attention_on_hopper=1.0,
        columns=_MEGATRON,
        eager_logit_bytes=_MEGATRON["logit_bytes"],
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
        # nanotron: ZeRO-1, gradients accumulated in 32 bits beside the 16-bit ones and the buckets
        # that DistributedDataParallel copies those to. MLPs are not fused; rank 0 logs what it
        # allocated; stages by cost; the host sends sizes before each message between stages, and
        # waits. Source: huggingface/nanotron, src/nanotron/optim/gradient_accumulator.py,
        # trainer.py, models/base.py (build_model) and parallel/pipeline_parallel/p2p.py.
        name="nanotron",
        zero_stage=1,
        columns={
            "grad_bytes": 8.0,
            "reduce_bytes": 4.0,
            "fused_kernels": 0.25,
            "logit_bytes": 6.0,
            "waits_for_stages": 1.0,
            "reduce_bucket_elements": _DDP_BUCKET_ELEMENTS,
        },
        sequence_parallel=True,
        eager_logit_bytes=6.0,
        weighs_head=True,
        meter="allocated_bytes",
        watched_stage=LoggedStage.FIRST,
    ),
    Traits(
        # DeepSpeed under Hugging Face or alone; attention as torch or the model brings it.
        name="deepspeed",
        mixture_columns=_LOOP,
        zero_stage=0,
        columns={"flat_buffers": 1.0, "upcasts_grads": 1.0, "fused_kernels": 0.0, **_ZERO_3},
        adapter_columns={"adapter_bytes": _ADAPTER_BYTES},
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
        columns={**_FSDP, **_FOREACH, "attention_speed": 0.55, "logit_bytes": 4.0},
        adapter_columns={"adapter_bytes": _CAST_ADAPTER_BYTES},
        parallel_logit_bytes=12.0,
    ),
    Traits(
        # Hugging Face under DistributedDataParallel: everything whole on every rank.
        name="ddp",
        mixture_columns=_LOOP,
        zero_stage=0,
        columns={
            **_FP32,
            **_FOREACH,
            "reduce_bytes": 4.0,
            "fused_kernels": 0.0,
            "reduce_bucket_elements": _DDP_BUCKET_ELEMENTS,
        },
        adapter_columns={"adapter_bytes": _ADAPTER_BYTES},
    ),
)


ASSUMED = "deepspeed"
"""The framework of rows that name none."""
