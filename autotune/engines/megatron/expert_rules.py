"""Rules of layouts of mixtures of experts: how experts are split, reached and computed again."""

import numpy as np

from autotune.engines.megatron.layout_rule import CONFIG, layout_rule
from autotune.engines.megatron.layout_task import LayoutRows
from autotune.space.rule import Rule

_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_OVERLAP = f"{CONFIG}: overlap_moe_expert_parallel_comm"
_FUSED = "megatron/core/transformer/moe/experts.py: _is_fused_impl_supported"


RULES: tuple[Rule[LayoutRows], ...] = (
    layout_rule(
        "fused_experts.experts",
        "fused_experts !n_experts>1",
        "fused_experts is the kernel of a mixture, and the model has {n_experts} experts",
        "take fused_experts=false",
        "ours: the same run as without",
    ),
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
    layout_rule(
        "fused_experts.recompute",
        "fused_experts recompute=selective recompute_modules~moe_act",
        "fused_experts keeps no result of an activation that moe_act could compute again",
        "leave moe_act out of recompute_modules, or take fused_experts=false",
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
    layout_rule(
        "dispatcher.experts",
        "dispatcher !n_experts>1",
        "a dispatcher sends tokens to experts, and the model has {n_experts}",
        "take dispatcher=alltoall",
        "ours: the same run as without",
    ),
    layout_rule(
        "dispatcher.ranks",
        "dispatcher=deepep|dispatcher=hybridep !ep>1|etp>1 etp|tp=1",
        "deepep and hybridep send tokens to other ranks, and ep {ep} x the experts' tensor "
        "parallel degree is 1",
        "take dispatcher=alltoall, or an ep above 1",
        f"{_DISPATCHER}, _DeepepManager, MoEFlexTokenDispatcher: TPxEP > 1",
    ),
    layout_rule(
        "dispatcher.precision",
        "dispatcher=deepep|dispatcher=hybridep in_fp32",
        "deepep and hybridep send 16 bits, and the job trains in fp32",
        "take dispatcher=alltoall, or precision bf16 for the job",
        "ours: DeepEP's and HybridEP's buffers",
    ),
    layout_rule(
        "overlap_experts.ranks",
        "overlap_experts !ep>1",
        "overlap_experts hides what ep sends, and ep is {ep}",
        "take overlap_experts=false, or an ep above 1",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.chunks",
        "overlap_experts pp>1 !vp>1",
        "overlap_experts pairs the chunks of a pipeline, and pp {pp} has vp {vp}",
        "take overlap_experts=false, or a vp above 1",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.dispatcher",
        "overlap_experts dispatcher=allgather",
        "overlap_experts hides all-to-alls, and the dispatcher is allgather",
        "take dispatcher=alltoall",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.recompute",
        "overlap_experts recompute=full",
        "overlap_experts runs parts of two layers at a time, and recompute=full computes whole "
        "layers again",
        "take overlap_experts=false, or recompute_modules",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.precision",
        "overlap_experts in_fp32",
        "overlap_experts trains in 16 bits alone, and the job trains in fp32",
        "take overlap_experts=false, or precision bf16 for the job",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.shared",
        "overlap_experts overlap_shared_experts",
        "overlap_experts beside overlap_shared_experts: Megatron takes one of the two",
        "take overlap_shared_experts=false",
        _OVERLAP,
    ),
    layout_rule(
        "overlap_experts.mtp",
        "overlap_experts n_mtp_layers n_mtp_layers>1|pp=1",
        "overlap_experts takes one layer that predicts further tokens, in a pipeline, and there "
        "are {n_mtp_layers} and pp {pp}",
        "take overlap_experts=false",
        _OVERLAP,
    ),
    layout_rule(
        "delay_weight_grads.overlap",
        "delay_weight_grads !overlap_experts",
        "delay_weight_grads puts gradients of weights beside what overlap_experts hides",
        "take delay_weight_grads=false, or overlap_experts=true",
        f"{CONFIG}: delay_wgrad_compute",
    ),
    layout_rule(
        "overlap_shared_experts.model",
        "overlap_shared_experts !shared_expert_hidden",
        "overlap_shared_experts computes shared experts beside what ep sends, and the model has "
        "none",
        "take overlap_shared_experts=false",
        "ours: the same run as without",
    ),
    layout_rule(
        "overlap_shared_experts.dispatcher",
        "overlap_shared_experts dispatcher",
        "overlap_shared_experts goes with the dispatcher alltoall alone",
        "take overlap_shared_experts=false, or dispatcher=alltoall",
        f"{CONFIG}: moe_shared_expert_overlap",
    ),
    layout_rule(
        "recompute_modules.experts",
        "recompute=selective recompute_modules~moe !n_experts>1",
        "recompute_modules: moe is the layer of a mixture, and the model has {n_experts} experts",
        "take mlp for a dense model",
        "ours: the module is not there. megatron/core/transformer/transformer_layer.py",
    ),
    layout_rule(
        "recompute_modules.dense",
        "n_experts>1 !n_dense_layers recompute=selective recompute_modules~mlp",
        "recompute_modules: mlp is that of dense layers, and all layers have experts",
        "take moe for a mixture",
        "ours: the module is not there. megatron/core/transformer/transformer_layer.py",
    ),
    layout_rule(
        "recompute_modules.shared",
        "!shared_expert_hidden recompute=selective recompute_modules~shared_experts",
        "recompute_modules: the model has no shared_experts",
        "leave shared_experts out of recompute_modules",
        "ours: the module is not there. megatron/core/transformer/moe/moe_layer.py",
    ),
    layout_rule(
        "recompute_modules.within",
        "recompute=selective recompute_modules~moe "
        "recompute_modules~moe_act|recompute_modules~shared_experts",
        "recompute_modules: moe computes the whole layer again, with moe_act and shared_experts",
        "leave them out beside moe",
        "ours: they would be computed twice more. megatron/core/transformer/moe/moe_layer.py",
    ),
    layout_rule(
        "recompute_modules.latent",
        "!latent_kv_rank recompute=selective recompute_modules~mla_up_proj",
        "recompute_modules: mla_up_proj is that of latent attention, which the model has not",
        "leave mla_up_proj out of recompute_modules",
        f"{CONFIG}: recompute_modules",
    ),
    layout_rule(
        "recompute_modules.grouped",
        "!groups_experts recompute=selective recompute_modules~moe_act",
        "recompute_modules: moe_act is computed again in grouped experts alone, which need "
        "Transformer Engine",
        "leave moe_act out of recompute_modules",
        f"{CONFIG}: recompute_modules, moe_grouped_gemm",
    ),
    layout_rule(
        "recompute_modules.shared_overlap",
        "overlap_shared_experts recompute=selective recompute_modules~shared_experts",
        "recompute_modules: shared_experts beside overlap_shared_experts: Megatron takes one of "
        "the two",
        "take overlap_shared_experts=false",
        f"{CONFIG}: recompute_modules, moe_shared_expert_overlap",
    ),
)
"""Rules of experts, in the order in which they are asked."""
