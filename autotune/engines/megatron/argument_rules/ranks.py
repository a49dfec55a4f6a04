"""Rules of ranks: how they share the model and the sequence, and when they communicate."""

from autotune.engines.launches.devices import too_few, visible_devices
from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CHUNKED,
    CONFIG,
    Answer,
    argument_rule,
    as_word,
    excludes,
    flag_name,
    is_on,
    needs,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Patch, UnknownFactError


@argument_rule("overlap.needs_sharding", f"{ARGUMENTS}: overlap_param_gather")
def _gather_needs_sharding(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather without the distributed optimizer or Megatron's FSDP."""
    sharded = launch.get("use_distributed_optimizer") or launch.get("use_megatron_fsdp")
    if launch.get("overlap_param_gather") and not sharded:
        return (
            "--overlap-param-gather: without --use-distributed-optimizer no parameters are "
            "gathered",
            {"use_distributed_optimizer": True},
        )
    return None


@argument_rule("overlap.gather_needs_reduce", f"{ARGUMENTS}: overlap_param_gather")
def _gather_needs_reduce(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather without --overlap-grad-reduce."""
    if launch.get("overlap_param_gather") and not launch.get("overlap_grad_reduce"):
        return (
            "--overlap-param-gather: needs --overlap-grad-reduce",
            {"overlap_grad_reduce": True},
        )
    return None


@argument_rule(
    "overlap.with_optimizer_step", f"{ARGUMENTS}: overlap_param_gather_with_optimizer_step"
)
def _gather_with_step(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather-with-optimizer-step without --overlap-param-gather."""
    asked = launch.get("overlap_param_gather_with_optimizer_step")
    if asked and not launch.get("overlap_param_gather"):
        return (
            "--overlap-param-gather-with-optimizer-step: needs --overlap-param-gather",
            {"overlap_param_gather_with_optimizer_step": None},
        )
    return None


@argument_rule("overlap.tp_needs_sequence_parallel", f"{ARGUMENTS}: tp_comm_overlap")
def _tp_overlap(launch: MegatronLaunch) -> Answer:
    """--tp-comm-overlap without --sequence-parallel."""
    is_on = launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") > 1
    if launch.get("tp_comm_overlap") and not is_on:
        change: Patch = {"sequence_parallel": True}
        if launch.get("tensor_model_parallel_size") == 1:
            change = {"tp_comm_overlap": None}
        return "--tp-comm-overlap: overlaps what --sequence-parallel sends", change
    return None


@argument_rule("sequence_parallel.tp", f"{ARGUMENTS}: sequence_parallel", "ignored")
def _sequence_parallel(launch: MegatronLaunch) -> Answer:
    """--sequence-parallel with one tensor parallel rank: Megatron turns it off."""
    if launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") == 1:
        return (
            "--sequence-parallel splits over the tensor parallel ranks, and "
            "--tensor-model-parallel-size is 1",
            {"sequence_parallel": None},
        )
    return None


@argument_rule("fsdp.pipeline", f"{ARGUMENTS}: use_torch_fsdp2")
def _fsdp_pipeline(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with a pipeline."""
    if launch.get("use_torch_fsdp2") and launch.get("pipeline_model_parallel_size") > 1:
        return (
            "--use-torch-fsdp2: shards no pipeline",
            {"pipeline_model_parallel_size": 1},
        )
    return None


@argument_rule("fsdp.optimizer", f"{ARGUMENTS}: use_torch_fsdp2")
def _fsdp_optimizer(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with the distributed optimizer."""
    if launch.get("use_torch_fsdp2") and launch.get("use_distributed_optimizer"):
        return (
            "--use-torch-fsdp2: shards the optimizer by itself, and refuses "
            "--use-distributed-optimizer",
            {"use_distributed_optimizer": None},
        )
    return None


@argument_rule("overlap.step_chunks", f"{ARGUMENTS}: overlap_param_gather_with_optimizer_step")
def _step_chunks(launch: MegatronLaunch) -> Answer:
    """--overlap-param-gather-with-optimizer-step without what it is built on."""
    name = "overlap_param_gather_with_optimizer_step"
    if not is_on(launch, name) or not is_on(launch, "overlap_param_gather"):
        return None
    chunked = any(
        launch.get(argument) for argument in (*CHUNKED, "pipeline_model_parallel_layout")
    )
    if not is_on(launch, "use_distributed_optimizer"):
        lacking = "--use-distributed-optimizer"
    elif not chunked:
        lacking = "interleaved chunks, --num-virtual-stages-per-pipeline-rank"
    elif launch.get("ckpt_format") != "torch":
        lacking = "--ckpt-format torch"
    else:
        return None
    return f"{flag_name(name)}: needs {lacking}", {name: None}


@argument_rule("cp.levels", f"{ARGUMENTS}: hierarchical_context_parallel_sizes")
def _levels(launch: MegatronLaunch) -> Answer:
    """--cp-comm-type a2a+p2p without sizes of its levels, or sizes of another product."""
    sizes, kinds = launch.get("hierarchical_context_parallel_sizes"), launch.get("cp_comm_type")
    cp = launch.get("context_parallel_size")
    if sizes:
        product = 1
        for size in sizes:
            product *= size
        if product != cp:
            return (
                f"--hierarchical-context-parallel-sizes {as_word(sizes)} make {product}, and "
                f"--context-parallel-size is {cp}",
                {},
                "make them equal",
            )
    elif kinds and "a2a+p2p" in kinds:
        return (
            "--cp-comm-type a2a+p2p: needs --hierarchical-context-parallel-sizes",
            {"cp_comm_type": None},
        )
    return None


@argument_rule("cp.kinds", f"{CONFIG}: cp_comm_type")
def _kinds(launch: MegatronLaunch) -> Answer:
    """--cp-comm-type with several kinds, but not one for each layer."""
    kinds, layers = launch.get("cp_comm_type"), launch.get("num_layers")
    if launch.get("context_parallel_size") == 1 or not isinstance(kinds, list) or not layers:
        return None
    if len(kinds) > 1 and len(kinds) != layers:
        return (
            f"--cp-comm-type names {len(kinds)}, and the model has {layers} layers",
            {"cp_comm_type": kinds[:1]},
            "or name one for each layer",
        )
    return None


@argument_rule("cp.hybrid", f"{ARGUMENTS}: hybrid_context_parallel")
def _hybrid(launch: MegatronLaunch) -> Answer:
    """--hybrid-context-parallel with a pipeline, or without --calculate-per-token-loss."""
    if not is_on(launch, "hybrid_context_parallel"):
        return None
    if launch.get("pipeline_model_parallel_size") > 1:
        return "--hybrid-context-parallel: goes with no pipeline", {
            "hybrid_context_parallel": None
        }
    if not is_on(launch, "calculate_per_token_loss"):
        return "--hybrid-context-parallel: needs --calculate-per-token-loss", {
            "calculate_per_token_loss": True
        }
    return None


@argument_rule("environment.connections", f"{ARGUMENTS}: CUDA_DEVICE_MAX_CONNECTIONS")
def _connections(launch: MegatronLaunch) -> Answer:
    """CUDA_DEVICE_MAX_CONNECTIONS that the file sets to another value than Megatron asks for."""
    value = launch.variables.get(CONNECTIONS)
    if value is None or "$" in value:
        return None
    for name in ("use_megatron_fsdp", "use_torch_fsdp2"):
        if is_on(launch, name):
            if value != "1":
                return None
            return (
                f"{flag_name(name)}: asks for a {CONNECTIONS} other than 1, and it is set to 1",
                {},
                f"set {CONNECTIONS} to 8, or leave it out",
            )
    if is_on(launch, "overlap_moe_expert_parallel_comm") or value == "1":
        return None
    if asks_for_connections(launch):
        return (
            f"tensor and context parallel ranks ask for {CONNECTIONS}=1 on GPUs before "
            f"Blackwell, and it is set to {value}",
            {},
            f"set {CONNECTIONS} to 1",
        )
    return None


@argument_rule("environment.visible_devices", "megatron/training/initialize.py: set_device")
def _visible(launch: MegatronLaunch) -> Answer:
    """CUDA_VISIBLE_DEVICES that leaves fewer devices than a node has ranks."""
    found = too_few(visible_devices(launch.variables), launch.per_node)
    return None if found is None else (found[0], {}, found[1])


CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


def asks_for_connections(launch: MegatronLaunch) -> bool:
    """True if Megatron asks for CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    sharded = ("use_megatron_fsdp", "use_torch_fsdp2", "overlap_moe_expert_parallel_comm")
    try:
        splits = ("tensor_model_parallel_size", "context_parallel_size")
        is_split = any(launch.get(name) > 1 for name in splits)
        return is_split and not any(is_on(launch, argument) for argument in sharded)
    except UnknownFactError:
        return False


@argument_rule("fsdp.fusion", f"{ARGUMENTS}: use_torch_fsdp2")
def _fsdp_fusion(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 without --no-gradient-accumulation-fusion."""
    if is_on(launch, "use_torch_fsdp2") and is_on(launch, "gradient_accumulation_fusion"):
        return (
            "--use-torch-fsdp2: needs --no-gradient-accumulation-fusion",
            {"gradient_accumulation_fusion": False},
        )
    return None


@argument_rule("fsdp.experts", f"{ARGUMENTS}: use_torch_fsdp2")
def _fsdp_experts(launch: MegatronLaunch) -> Answer:
    """--use-torch-fsdp2 with expert parallelism."""
    if is_on(launch, "use_torch_fsdp2") and launch.get("expert_model_parallel_size") > 1:
        return "--use-torch-fsdp2: spreads no experts", {"expert_model_parallel_size": None}
    return None


_SWITCHES = (
    needs("fsdp.untied", "use_torch_fsdp2", ("untie_embeddings_and_output_weights",)),
    excludes("fsdp.precision", "use_torch_fsdp2", "fp16", "it trains in bf16"),
)

RULES = (*rules_in(globals()), *_SWITCHES)
