"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

import numpy as np

from autotune.cost.plans import Recompute
from autotune.engines.megatron import expert_rules, stage_rules
from autotune.engines.megatron.choices import (
    CP_KINDS,
    GRAPHS,
    OFFLOADED,
    RECOMPUTED,
    has,
)
from autotune.engines.megatron.layout_rule import (
    ARGUMENTS,
    CONFIG,
    PRECISION_AWARE,
    RECIPES,
    SAME_RUN,
    TABLE,
    excludes,
    layout_rule,
    needs,
)
from autotune.engines.megatron.layout_task import Counts, LayoutRows, Truth, middle_layers
from autotune.space.rule import Rule

ON_GPU_ALONE = (
    *("fsdp", "optimizer_offload", "activation_offload", "offload_modules"),
    *("tp_comm_overlap", "fp8", "fp4", "cuda_graphs", "adam_moments", "nccl_ub", "fused_experts"),
)
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE = {
    "optimizer_offload": "megatron/core/optimizer/__init__.py: bias_correction, which "
    "torch's Adam does not take",
    "activation_offload": "megatron/core/transformer/transformer_block.py: "
    "get_cpu_offload_context",
    "offload_modules": "megatron/core/pipeline_parallel/fine_grained_activation_offload.py",
    "tp_comm_overlap": "megatron/training/initialize.py: _initialize_tp_communicators",
    "fp8": "megatron/core/fp8_utils.py: HAVE_TE",
    "fp4": "megatron/core/fp4_utils.py: HAVE_TE",
    "cuda_graphs": "megatron/core/transformer/cuda_graphs.py: TECudaGraphHelper",
    "adam_moments": "megatron/core/optimizer/__init__.py: Transformer Engine's FusedAdam",
    "fused_experts": "megatron/core/transformer/moe/experts.py: _is_fused_impl_supported",
}
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
_INSTALL_TE = ", or install transformer-engine for your GPUs"
OF_SOME_RELEASES = {
    "activation_offload": "--cpu-offloading-num-layers",
    "offload_modules": "--fine-grained-activation-offloading",
    "fp4": "--fp4-format",
    "cuda_graphs": "--cuda-graph-impl",
    "fused_experts": "--use-transformer-engine-op-fuser",
}
"""Knob -> its flag, where not every release has it that is known."""


_A2A = CP_KINDS.index("a2a")


def _splits_unevenly(n_layers: int, pp: Counts, vp: Counts, first: Counts, last: Counts) -> Truth:
    rest, stages = middle_layers(n_layers, pp, first, last)
    is_even = (first == 0) & (last == 0)
    chunks = np.maximum(1, stages * vp)
    middle = np.where(stages > 0, (rest > 0) & (rest % chunks == 0), rest == 0)
    split: Truth = is_even | (pp == 1) | middle & (first % vp == 0) & (last % vp == 0)
    return split


def _fills_groups(grad_accum: Counts, group: int, pp: Counts) -> Truth:
    rest = grad_accum % max(1, group)
    fills: Truth = (pp <= group) & (group <= grad_accum) & ((rest == 0) | (rest >= pp))
    return fills


