"""How the training frameworks differ for memory and time, as columns of `Plans`.

A row of a table names a framework; what it does not say beyond that is taken from here. Each value
is the framework's documented default at the time when such rows were measured.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Traits:
    """A framework."""

    name: str
    spelled: re.Pattern[str]
    zero_stage: int
    """Where a row says nothing."""
    columns: Mapping[str, float] = field(default_factory=dict)
    """Columns of `Plans`, in mixed precision of bf16."""
    fp16_columns: Mapping[str, float] = field(default_factory=dict)
    """What differs in fp16."""
    low_precision_columns: Mapping[str, float] = field(default_factory=dict)
    """What differs in fp8 and fp4."""
    newer_columns: Mapping[str, float] = field(default_factory=dict)
    """What differs on devices that have fp8."""
    recompute: str = "none"
    """Where a row says nothing."""
    splits_local_batch: bool = False
    """`micro_batch` is what a rank is given, and the pipeline takes it sample by sample."""
    selective_operators: bool = False
    """`selective` means torch's per-operator checkpoints, not the attention's core."""
    sequence_parallel: bool = False
    """Sequence parallelism is on wherever tp is above one."""


_FSDP = {
    # 32-bit shards are cast to 16 bits for the layers; Adam's two moments lie beside them.
    "weight_bytes": 4.0,
    "grad_bytes": 4.0,
    "optimizer_bytes": 8.0,
    "layer_wise_gather": 1.0,
    "gather_calls_per_layer": 1.0,
    "reduces_every_micro_batch": 1.0,
}

_MEGATRON = {
    "grad_bytes": 4.0,
    "reduce_bytes": 4.0,
    "overlap_sends": 1.0,
    "logit_bytes": 8.0,
}

_ZERO_3 = {
    # Parameters are fetched one module at a time and copied out of flat buffers, and what that
    # reaches is about one network card of a node's eight. Source: the ZeRO-3 rows of Narayanan et
    # al. (arXiv:2104.04473), table 2; DeepSpeed, runtime/zero/partition_parameters.py.
    "gather_calls_per_layer": 2.0,
    "gather_speed": 0.15,
}

_FLASH_2_ON_HOPPER = {
    # FlashAttention-2, torch's own too, does not use what Hopper added; Transformer Engine does.
    # Source: Shah et al., FlashAttention-3 (arXiv:2407.08608).
    "attention_speed": 0.65,
}

FRAMEWORKS = (
    Traits(
        # torchtitan: fp32 reduction, per-operator selective checkpoints, compiled blocks.
        # Source: Liang et al. (arXiv:2410.06511).
        name="torchtitan",
        spelled=re.compile(r"torchtitan"),
        zero_stage=3,
        columns={**_FSDP, "reduce_bytes": 4.0, "fused_kernels": 0.7},
        recompute="selective",
        newer_columns=_FLASH_2_ON_HOPPER,
        splits_local_batch=True,
        selective_operators=True,
        sequence_parallel=True,
    ),
    Traits(
        # NeMo AutoModel on FSDP2: Hugging Face modules with fused kernels where there are some.
        name="nemo-automodel",
        spelled=re.compile(r"automodel"),
        zero_stage=3,
        columns={**_FSDP, "fused_kernels": 0.0},
        newer_columns=_FLASH_2_ON_HOPPER,
    ),
    Traits(
        # NeMo and Megatron-Bridge: Transformer Engine, distributed optimizer, gradients reduced in
        # bf16, everything overlapped. Source: NVIDIA-NeMo/Megatron-Bridge,
        # docs/performance-guide.md.
        name="nemo",
        spelled=re.compile(r"nemo"),
        zero_stage=1,
        columns={
            "grad_bytes": 2.0,
            "overlap_tp": 0.7,
            "overlap_sends": 1.0,
            "logit_bytes": 8.0,
        },
        low_precision_columns={"product_input_bytes": 1.0},
        sequence_parallel=True,
    ),
    Traits(
        # InternEvo: hybrid ZeRO-1 with flash attention. Its optimizer keeps gradients in 32 bit
        # beside the states, and torch's Adam takes temporaries of their size. Source:
        # InternLM/InternEvo, doc/en/ and internlm/solver/optimizer/hybrid_zero_optim.py.
        name="internevo",
        spelled=re.compile(r"internevo"),
        zero_stage=1,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns={"fused_kernels": 0.5, "optimizer_bytes": 16.0, "upcasts_grads": 2.0},
    ),
    Traits(
        # Megatron-DeepSpeed: the PipelineModule forces overlap_comm off (DeepSpeed,
        # runtime/engine.py), stages 1 and 2 hold flat buffers, bf16 accumulates in fp32.
        name="megatron-deepspeed",
        spelled=re.compile(r"megatron-deepspeed"),
        zero_stage=0,
        newer_columns=_FLASH_2_ON_HOPPER,
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
        spelled=re.compile(r"kwai"),
        zero_stage=1,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns=_MEGATRON,
        selective_operators=True,
    ),
    Traits(
        # Megatron-LM: fp32 accumulation; in fp16, as in 2021, no flash attention and no overlap.
        # Source: Narayanan et al. (arXiv:2104.04473); NVIDIA/Megatron-LM,
        # docs/user-guide/features/dist_optimizer.md, for the bytes.
        name="megatron",
        spelled=re.compile(r"megatron"),
        zero_stage=1,
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
        spelled=re.compile(r"nanotron"),
        zero_stage=1,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns={"grad_bytes": 4.0, "reduce_bytes": 4.0, "fused_kernels": 0.5},
        sequence_parallel=True,
    ),
    Traits(
        # DeepSpeed under Hugging Face or alone; attention as torch or the model brings it.
        name="deepspeed",
        spelled=re.compile(r"deepspeed"),
        zero_stage=0,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns={
            "flat_buffers": 1.0,
            "upcasts_grads": 1.0,
            "fused_kernels": 0.0,
            **_ZERO_3,
        },
        fp16_columns={"flash_attention": 0.0, "has_dropout": 1.0},
    ),
    Traits(
        # FSDP, as in llm-foundry: PURE mixed precision reduces in 16 bits, norms run in 16 bits,
        # and attention is the first FlashAttention, which FlashAttention-2 is about twice as fast
        # as; its loss overwrites the 16-bit logits. Source: mosaicml/llm-foundry,
        # scripts/train/benchmarking/README.md; Dao (arXiv:2307.08691), section 4.1.
        name="fsdp",
        spelled=re.compile(r"fsdp"),
        zero_stage=3,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns={**_FSDP, "attention_speed": 0.55, "logit_bytes": 4.0},
    ),
    Traits(
        # Hugging Face under DistributedDataParallel: everything whole on every rank.
        name="ddp",
        spelled=re.compile(r"ddp"),
        zero_stage=0,
        newer_columns=_FLASH_2_ON_HOPPER,
        columns={
            "weight_bytes": 4.0,
            "grad_bytes": 4.0,
            "reduce_bytes": 4.0,
            "fused_kernels": 0.0,
            "optimizer_bytes": 8.0,
        },
    ),
)


def traits_of(framework: str) -> Traits | None:
    """The first whose pattern a framework's name matches; None if none does."""
    spelled = framework.lower()
    return next((traits for traits in FRAMEWORKS if traits.spelled.search(spelled)), None)
