"""Rules of numbers: precision, fp8, determinism, CUDA graphs."""

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CONFIG,
    Answer,
    argument_rule,
    excludes,
    flag_name,
    is_on,
    needs,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch


@argument_rule("precision.one", f"{ARGUMENTS}: args.fp16, args.bf16")
def _one_precision(launch: MegatronLaunch) -> Answer:
    """--fp16 and --bf16 are both given."""
    if launch.get("fp16") and launch.get("bf16"):
        return "--fp16 and --bf16: a run has one precision", {"fp16": None}
    return None


@argument_rule("precision.residual", f"{ARGUMENTS}: fp32_residual_connection")
def _residual(launch: MegatronLaunch) -> Answer:
    """--fp32-residual-connection without --fp16 or --bf16."""
    if is_on(launch, "fp32_residual_connection") and not (
        is_on(launch, "fp16") or is_on(launch, "bf16")
    ):
        return (
            "--fp32-residual-connection: a run in fp32 has it anyway",
            {"fp32_residual_connection": None},
        )
    return None


@argument_rule("fp8.params", f"{CONFIG}: fp8_param")
def _fp8_params(launch: MegatronLaunch) -> Answer:
    """--fp8-param-gather without --fp8-format, or without anything that shards parameters."""
    gathers = is_on(launch, "fp8_param_gather")
    if gathers and not launch.get("fp8"):
        return "--fp8-param-gather: needs --fp8-format", {"fp8_param_gather": None}
    sharded = ("use_distributed_optimizer", "use_megatron_fsdp", "use_torch_fsdp2")
    if gathers and not any(is_on(launch, name) for name in sharded):
        return (
            "--fp8-param-gather: without --use-distributed-optimizer or an FSDP no parameters "
            "are gathered",
            {"use_distributed_optimizer": True},
        )
    return None


@argument_rule("fp8.first_last", f"{CONFIG}: first_last_layers_bf16")
def _first_last(launch: MegatronLaunch) -> Answer:
    """--first-last-layers-bf16 with the delayed recipe."""
    if (
        launch.get("fp8")
        and is_on(launch, "first_last_layers_bf16")
        and launch.get("fp8_recipe") == "delayed"
    ):
        return (
            "--first-last-layers-bf16: --fp8-recipe delayed has all layers in fp8",
            {"first_last_layers_bf16": None},
            "or take another --fp8-recipe",
        )
    return None


@argument_rule("graphs.one_way", f"{ARGUMENTS}: enable_cuda_graph")
def _graphs(launch: MegatronLaunch) -> Answer:
    """Two ways to ask for CUDA graphs, or graphs beside what moves or recomputes layers."""
    impl = launch.get("cuda_graph_impl")
    old = [
        argument
        for argument in ("enable_cuda_graph", "external_cuda_graph")
        if is_on(launch, argument)
    ]
    is_new = impl not in (None, "none")
    if old and is_new:
        return f"{flag_name(old[0])} and --cuda-graph-impl: give one", {old[0]: None}
    if len(old) > 1:
        return "--enable-cuda-graph and --external-cuda-graph: give one", {old[1]: None}
    if not old and not is_new:
        return None
    if launch.get("cpu_offloading_num_layers"):
        return "CUDA graphs: do not go with --cpu-offloading-num-layers", {
            "cpu_offloading_num_layers": None
        }
    scope = launch.get("cuda_graph_scope")
    whole = scope is not None and "full_iteration" in scope
    if launch.get("recompute_granularity") == "full" and not whole:
        return (
            "CUDA graphs of layers: do not go with --recompute-granularity full",
            {name: None for name in _FULL if launch.get(name) is not None},
            "or take a graph of the full iteration",
        )
    return None


_FULL = ("recompute_granularity", "recompute_method", "recompute_num_layers")


@argument_rule("deterministic.kernels", f"{ARGUMENTS}: deterministic_mode")
def _deterministic(launch: MegatronLaunch) -> Answer:
    """--deterministic-mode with --use-flash-attn, or an NCCL_ALGO that is not fixed."""
    if not is_on(launch, "deterministic_mode"):
        return None
    if is_on(launch, "use_flash_attn"):
        return "--deterministic-mode: does not go with --use-flash-attn", {"use_flash_attn": None}
    fixed = ("Tree", "Ring", "CollnetDirect", "CollnetChain", "^NVLS")
    algorithm = launch.variables.get("NCCL_ALGO")
    if algorithm is not None and algorithm not in fixed and "$" not in algorithm:
        return (
            f"--deterministic-mode: NCCL_ALGO is {algorithm}",
            {},
            f"set it to one of {', '.join(fixed)}",
        )
    return None


@argument_rule("fp8.device", "Transformer Engine: FP8 needs compute capability 8.9")
def _fp8_device(launch: MegatronLaunch) -> Answer:
    """--fp8-format on a GPU that computes nothing in fp8."""
    if launch.get("fp8") and launch.gpu and "fp8" not in launch.gpu_precisions:
        return (
            f"--fp8-format: the {launch.gpu} computes nothing in fp8",
            {name: None for name in _FP8_FLAGS if name in launch.given},
        )
    return None


_FP8_FLAGS = (
    *("fp8", "fp8_recipe", "fp8_param_gather", "fp8_margin", "fp8_interval"),
    *("fp8_amax_history_len", "fp8_amax_compute_algo"),
)
_SWITCHES = (
    needs("precision.cross_entropy", "fp16_lm_cross_entropy", ("fp16",), removes=True),
    excludes("precision.fp4", "fp4", "fp8", "a run has one of them"),
    excludes(
        "deterministic.cross_entropy",
        "deterministic_mode",
        "cross_entropy_loss_fusion",
        "its result depends on the order of sums",
    ),
)

RULES = (*rules_in(globals()), *_SWITCHES)