RULES: tuple[Rule[LayoutRows], ...] = (
    layout_rule(
        "sequence.positions",
        "max_seq_len seq_len>max_seq_len",
        "seq_len {seq_len} is above the model's {max_seq_len} positions",
        "take a seq_len of at most {max_seq_len}",
        "megatron/training/arguments.py, validate_args: max_position_embeddings",
    ),
    layout_rule(
        "tp.heads",
        lambda n_heads, tp: n_heads % tp == 0,
        "n_heads {n_heads} is no multiple of tp {tp}",
        "take a tp that divides {n_heads}",
        "megatron/core/transformer/transformer_config.py: num_attention_heads",
    ),
    layout_rule(
        "tp.kv_heads",
        lambda n_kv_heads, tp, shares_kv_heads: (
            (n_kv_heads % tp == 0) | (shares_kv_heads & (tp % n_kv_heads == 0))
        ),
        "n_kv_heads {n_kv_heads} is no multiple of tp {tp}, and no divisor of it, which counts "
        "from Megatron Core 0.16 on",
        "take a tp that divides {n_kv_heads}, or from 0.16 on a multiple of it",
        "megatron/core/transformer/transformer_config.py: num_query_groups",
    ),
    layout_rule(
        "tp.ffn",
        lambda ffn_hidden, n_experts, dense_ffn_hidden, shared_expert_hidden, tp: (
            (dense_ffn_hidden % tp == 0) & (shared_expert_hidden % tp == 0)
            if n_experts > 1
            else ffn_hidden % tp == 0
        ),
        "the width of an MLP that every token passes is no multiple of tp {tp}",
        "take a tp that divides it",
        "megatron/core/tensor_parallel/layers.py, ColumnParallelLinear: divide",
    ),
    layout_rule(
        "tp.domain",
        "tp>domain",
        "tp {tp} reaches beyond the {domain} devices that are joined without the network",
        "take a tp of at most {domain}",
        "ours: what NVIDIA recommends in megatron/core/transformer/moe/README.md",
    ),
    layout_rule(
        "pp.layers",
        "pp>n_layers",
        "pp {pp} is more than the model's {n_layers} layers",
        "take a pp of at most {n_layers}",
        "ours: every stage has a layer",
    ),
    layout_rule(
        "world.product",
        lambda world, tp, pp, cp: world % (tp * pp * cp) == 0,
        "world {world} is no multiple of tp {tp} x pp {pp} x cp {cp}",
        "take degrees whose product divides {world}",
        "megatron/training/arguments.py, validate_args: total_model_size",
    ),
    layout_rule(
        "cp.sequence",
        lambda cp, seq_len: (cp == 1) | (seq_len % (2 * cp) == 0),
        "seq_len {seq_len} is no multiple of 2 x cp {cp}",
        "take a cp of which twice divides {seq_len}",
        "megatron/training/arguments.py, validate_args: seq_length",
    ),
    needs(
        "cp.fused_attention",
        "cp>1",
        "fused_attention",
        "megatron/core/transformer/dot_product_attention.py: context_parallel_size",
    ),
    layout_rule(
        "ep.experts",
        lambda ep, n_experts: (ep == 1) | (max(1, n_experts) % ep == 0),
        "n_experts {n_experts} is no multiple of ep {ep}",
        "take an ep that divides the number of experts; 1 for a dense model",
        "megatron/training/arguments.py, validate_args: expert_model_parallel_size",
    ),
    layout_rule(
        "ep.ranks",
        lambda world, tp, etp, pp, ep: world % (np.where(etp > 0, etp, tp) * pp * ep) == 0,
        "world {world} is no multiple of pp {pp} x ep {ep} x the experts' tensor parallel degree "
        "(etp {etp}, or where that is 0 tp {tp})",
        "take an ep that divides dp x cp, or a smaller etp",
        "megatron/core/parallel_state.py, initialize_model_parallel: the expert grid",
    ),
    layout_rule(
        "sequence_parallel.tp",
        "sequence_parallel !tp>1",
        "sequence_parallel splits over the tensor parallel ranks, and tp is 1",
        "take sequence_parallel=false, or a tp above 1",
        "megatron/core/model_parallel_config.py: sequence_parallel",
        consequence="ignored",
    ),
    layout_rule(
        "sequence_parallel.sequence",
        lambda seq_len, tp, cp, sequence_parallel: (
            (sequence_parallel == 0) | (seq_len // cp % tp == 0)
        ),
        "a rank's sequence, {seq_len} / cp {cp}, is no multiple of tp {tp}",
        "take sequence_parallel=false, or a tp that divides it",
        "megatron/core/tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    needs(
        "sequence_parallel.experts",
        "n_experts>1 tp>1",
        "sequence_parallel",
        "megatron/core/transformer/moe/moe_layer.py, MoELayer.forward",
    ),
    needs(
        "vp.pipeline",
        "vp>1",
        "pp>1",
        "megatron/training/arguments.py, validate_args: overlap_p2p_comm",
    ),
    layout_rule(
        "vp.layers",
        lambda pp, vp, ends_as_layers, n_layers, stages: (
            (pp * vp <= n_layers + 2 * ends_as_layers * (vp > 1)) | (stages > 0)
        ),
        "pp {pp} x vp {vp} is more than the model's {n_layers} layers",
        "take a vp x pp of at most {n_layers}",
        "ours: every chunk has a layer, or with ends_as_layers the embedding or the loss",
    ),
    layout_rule(
        "pp.split",
        lambda n_layers, pp, vp, ends_as_layers, first_stage_layers, last_stage_layers, stages: (
            ((n_layers + 2 * ends_as_layers) % (pp * vp) == 0)
            | (stages > 0)
            | (first_stage_layers > 0)
            | (last_stage_layers > 0)
        ),
        "{n_layers} layers, and 2 more where ends_as_layers counts them, do not split evenly into "
        "pp {pp} x vp {vp} chunks",
        "take ends_as_layers=true where 2 more make them even, or stages=balanced, which places "
        "them by their work",
        "megatron/core/transformer/transformer_config.py: num_layers, "
        "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split",
    ),
    layout_rule(
        "pp.ends",
        lambda n_layers, pp, vp, ends_as_layers: (
            (ends_as_layers == 0) | (n_layers % (pp * vp) != 0)
        ),
        "{n_layers} layers split evenly into pp {pp} x vp {vp} chunks as they are",
        "take ends_as_layers=false",
        "ours: where both splits exist they are the same one",
    ),
    layout_rule(
        "batch.product",
        lambda global_batch, dp, micro_batch: global_batch % (micro_batch * dp) == 0,
        "global_batch {global_batch} is no multiple of micro_batch {micro_batch} x dp {dp}",
        "take a micro_batch and degrees that make micro_batch x dp divide {global_batch}",
        "megatron/core/num_microbatches_calculator.py: global_batch_size",
    ),
    layout_rule(
        "vp.micro_batches",
        lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | (grad_accum % pp == 0) | np.full(pp.shape, vp_group > 0)
        ),
        "interleaved chunks need a multiple of pp {pp} micro-batches, and there are {grad_accum}",
        "take vp=1, or a smaller micro_batch",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: microbatch_group_size_per_vp_stage, "
        "which is pp where nobody sets it",
    ),
    layout_rule(
        "vp.groups",
        lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | np.full(pp.shape, vp_group < 1) | _fills_groups(grad_accum, vp_group, pp)
        ),
        "interleaved chunks take groups of pp {pp} to {grad_accum} micro-batches, the last one "
        "too, and vp_group {vp_group} makes others of {grad_accum}",
        "take a group that divides {grad_accum}",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: final_microbatch_group_size",
    ),
    needs("distributed_optimizer.ranks", "distributed_optimizer", "dp>1|cp>1", SAME_RUN),
    layout_rule(
        "recompute.selective",
        "recompute=selective fused_attention !recompute_modules",
        "selective drops attention's scores, which the fused kernel never keeps",
        "take recompute=none, or full to save memory",
        "ours: slower than none, and no smaller. Korthikanti et al. (arXiv:2205.05198), "
        "section 5, for what it drops",
    ),
    layout_rule(
        "recompute.block",
        lambda n_layers, pp, vp, ends_as_layers, recompute, recompute_layers: (
            (recompute_layers == 0)
            | (recompute_layers > 0)
            & (recompute_layers < (n_layers + 2 * ends_as_layers) // (pp * vp))
            & (recompute == Recompute.FULL)
        ),
        "block_{recompute_layers} recomputes as many layers as a chunk has, or more",
        "take recompute=full, or fewer layers than one of the pp {pp} x vp {vp} chunks has",
        "megatron/core/recompute.py: recompute_num_layers, counted in each chunk",
    ),
    *stage_rules.RULES,
    needs(
        "uneven.pipeline",
        "first_stage_layers|last_stage_layers",
        "pp>1",
        f"{CONFIG}: num_layers_in_first_pipeline_stage",
    ),
    layout_rule(
        "uneven.split",
        lambda n_layers, pp, vp, first_stage_layers, last_stage_layers: _splits_unevenly(
            n_layers, pp, vp, first_stage_layers, last_stage_layers
        ),
        "{n_layers} layers less {first_stage_layers} of the first and {last_stage_layers} of the "
        "last stage do not split evenly over the other stages of pp {pp} x vp {vp} chunks",
        "take other numbers of layers, so that every chunk has as many as its neighbours",
        f"{CONFIG}: num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage",
    ),
    layout_rule(
        "uneven.same",
        lambda n_layers, pp, first_stage_layers, last_stage_layers: (
            ((first_stage_layers == 0) & (last_stage_layers == 0))
            | (n_layers % pp != 0)
            | ((first_stage_layers != n_layers // pp) & (first_stage_layers > 0))
            | ((last_stage_layers != n_layers // pp) & (last_stage_layers > 0))
        ),
        "first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers} are "
        "what {n_layers} layers over pp {pp} have anyway",
        "leave them out",
        SAME_RUN,
    ),
    excludes(
        "uneven.ends",
        "ends_as_layers",
        "first_stage_layers|last_stage_layers",
        f"{CONFIG}: account_for_embedding_in_pipeline_split",
    ),
    layout_rule(
        "uneven.block",
        lambda recompute_layers, first_stage_layers, last_stage_layers, stages: (
            (recompute_layers == 0)
            | ((first_stage_layers == 0) & (last_stage_layers == 0) & (stages == 0))
        ),
        "block_{recompute_layers} counts in each chunk, and the stages have different sizes",
        "take recompute=full or none",
        "ours: a share of the layers of every stage",
    ),
    *expert_rules.RULES,
    layout_rule(
        "order.experts",
        lambda order, world, tp, pp, cp, ep, etp: (
            (order == 0) | (pp == 1) | (np.where(etp > 0, etp, tp) * ep == tp * cp)
        ),
        "with pipelines as the nearer axis, experts need as many replicas as the other layers",
        "take the default order, or an ep x etp of tp x cp",
        "megatron/core/parallel_state.py, initialize_model_parallel: pp-last rank ordering",
    ),
    needs("fsdp.sharded", "fsdp", "distributed_optimizer", f"{ARGUMENTS}: use_megatron_fsdp"),
    excludes(
        "fsdp.pipeline_chunks",
        "fsdp",
        "vp>1",
        "ours: Megatron's documentation shows fsdp with plain pipelines alone",
    ),
    layout_rule(
        "overlap.gather_needs_reduce",
        "distributed_optimizer overlap_grad_reduce !overlap_param_gather",
        "overlap_param_gather needs overlap_grad_reduce",
        "take overlap_grad_reduce=true, or overlap_param_gather=false as well",
        f"{ARGUMENTS}: overlap_param_gather",
    ),
    layout_rule(
        "overlap.p2p",
        "overlap_p2p vp>1 !pp>2",
        "chunks of pp {pp} stages whose sends do not overlap have two between the same ranks at "
        "a time",
        "take overlap_p2p=true, or a pp above 2",
        f"{ARGUMENTS}: overlap_p2p_comm",
    ),
    layout_rule(
        "overlap.tp_needs_sequence_parallel",
        "tp_comm_overlap sequence_parallel=0|tp=1",
        "tp_comm_overlap needs sequence_parallel, which a tp of 1 turns off",
        "take sequence_parallel=true with a tp above 1, or leave tp_comm_overlap out",
        f"{ARGUMENTS}: tp_comm_overlap",
    ),
    needs(
        "optimizer_offload.sharded", "optimizer_offload", "distributed_optimizer", PRECISION_AWARE
    ),
    excludes(
        "optimizer_offload.fsdp",
        "optimizer_offload",
        "fsdp",
        "ours: megatron/core/optimizer/cpu_offloading knows no shards of FSDP's",
    ),
    excludes(
        "optimizer_offload.fp8",
        "optimizer_offload fp8_param_gather",
        "fp8_recipe",
        f"{ARGUMENTS}: optimizer_cpu_offload",
    ),
    layout_rule(
        "activation_offload.layers",
        "activation_offload>=n_layers",
        "activation_offload {activation_offload} is no less than the model's {n_layers} layers",
        "take less than {n_layers}",
        f"{CONFIG}: cpu_offloading_num_layers",
    ),
    excludes(
        "activation_offload.pipeline", "activation_offload", "pp>1", f"{CONFIG}: cpu_offloading"
    ),
    excludes(
        "activation_offload.recompute",
        "activation_offload",
        "recompute",
        f"{CONFIG}: cpu_offloading",
    ),
    excludes(
        "offload_modules.layers",
        "offload_modules",
        "activation_offload",
        f"{CONFIG}: fine_grained_activation_offloading",
    ),
    layout_rule(
        "offload_modules.recompute",
        lambda offload_modules, recompute, recompute_modules: (
            (offload_modules == 0)
            | (recompute != Recompute.FULL)
            & (
                (recompute != Recompute.SELECTIVE)
                | ~(
                    has("core_attn", OFFLOADED, offload_modules)
                    & has("core_attn", RECOMPUTED, recompute_modules)
                )
            )
        ),
        "offload_modules names what is computed again, and so not kept",
        "take recompute=none, or other modules",
        "ours: there is nothing to offload",
    ),
    layout_rule(
        "recompute_modules.scores",
        "recompute=selective recompute_modules recompute_modules~core_attn fused_attention",
        "core_attn drops attention's scores, which the fused kernel never keeps",
        "leave core_attn out of recompute_modules",
        "ours: slower, and no smaller",
    ),
    needs(
        "recompute_modules.fp8",
        "recompute=selective fp8 recompute_modules~layernorm|recompute_modules~moe_act",
        "fp8_recipe",
        f"{CONFIG}: recompute_modules",
    ),
    needs("adam_moments.sharded", "adam_moments", "distributed_optimizer", PRECISION_AWARE),
    excludes(
        "adam_moments.offload",
        "adam_moments",
        "optimizer_offload",
        "ours: megatron/core/optimizer/cpu_offloading, HybridDeviceOptimizer",
    ),
    needs(
        "main_grads.precision",
        "main_grads",
        "in_bf16",
        f"ours: {ARGUMENTS}: grad_reduce_in_bf16 does nothing then",
    ),
    needs("fsdp.double_buffer", "fsdp_double_buffer", "fsdp", SAME_RUN),
    needs("cp_kind.ranks", "cp_kind", "cp>1", SAME_RUN),
    layout_rule(
        "cp_kind.heads",
        lambda cp_kind, cp, tp, n_kv_heads: (
            (cp_kind != _A2A) | (n_kv_heads % np.maximum(1, tp * cp) == 0)
        ),
        "cp_kind a2a splits the {n_kv_heads} key and value heads over tp {tp} x cp {cp} ranks",
        "take cp_kind=p2p, or a cp that divides a rank's heads",
        "ours: Transformer Engine, AttnFuncWithCPAndQKVOA2A",
    ),
    excludes(
        "cp_kind.latent",
        "cp_kind",
        "latent_kv_rank",
        "ours: Transformer Engine, attn_forward_func_with_cp: enable_mla",
    ),
    needs(
        "cp_kind.sinks",
        "cp>1 has_sinks",
        "cp_kind=a2a",
        "ours: Transformer Engine, get_attention_backend: softmax_type, and "
        "attn_forward_func_with_cp: sliding_window_attn",
    ),
    excludes(
        "cuda_graphs.recompute", "cuda_graphs", "recompute=full", f"{CONFIG}: cuda_graph_scope"
    ),
    excludes(
        "cuda_graphs.moe_recompute",
        "recompute=selective cuda_graphs~moe_router",
        "recompute_modules~moe",
        f"{CONFIG}: cuda_graph_scope, recompute_modules",
    ),
    layout_rule(
        "cuda_graphs.experts",
        lambda cuda_graphs, n_experts, n_dense_layers: (
            (~has("moe_router", GRAPHS, cuda_graphs) | (n_experts > 1))
            & (~has("mlp", GRAPHS, cuda_graphs) | (n_experts < 2) | (n_dense_layers > 0))
        ),
        "cuda_graphs name moe_router for a mixture's layers and mlp for dense ones, and the model "
        "has {n_experts} experts",
        "take cuda_graphs=attn",
        f"{CONFIG}: cuda_graph_scope",
    ),
    excludes(
        "cuda_graphs.overlap",
        "cuda_graphs~mlp",
        "overlap_experts",
        f"{CONFIG}: overlap_moe_expert_parallel_comm",
    ),
    layout_rule(
        "cuda_graphs.biases",
        "from_0_17 !overlap_grad_reduce delay_weight_grads cuda_graphs~attn has_attention_biases",
        "cuda_graphs with attn capture attention, whose biases have no delayed weight gradients "
        "beside overlap_grad_reduce from Megatron Core 0.17 on",
        "take delay_weight_grads=false, or leave attn out of cuda_graphs",
        f"{ARGUMENTS}: delay_wgrad_compute",
    ),
    excludes(
        "cuda_graphs.offload", "cuda_graphs", "activation_offload", f"{CONFIG}: cpu_offloading"
    ),
    excludes("fp4.fp8", "fp4", "fp8", f"{ARGUMENTS}: fp4"),
    excludes("fp4.precision", "fp4", "in_fp32", RECIPES),
    needs("fp4.device", "fp4", "has_fp4", TABLE),
    excludes("fp8.precision", "fp8", "in_fp32", RECIPES),
    needs("fp8.device", "fp8", "has_fp8", TABLE),
    needs(
        "fp8.mxfp8",
        "fp8 fp8_recipe=mxfp8",
        "has_fp4",
        "ours: the table of accelerators; transformer_engine/pytorch/fp8.py, check_mxfp8_support",
    ),
    needs(
        "fp8.gather", "fp8_param_gather", "distributed_optimizer", f"{ARGUMENTS}: fp8_param_gather"
    ),
    layout_rule(
        "recompute_modules.transformer_engine",
        "recompute=selective recompute_modules~layernorm without_te",
        "recompute_modules with layernorm needs Transformer Engine, which is not installed",
        f"leave layernorm out of recompute_modules{_INSTALL_TE}",
        "megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput: FP8GlobalStateManager",
    ),
    *(
        layout_rule(
            f"{knob}.gpu",
            f"{knob} on_cpu",
            f"{knob} needs a GPU",
            f"leave {knob} out",
            "ours: what runs on no CPU rank",
        )
        for knob in ON_GPU_ALONE
    ),
    layout_rule(
        "sequence_parallel.transformer_engine",
        "sequence_parallel has_torch_norms",
        "sequence_parallel needs Transformer Engine, or for LayerNorm Apex, which is not there",
        f"leave sequence_parallel out{_INSTALL_TE}",
        "megatron/core/transformer/torch_norm.py: sequence_parallel; models/backends.py: LNImpl",
    ),
    *(
        layout_rule(
            f"{knob}.transformer_engine",
            f"{knob} without_te",
            f"{knob} needs Transformer Engine, which is not installed",
            f"leave {knob} out{_INSTALL_TE}",
            source,
        )
        for knob, source in OF_TRANSFORMER_ENGINE.items()
    ),
    *(
        layout_rule(
            f"{knob}.release",
            f"{knob} lacking~{knob}",
            f"{knob}: Megatron Core {{release}} has no such flag",
            f"leave {knob} out, or use a release that has it",
            "ours: the table of the releases' flags",
        )
        for knob in OF_SOME_RELEASES
    ),
)
