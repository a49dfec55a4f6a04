"""Rules of layouts of mixtures of experts: how experts are split, reached and computed again."""

import numpy as np

from autotune.engines.megatron.layout_rule import (
    CONFIG,
    NOT_THERE,
    SAME_RUN,
    excludes,
    layout_rule,
    needs,
)
from autotune.engines.megatron.layout_task import LayoutRows
from autotune.space.rule import Rule

_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_OVERLAP = f"{CONFIG}: overlap_moe_expert_parallel_comm"
_FUSED = "megatron/core/transformer/moe/experts.py: _is_fused_impl_supported"


RULES: tuple[Rule[LayoutRows], ...] = (
    needs("fused_experts.experts", "fused_experts", "n_experts>1", SAME_RUN),
    layout_rule(
        "fused_experts.recipe",
        "fused_experts fp8=none|fp8_recipe!=mxfp8|has_fp4=0",
        "fused_experts is a kernel for mxfp8 on Blackwell",
        "take fp8=e4m3 and fp8_recipe=mxfp8, or fused_experts=false",
        "ours: Transformer Engine, NVTE_CUTEDSL_FUSED_GROUPED_MLP",
    ),
    layout_rule(
        "fused_experts.split",
        "fused_experts etp!=1 etp|tp!=1",
        "fused_experts computes whole experts, and etp {etp} (0: tp {tp}) splits them",
        "take etp=1, or fused_experts=false",
        _FUSED,
    ),
    excludes(
        "fused_experts.recompute",
        "recompute=selective fused_experts",
        "recompute_modules~moe_act",
        _FUSED,
    ),
    layout_rule(
        "etp.experts",
        lambda etp, tp, n_experts, ffn_hidden: np.where(
            etp == 0,
            (n_experts < 2) | (ffn_hidden % tp == 0),
            (n_experts > 1) & (ffn_hidden % np.maximum(1, etp) == 0),
        ),
        "the experts' width {ffn_hidden}, of {n_experts} experts, is split by etp {etp}, or where "
        "that is 0 by tp {tp}",
        "take an etp that divides the width; 0 for a dense model",
        "megatron/core/transformer/moe/experts.py; tensor_parallel/layers.py: divide",
    ),
    layout_rule(
        "etp.replicas",
        "etp etp!=tp !ep>1",
        "etp {etp} with ep {ep} and tp {tp}: Megatron reduces gradients of experts over the "
        "replicas of the other layers unless ep is above 1, and these are other ranks",
        "take an ep above 1, or etp=0",
        "megatron/core/tensor_parallel/layers.py: expert_parallel, allreduce",
    ),
    needs("dispatcher.experts", "dispatcher", "n_experts>1", SAME_RUN),
    layout_rule(
        "dispatcher.ranks",
        "dispatcher=deepep|dispatcher=hybridep !ep>1|etp>1 etp|tp=1",
        "deepep and hybridep send tokens to other ranks, and ep {ep} x the experts' tensor "
        "parallel degree is 1",
        "take dispatcher=alltoall, or an ep above 1",
        f"{_DISPATCHER}, _DeepepManager, MoEFlexTokenDispatcher: TPxEP > 1",
    ),
    excludes(
        "dispatcher.precision",
        "dispatcher=deepep|dispatcher=hybridep",
        "in_fp32",
        "ours: DeepEP's and HybridEP's buffers",
    ),
    needs("overlap_experts.ranks", "overlap_experts", "ep>1", _OVERLAP),
    needs("overlap_experts.chunks", "overlap_experts pp>1", "vp>1", _OVERLAP),
    excludes("overlap_experts.dispatcher", "overlap_experts", "dispatcher=allgather", _OVERLAP),
    excludes("overlap_experts.recompute", "overlap_experts", "recompute=full", _OVERLAP),
    excludes(
        "overlap_experts.modules",
        "from_0_17 recompute_modules~moe",
        "overlap_experts",
        _OVERLAP,
    ),
    excludes("overlap_experts.precision", "overlap_experts", "in_fp32", _OVERLAP),
    excludes("overlap_experts.shared", "overlap_experts", "overlap_shared_experts", _OVERLAP),
    layout_rule(
        "overlap_experts.mtp",
        "overlap_experts n_mtp_layers n_mtp_layers>1|pp=1",
        "overlap_experts takes one layer that predicts further tokens, in a pipeline, and there "
        "are {n_mtp_layers} and pp {pp}",
        "take overlap_experts=false",
        _OVERLAP,
    ),
    needs(
        "delay_weight_grads.overlap",
        "delay_weight_grads",
        "overlap_experts",
        f"{CONFIG}: delay_wgrad_compute",
    ),
    needs(
        "overlap_shared_experts.model", "overlap_shared_experts", "shared_expert_hidden", SAME_RUN
    ),
    excludes(
        "overlap_shared_experts.dispatcher",
        "overlap_shared_experts",
        "dispatcher",
        f"{CONFIG}: moe_shared_expert_overlap",
    ),
    needs(
        "recompute_modules.experts",
        "recompute=selective recompute_modules~moe",
        "n_experts>1",
        NOT_THERE,
    ),
    needs(
        "recompute_modules.dense",
        "n_experts>1 recompute=selective recompute_modules~mlp",
        "n_dense_layers",
        NOT_THERE,
    ),
    needs(
        "recompute_modules.shared",
        "recompute=selective recompute_modules~shared_experts",
        "shared_expert_hidden",
        NOT_THERE,
    ),
    layout_rule(
        "recompute_modules.within",
        "recompute=selective recompute_modules~moe "
        "recompute_modules~moe_act|recompute_modules~shared_experts",
        "recompute_modules: moe computes the whole layer again, with moe_act and shared_experts",
        "leave them out beside moe",
        "ours: they would be computed twice more. megatron/core/transformer/moe/moe_layer.py",
    ),
    needs(
        "recompute_modules.latent",
        "recompute=selective recompute_modules~mla_up_proj",
        "latent_kv_rank",
        f"{CONFIG}: recompute_modules",
    ),
    needs(
        "recompute_modules.grouped",
        "recompute=selective recompute_modules~moe_act",
        "groups_experts",
        f"{CONFIG}: recompute_modules, moe_grouped_gemm",
    ),
    excludes(
        "recompute_modules.shared_overlap",
        "recompute=selective recompute_modules~shared_experts",
        "overlap_shared_experts",
        f"{CONFIG}: recompute_modules, moe_shared_expert_overlap",
    ),
)
"""Rules of experts, in the order in which they are asked."""
