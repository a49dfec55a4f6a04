"""Rules that say which arguments need others, and which exclude others."""

from autotune.engines.megatron.argument_rules.making import (
    CONFIG,
    OPTIMIZER,
    clash,
    excludes,
    needs,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Rule

_PRECISION = (
    clash(
        "precision.one",
        "fp16 bf16",
        "--fp16 and --bf16: a run has one precision",
        {"fp16": None},
    ),
    excludes("precision.fp4", "fp4", "fp8", "a run has one of them"),
    clash(
        "fp8.params",
        "fp8_param_gather !fp8",
        "--fp8-param-gather: needs --fp8-format",
        {"fp8_param_gather": None},
        CONFIG,
    ),
    clash(
        "fp8.params",
        "fp8_param_gather fp8 !use_distributed_optimizer|use_megatron_fsdp|use_torch_fsdp2",
        "--fp8-param-gather: without --use-distributed-optimizer or an FSDP no parameters are "
        "gathered",
        {"use_distributed_optimizer": True},
        CONFIG,
    ),
    excludes("graphs.one_way", "cuda_graph_impl", "enable_cuda_graph", "give one"),
    excludes("graphs.one_way", "cuda_graph_impl", "external_cuda_graph", "give one"),
)
_MODEL = (
    clash(
        "model.latent_attention",
        "multi_latent_attention group_query_attention",
        "--multi-latent-attention has no groups of queries: --group-query-attention",
        {"group_query_attention": None},
        since="0.16",
    ),
    clash(
        "model.more_tokens",
        "mtp_num_layers position_embedding_type!=rope !use_rotary_position_embeddings",
        "--mtp-num-layers: takes no --position-embedding-type other than rope or none",
        {"position_embedding_type": "rope"},
    ),
    excludes("model.activation", "swiglu", "squared_relu", "an MLP has one activation"),
    clash(
        "model.activation",
        "squared_relu !swiglu|add_bias_linear=False|bias_gelu_fusion=False",
        "--squared-relu: the bias is fused with gelu alone",
        {"bias_gelu_fusion": False},
    ),
)
_RANKS = (
    needs(
        "overlap.needs_sharding",
        "overlap_param_gather",
        "use_distributed_optimizer|use_megatron_fsdp",
    ),
    needs("overlap.gather_needs_reduce", "overlap_param_gather", "overlap_grad_reduce"),
    clash(
        "overlap.tp_needs_sequence_parallel",
        "tp_comm_overlap tensor_model_parallel_size=1",
        "--tp-comm-overlap: overlaps what --sequence-parallel sends, and "
        "--tensor-model-parallel-size is 1",
        {"tp_comm_overlap": None},
    ),
    clash(
        "overlap.tp_needs_sequence_parallel",
        "tp_comm_overlap tensor_model_parallel_size>1 !sequence_parallel",
        "--tp-comm-overlap: overlaps what --sequence-parallel sends",
        {"sequence_parallel": True},
    ),
    clash(
        "sequence_parallel.tp",
        "sequence_parallel tensor_model_parallel_size=1",
        "--sequence-parallel splits over the tensor parallel ranks, and "
        "--tensor-model-parallel-size is 1",
        {"sequence_parallel": None},
        consequence="ignored",
    ),
    clash(
        "fsdp.pipeline",
        "use_torch_fsdp2 pipeline_model_parallel_size>1",
        "--use-torch-fsdp2: shards no pipeline",
        {"pipeline_model_parallel_size": 1},
    ),
    clash(
        "fsdp.optimizer",
        "use_torch_fsdp2 use_distributed_optimizer",
        "--use-torch-fsdp2: shards the optimizer by itself, and refuses "
        "--use-distributed-optimizer",
        {"use_distributed_optimizer": None},
    ),
    clash(
        "fsdp.fusion",
        "use_torch_fsdp2 gradient_accumulation_fusion",
        "--use-torch-fsdp2: needs --no-gradient-accumulation-fusion",
        {"gradient_accumulation_fusion": False},
    ),
    clash(
        "fsdp.experts",
        "use_torch_fsdp2 expert_model_parallel_size>1",
        "--use-torch-fsdp2: spreads no experts",
        {"expert_model_parallel_size": None},
    ),
    needs("fsdp.untied", "use_torch_fsdp2", "untie_embeddings_and_output_weights"),
    excludes("fsdp.precision", "use_torch_fsdp2", "fp16", "it trains in bf16"),
)
_PIPELINE = (
    clash(
        "vp.one_way",
        "num_layers_per_virtual_pipeline_stage num_virtual_stages_per_pipeline_rank",
        "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank say "
        "the same in two ways, and Megatron takes one",
        {"num_layers_per_virtual_pipeline_stage": None},
    ),
    clash(
        "pp.layout",
        "pipeline_model_parallel_layout "
        "num_layers_per_virtual_pipeline_stage|num_virtual_stages_per_pipeline_rank",
        "--pipeline-model-parallel-layout says all chunks: no other number of them is taken",
        {
            "num_layers_per_virtual_pipeline_stage": None,
            "num_virtual_stages_per_pipeline_rank": None,
        },
    ),
    clash(
        "pp.uneven_ends",
        "account_for_embedding_in_pipeline_split|account_for_loss_in_pipeline_split "
        "decoder_first_pipeline_num_layers|decoder_last_pipeline_num_layers",
        "stages of their own size leave no room for embedding or loss as layers",
        {
            "account_for_embedding_in_pipeline_split": None,
            "account_for_loss_in_pipeline_split": None,
        },
        CONFIG,
    ),
)
_MEMORY = (
    clash(
        "recompute.saved_by_sequence",
        "distribute_saved_activations sequence_parallel",
        "--distribute-saved-activations: --sequence-parallel splits them already",
        {"distribute_saved_activations": None},
        CONFIG,
    ),
    clash(
        "recompute.saved_alone",
        "distribute_saved_activations tensor_model_parallel_size=1",
        "--distribute-saved-activations: splits over the tensor parallel ranks, and "
        "--tensor-model-parallel-size is 1",
        {"distribute_saved_activations": None},
    ),
    clash(
        "recompute.saved_alone",
        "distribute_saved_activations tensor_model_parallel_size>1 !recompute_granularity=full",
        "--distribute-saved-activations: splits what --recompute-granularity full saves",
        {"distribute_saved_activations": None},
    ),
    clash(
        "recompute.experts",
        "moe_layer_recompute recompute_granularity=full",
        "--moe-layer-recompute: --recompute-granularity full recomputes experts already",
        {"moe_layer_recompute": None},
        CONFIG,
    ),
    clash(
        "offload.modules",
        "fine_grained_activation_offloading !offload_modules",
        "--fine-grained-activation-offloading: needs --offload-modules",
        {"offload_modules": ["core_attn"]},
        CONFIG,
    ),
    needs(
        "optimizer_offload.precision_aware",
        "optimizer_cpu_offload",
        "use_precision_aware_optimizer",
    ),
    clash(
        "optimizer.precision_aware",
        "main_grads_dtype!=fp32|main_params_dtype!=fp32|exp_avg_dtype!=fp32|exp_avg_sq_dtype!=fp32"
        " !use_precision_aware_optimizer",
        "a precision of the optimizer other than fp32 needs --use-precision-aware-optimizer",
        {"use_precision_aware_optimizer": True},
        OPTIMIZER,
    ),
    clash(
        "optimizer.precision_aware",
        "use_precision_aware_optimizer optimizer!=adam",
        "--use-precision-aware-optimizer: takes --optimizer adam alone",
        {"use_precision_aware_optimizer": None},
        OPTIMIZER,
    ),
    needs(
        "optimizer.precision_aware",
        "use_precision_aware_optimizer",
        "use_distributed_optimizer",
        OPTIMIZER,
    ),
)
_EXPERTS = (
    clash(
        "experts.none",
        "expert_model_parallel_size>1 !num_experts",
        "--expert-model-parallel-size spreads experts, and --num-experts gives none",
        {"expert_model_parallel_size": None},
    ),
    clash(
        "experts.width_of_dense",
        "moe_ffn_hidden_size !num_experts",
        "--moe-ffn-hidden-size is the width of experts, and --num-experts gives none",
        {"moe_ffn_hidden_size": None},
        CONFIG,
    ),
    clash(
        "experts.precision",
        "moe_grouped_gemm !bf16",
        "--moe-grouped-gemm: needs --bf16 before Megatron Core 0.16",
        {"bf16": True, "fp16": None},
        before="0.16",
    ),
    clash(
        "experts.precision",
        "expert_model_parallel_size>1 fp16",
        "--expert-model-parallel-size above 1: trains no --fp16 before Megatron Core 0.16",
        {"fp16": None, "bf16": True},
        before="0.16",
    ),
    clash(
        "experts.bias",
        "num_experts add_bias_linear",
        "experts have no biases in Megatron Core 0.14",
        {"add_bias_linear": False},
        CONFIG,
        before="0.15",
    ),
    clash(
        "experts.bias",
        "num_experts add_bias_linear expert_tensor_parallel_size>1|tensor_model_parallel_size>1 "
        "!expert_tensor_parallel_size=1",
        "experts with biases have one tensor parallel rank",
        {"add_bias_linear": False},
        CONFIG,
        advice="or set --expert-tensor-parallel-size to 1",
        since="0.15",
    ),
    clash(
        "experts.shared_bias",
        "moe_shared_expert_intermediate_size num_experts add_bias_linear",
        "--moe-shared-expert-intermediate-size: shared experts have no biases",
        {"add_bias_linear": False},
        "megatron/core/transformer/moe/shared_experts.py",
    ),
    clash(
        "experts.router",
        "moe_router_enable_expert_bias moe_router_score_function!=sigmoid",
        "--moe-router-enable-expert-bias: takes --moe-router-score-function sigmoid alone",
        {"moe_router_score_function": "sigmoid"},
        CONFIG,
    ),
    clash(
        "experts.router",
        "moe_router_topk=1 num_experts moe_router_score_function=softmax "
        "!moe_router_pre_softmax|moe_router_load_balancing_type=sinkhorn",
        "--moe-router-topk 1: needs --moe-router-pre-softmax",
        {"moe_router_pre_softmax": True},
        CONFIG,
    ),
    needs(
        "experts.groups", "moe_router_group_topk", "moe_router_num_groups", CONFIG, removes=True
    ),
    clash(
        "experts.dispatcher",
        "moe_enable_deepep moe_token_dispatcher_type!=flex",
        "--moe-enable-deepep: takes --moe-token-dispatcher-type flex alone",
        {"moe_token_dispatcher_type": "flex"},
        CONFIG,
    ),
)
_TRAINING = (
    clash(
        "batch.micro",
        "!micro_batch_size|batch_size",
        "--micro-batch-size is missing, and has no default",
        {"micro_batch_size": 1},
    ),
    clash(
        "schedule.iters",
        "train_iters train_samples",
        "--train-iters and --train-samples: a run has one length",
        {"train_samples": None},
    ),
    clash(
        "schedule.iters",
        "train_iters !train_samples lr_decay_samples|lr_warmup_samples",
        "a schedule in samples: --train-iters counts the run in steps",
        {"lr_decay_samples": None, "lr_warmup_samples": None},
        advice="or give them in steps",
    ),
    clash(
        "schedule.iters",
        "train_iters !train_samples rampup_batch_size",
        "--rampup-batch-size: --train-iters counts the run in steps",
        {"rampup_batch_size": None},
        advice="or count the run by --train-samples",
    ),
    clash(
        "schedule.samples",
        "train_samples !train_iters lr_decay_iters|lr_warmup_iters",
        "a schedule in steps: --train-samples counts the run in samples",
        {"lr_decay_iters": None, "lr_warmup_iters": None},
        advice="or give them in samples",
    ),
    clash(
        "schedule.warmup",
        "lr_warmup_fraction lr_warmup_iters|lr_warmup_samples",
        "--lr-warmup-fraction: no other length of the warm-up is taken beside it",
        {"lr_warmup_iters": None, "lr_warmup_samples": None},
    ),
    clash(
        "checkpoint.interval",
        "save !save_interval",
        "--save: needs --save-interval",
        {"save_interval": 1000},
        advice="or another number",
    ),
    clash(
        "checkpoint.format",
        "use_megatron_fsdp ckpt_format!=fsdp_dtensor",
        "--use-megatron-fsdp: saves --ckpt-format fsdp_dtensor alone",
        {"ckpt_format": "fsdp_dtensor"},
    ),
    clash(
        "checkpoint.format",
        "use_torch_fsdp2 !ckpt_format=torch_dist|ckpt_format=torch_dcp",
        "--use-torch-fsdp2: saves --ckpt-format torch_dist or torch_dcp",
        {"ckpt_format": "torch_dist"},
    ),
    clash(
        "checkpoint.format",
        "ckpt_format=fsdp_dtensor !use_megatron_fsdp|use_torch_fsdp2",
        "--ckpt-format fsdp_dtensor: is that of --use-megatron-fsdp",
        {"ckpt_format": None},
    ),
    clash(
        "checkpoint.format",
        "ckpt_format=torch_dcp !use_megatron_fsdp|use_torch_fsdp2",
        "--ckpt-format torch_dcp: is that of --use-torch-fsdp2",
        {"ckpt_format": None},
    ),
)

RULES: tuple[Rule[MegatronLaunch], ...] = (
    *(*_MODEL, *_PRECISION, *_RANKS, *_PIPELINE, *_MEMORY, *_EXPERTS, *_TRAINING),
)
