"""Rules of layouts of mixtures of experts: how experts are split, reached and computed again."""

import numpy as np

from autotune.cost.plans import Recompute
from autotune.engines.megatron.choices import DISPATCHERS, FLEX, FP8_RECIPES, RECOMPUTED, has
from autotune.engines.megatron.layout_rule import CONFIG, layout_rule
from autotune.engines.megatron.layout_task import Counts, LayoutRows, Truth
from autotune.space.rule import Rule

_DISPATCHER = "megatron/core/transformer/moe/token_dispatcher.py"
_OVERLAP = f"{CONFIG}: overlap_moe_expert_parallel_comm"
_SELECTIVE = int(Recompute.SELECTIVE)
_ALL_GATHER = DISPATCHERS.index("allgather")
_MXFP8 = FP8_RECIPES.index("mxfp8")
_FUSED = "megatron/core/transformer/moe/experts.py: _is_fused_impl_supported"


def _recomputes(part: str, recompute: Counts, modules: Counts) -> Truth:
    found: Truth = (recompute == _SELECTIVE) & has(part, RECOMPUTED, modules)
    return found


RULES: tuple[Rule[LayoutRows], ...] = (
    layout_rule(
        "fused_experts.experts",
        lambda fused_experts, n_experts: (fused_experts == 0) | (n_experts > 1),
        "fused_experts is the kernel of a mixture, and the model has {n_experts} experts",
        "take fused_experts=false",
        "ours: the same run as without",
    ),
    layout_rule(
        "fused_experts.recipe",
        lambda fused_experts, fp8, fp8_recipe, has_fp4: (
            (fused_experts == 0) | (fp8 > 0) & (fp8_recipe == _MXFP8) & has_fp4
        ),
        "fused_experts is a kernel for mxfp8 on Blackwell",
        "take fp8=e4m3 and fp8_recipe=mxfp8, or fused_experts=false",
        "ours: Transformer Engine, NVTE_CUTEDSL_FUSED_GROUPED_MLP",
    ),
    layout_rule(
        "fused_experts.split",
        lambda fused_experts, etp, tp: (fused_experts == 0) | (etp == 1) | (etp == 0) & (tp == 1),
        "fused_experts computes whole experts, and etp {etp} (0: tp {tp}) splits them",
        "take etp=1, or fused_experts=false",
        _FUSED,
    ),
    layout_rule(
        "fused_experts.recompute",
        lambda fused_experts, recompute, recompute_modules: (
            (fused_experts == 0) | ~_recomputes("moe_act", recompute, recompute_modules)
        ),
        "fused_experts keeps no result of an activation that moe_act could compute again",
        "leave moe_act out of recompute_modules, or take fused_experts=false",
        _FUSED,
        undoes=("recompute_modules.moe_act",),
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
        lambda etp, tp, ep: (etp == 0) | (etp == tp) | (ep > 1),
        "etp {etp} with ep {ep} and tp {tp}: Megatron reduces gradients of experts over the "
        "replicas of the other layers unless ep is above 1, and these are other ranks",
        "take an ep above 1, or etp=0",
        "megatron/core/tensor_parallel/layers.py: expert_parallel, allreduce",
        undoes=("etp",),
    ),
    layout_rule(
        "dispatcher.experts",
        lambda dispatcher, n_experts: (dispatcher == 0) | (n_experts > 1),
        "a dispatcher sends tokens to experts, and the model has {n_experts}",
        "take dispatcher=alltoall",
        "ours: the same run as without",
    ),
    layout_rule(
        "dispatcher.ranks",
        lambda dispatcher, tp, etp, ep: (
            ~np.isin(dispatcher, FLEX) | (np.where(etp > 0, etp, tp) * ep > 1)
        ),
        "deepep and hybridep send tokens to other ranks, and ep {ep} x the experts' tensor "
        "parallel degree is 1",
        "take dispatcher=alltoall, or an ep above 1",
        f"{_DISPATCHER}, _DeepepManager, MoEFlexTokenDispatcher: TPxEP > 1",
    ),
    layout_rule(
        "dispatcher.precision",
        lambda dispatcher, in_fp32: ~np.isin(dispatcher, FLEX) | (not in_fp32),
        "deepep and hybridep send 16 bits, and the job trains in fp32",
        "take dispatcher=alltoall, or precision bf16 for the job",
        "ours: DeepEP's and HybridEP's buffers",
    ),
    layout_rule(
        "overlap_experts.ranks",
        lambda overlap_experts, ep: (overlap_experts == 0) | (ep > 1),
        "overlap_experts hides what ep sends, and ep is {ep}",
        "take overlap_experts=false, or an ep above 1",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "overlap_experts.chunks",
        lambda overlap_experts, pp, vp: (overlap_experts == 0) | (pp == 1) | (vp > 1),
        "overlap_experts pairs the chunks of a pipeline, and pp {pp} has vp {vp}",
        "take overlap_experts=false, or a vp above 1",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "overlap_experts.dispatcher",
        lambda overlap_experts, dispatcher: (overlap_experts == 0) | (dispatcher != _ALL_GATHER),
        "overlap_experts hides all-to-alls, and the dispatcher is allgather",
        "take dispatcher=alltoall",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "overlap_experts.recompute",
        lambda overlap_experts, recompute: (
            (overlap_experts == 0) | (recompute != int(Recompute.FULL))
        ),
        "overlap_experts runs parts of two layers at a time, and recompute=full computes whole "
        "layers again",
        "take overlap_experts=false, or recompute_modules",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "overlap_experts.precision",
        lambda overlap_experts, in_fp32: (overlap_experts == 0) | (not in_fp32),
        "overlap_experts trains in 16 bits alone, and the job trains in fp32",
        "take overlap_experts=false, or precision bf16 for the job",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "overlap_experts.shared",
        lambda overlap_experts, overlap_shared_experts: (
            (overlap_experts == 0) | (overlap_shared_experts == 0)
        ),
        "overlap_experts beside overlap_shared_experts: Megatron takes one of the two",
        "take overlap_shared_experts=false",
        _OVERLAP,
        undoes=("overlap_shared_experts",),
    ),
    layout_rule(
        "overlap_experts.mtp",
        lambda overlap_experts, n_mtp_layers, pp: (
            (overlap_experts == 0) | (n_mtp_layers == 0) | ((n_mtp_layers == 1) & (pp > 1))
        ),
        "overlap_experts takes one layer that predicts further tokens, in a pipeline, and there "
        "are {n_mtp_layers} and pp {pp}",
        "take overlap_experts=false",
        _OVERLAP,
        undoes=("overlap_experts",),
    ),
    layout_rule(
        "delay_weight_grads.overlap",
        lambda delay_weight_grads, overlap_experts: (
            (delay_weight_grads == 0) | (overlap_experts == 1)
        ),
        "delay_weight_grads puts gradients of weights beside what overlap_experts hides",
        "take delay_weight_grads=false, or overlap_experts=true",
        f"{CONFIG}: delay_wgrad_compute",
        undoes=("delay_weight_grads",),
    ),
    layout_rule(
        "overlap_shared_experts.model",
        lambda overlap_shared_experts, shared_expert_hidden: (
            (overlap_shared_experts == 0) | (shared_expert_hidden > 0)
        ),
        "overlap_shared_experts computes shared experts beside what ep sends, and the model has "
        "none",
        "take overlap_shared_experts=false",
        "ours: the same run as without",
    ),
    layout_rule(
        "overlap_shared_experts.dispatcher",
        lambda overlap_shared_experts, dispatcher: (
            (overlap_shared_experts == 0) | (dispatcher == 0)
        ),
        "overlap_shared_experts goes with the dispatcher alltoall alone",
        "take overlap_shared_experts=false, or dispatcher=alltoall",
        f"{CONFIG}: moe_shared_expert_overlap",
        undoes=("overlap_shared_experts",),
    ),
    layout_rule(
        "recompute_modules.experts",
        lambda n_experts, recompute, recompute_modules: (
            (n_experts > 1) | ~_recomputes("moe", recompute, recompute_modules)
        ),
        "recompute_modules: moe is the layer of a mixture, and the model has {n_experts} experts",
        "take mlp for a dense model",
        "ours: the module is not there. megatron/core/transformer/transformer_layer.py",
    ),
    layout_rule(
        "recompute_modules.dense",
        lambda n_experts, n_dense_layers, recompute, recompute_modules: (
            (n_experts < 2)
            | (n_dense_layers > 0)
            | ~_recomputes("mlp", recompute, recompute_modules)
        ),
        "recompute_modules: mlp is that of dense layers, and all layers have experts",
        "take moe for a mixture",
        "ours: the module is not there. megatron/core/transformer/transformer_layer.py",
    ),
    layout_rule(
        "recompute_modules.shared",
        lambda shared_expert_hidden, recompute, recompute_modules: (
            (shared_expert_hidden > 0)
            | ~_recomputes("shared_experts", recompute, recompute_modules)
        ),
        "recompute_modules: the model has no shared_experts",
        "leave shared_experts out of recompute_modules",
        "ours: the module is not there. megatron/core/transformer/moe/moe_layer.py",
    ),
    layout_rule(
        "recompute_modules.within",
        lambda recompute, recompute_modules: (
            ~_recomputes("moe", recompute, recompute_modules)
            | ~(
                _recomputes("moe_act", recompute, recompute_modules)
                | _recomputes("shared_experts", recompute, recompute_modules)
            )
        ),
        "recompute_modules: moe computes the whole layer again, with moe_act and shared_experts",
        "leave them out beside moe",
        "ours: they would be computed twice more. megatron/core/transformer/moe/moe_layer.py",
    ),
    layout_rule(
        "recompute_modules.latent",
        lambda latent_kv_rank, recompute, recompute_modules: (
            (latent_kv_rank > 0) | ~_recomputes("mla_up_proj", recompute, recompute_modules)
        ),
        "recompute_modules: mla_up_proj is that of latent attention, which the model has not",
        "leave mla_up_proj out of recompute_modules",
        f"{CONFIG}: recompute_modules",
        undoes=("recompute_modules.mla_up_proj",),
    ),
    layout_rule(
        "recompute_modules.grouped",
        lambda groups_experts, recompute, recompute_modules: (
            np.full(recompute.shape, groups_experts)
            | ~_recomputes("moe_act", recompute, recompute_modules)
        ),
        "recompute_modules: moe_act is computed again in grouped experts alone, which need "
        "Transformer Engine",
        "leave moe_act out of recompute_modules",
        f"{CONFIG}: recompute_modules, moe_grouped_gemm",
        undoes=("recompute_modules.moe_act",),
    ),
    layout_rule(
        "recompute_modules.shared_overlap",
        lambda overlap_shared_experts, recompute, recompute_modules: (
            (overlap_shared_experts == 0)
            | ~_recomputes("shared_experts", recompute, recompute_modules)
        ),
        "recompute_modules: shared_experts beside overlap_shared_experts: Megatron takes one of "
        "the two",
        "take overlap_shared_experts=false",
        f"{CONFIG}: recompute_modules, moe_shared_expert_overlap",
        undoes=("recompute_modules.shared_experts",),
    ),
)
"""Rules of experts, in the order in which they are asked."""
