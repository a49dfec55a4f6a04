"""Rules of mixtures of experts."""

import re

from autotune.engines.megatron.argument_rules.making import (
    ARGUMENTS,
    CONFIG,
    Answer,
    argument_rule,
    is_before,
    is_on,
    rules_in,
)
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.space.rule import Patch

_RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")


def layers_listed(often: object) -> list[int] | None:
    """Whether each layer has experts, as `--moe-layer-freq` lists it; None: it lists none.

    `([0]*3+[1]*58)`, as Megatron evaluates it: megatron/training/arguments.py, moe_freq_type.
    """
    if isinstance(often, list):
        return [int(flag) for flag in often]
    text = str(often).replace(" ", "").removeprefix("(").removesuffix(")")
    parts = [_RUN.fullmatch(part) for part in text.split("+")]
    if "[" not in text or None in parts:
        return None
    return [
        int(flag)
        for part in parts
        if part is not None
        for flag in part[1].split(",") * int(part[2] or 1)
    ]


@argument_rule("experts.none", f"{ARGUMENTS}: expert_model_parallel_size")
def _no_experts(launch: MegatronLaunch) -> Answer:
    """--expert-model-parallel-size above 1 for a model without experts."""
    if launch.get("expert_model_parallel_size") > 1 and launch.get("num_experts") is None:
        return (
            "--expert-model-parallel-size spreads experts, and --num-experts gives none",
            {"expert_model_parallel_size": None},
        )
    return None


@argument_rule("experts.precision", f"{ARGUMENTS} of 0.14 and 0.15: moe_grouped_gemm")
def _experts_precision(launch: MegatronLaunch) -> Answer:
    """Before 0.16: --moe-grouped-gemm without --bf16, or expert parallelism with --fp16."""
    if not is_before(launch.release, "0.16"):
        return None
    if is_on(launch, "moe_grouped_gemm") and not is_on(launch, "bf16"):
        change: Patch = {"bf16": True, "fp16": None} if is_on(launch, "fp16") else {"bf16": True}
        return f"--moe-grouped-gemm: needs --bf16 in Megatron Core {launch.release}", change
    if launch.get("expert_model_parallel_size") > 1 and is_on(launch, "fp16"):
        return (
            "--expert-model-parallel-size above 1: trains no --fp16 in Megatron Core "
            f"{launch.release}",
            {"fp16": None, "bf16": True},
        )
    return None


@argument_rule("experts.width_of_dense", f"{CONFIG}: moe_ffn_hidden_size")
def _width_of_dense(launch: MegatronLaunch) -> Answer:
    """--moe-ffn-hidden-size without --num-experts."""
    if launch.get("num_experts"):
        return None
    if launch.get("moe_ffn_hidden_size") is not None:
        return (
            "--moe-ffn-hidden-size is the width of experts, and --num-experts gives none",
            {"moe_ffn_hidden_size": None},
        )
    return None


@argument_rule("experts.bias", f"{CONFIG}: add_bias_linear")
def _experts_bias(launch: MegatronLaunch) -> Answer:
    """Experts with biases that tensor parallel ranks share; in 0.14 with biases at all."""
    if not launch.get("num_experts") or launch.get("add_bias_linear") is False:
        return None
    if is_before(launch.release, "0.15"):
        return "experts have no biases in Megatron Core 0.14", {"add_bias_linear": False}
    etp = launch.get("expert_tensor_parallel_size")
    if (etp or launch.get("tensor_model_parallel_size")) == 1:
        return None
    return (
        "experts with biases have one tensor parallel rank",
        {"add_bias_linear": False},
        "or set --expert-tensor-parallel-size to 1",
    )


@argument_rule("experts.router", f"{CONFIG}: moe_router_topk, moe_router_enable_expert_bias")
def _router(launch: MegatronLaunch) -> Answer:
    """Settings of the router that do not go together."""
    score = launch.get("moe_router_score_function")
    if is_on(launch, "moe_router_enable_expert_bias") and score != "sigmoid":
        return (
            f"--moe-router-enable-expert-bias: takes no --moe-router-score-function {score}",
            {"moe_router_score_function": "sigmoid"},
        )
    balancing = launch.get("moe_router_load_balancing_type")
    kinds = balancing if isinstance(balancing, list) else [balancing]
    if (
        launch.get("num_experts")
        and launch.get("moe_router_topk") == 1
        and score == "softmax"
        and not is_on(launch, "moe_router_pre_softmax")
        and kinds != ["sinkhorn"]
    ):
        return "--moe-router-topk 1: needs --moe-router-pre-softmax", {
            "moe_router_pre_softmax": True
        }
    coefficients = launch.get("moe_aux_loss_coeff")
    if len(kinds) > 1 and (not isinstance(coefficients, list) or len(coefficients) != len(kinds)):
        return (
            f"--moe-router-load-balancing-type names {len(kinds)}, and --moe-aux-loss-coeff "
            f"has {len(coefficients) if isinstance(coefficients, list) else 1}",
            {},
            "give a coefficient for each",
        )
    return None


@argument_rule("experts.groups", f"{CONFIG}: moe_router_group_topk")
def _router_groups(launch: MegatronLaunch) -> Answer:
    """--moe-router-group-topk without --moe-router-num-groups, or with groups of other sizes."""
    chosen = launch.get("moe_router_group_topk")
    if not chosen:
        return None
    groups, experts = launch.get("moe_router_num_groups"), launch.get("num_experts")
    if not groups:
        return (
            "--moe-router-group-topk: needs --moe-router-num-groups",
            {"moe_router_group_topk": None},
        )
    if experts and experts % groups:
        return (
            f"--num-experts {experts} is no multiple of --moe-router-num-groups {groups}",
            {},
            f"take a number of groups that divides {experts}",
        )
    if chosen > groups:
        return (
            f"--moe-router-group-topk {chosen} is above --moe-router-num-groups {groups}",
            {"moe_router_group_topk": groups},
        )
    return None


@argument_rule(
    "experts.groups_of_token", "megatron/core/transformer/moe/moe_utils.py, group_limited_topk"
)
def _groups_of_token(launch: MegatronLaunch) -> Answer:
    """More experts of a token than its groups have."""
    chosen, groups = (launch.get(f"moe_router_{name}") for name in ("group_topk", "num_groups"))
    topk, experts = launch.get("moe_router_topk"), launch.get("num_experts")
    if not chosen or not groups or not experts or chosen > groups or experts % groups:
        return None
    size = experts // groups
    if topk > chosen * size or topk // chosen > size:
        return (
            f"--moe-router-topk {topk} is more than {chosen} groups of {size} experts have, or "
            "than one group has for its share",
            {},
            "take more groups for a token, or fewer experts",
        )
    return None


@argument_rule(
    "experts.groups_unscored",
    "megatron/core/transformer/moe/moe_utils.py, group_limited_topk: topk // group_topk",
    "differs",
)
def _groups_unscored(launch: MegatronLaunch) -> Answer:
    """--moe-router-group-topk above --moe-router-topk: groups are chosen whatever their scores."""
    chosen, topk = launch.get("moe_router_group_topk"), launch.get("moe_router_topk")
    if not chosen or not launch.get("num_experts") or chosen <= topk:
        return None
    return (
        f"--moe-router-group-topk {chosen} is above --moe-router-topk {topk}: a group is scored "
        "by none of its experts, so that any groups are chosen",
        {"moe_router_group_topk": topk},
    )


@argument_rule(
    "experts.layers", "megatron/core/models/gpt/gpt_layer_specs.py, get_gpt_decoder_block_spec"
)
def _expert_layers(launch: MegatronLaunch) -> Answer:
    """--moe-layer-freq that lists other than --num-layers layers."""
    often, n_layers = launch.get("moe_layer_freq"), launch.get("num_layers")
    if not launch.get("num_experts") or not n_layers:
        return None
    listed = layers_listed(often)
    if listed is None or len(listed) == n_layers:
        return None
    return (
        f"--moe-layer-freq lists {len(listed)} layers, and --num-layers is {n_layers}",
        {},
        "list as many",
    )


@argument_rule("experts.shared_bias", "megatron/core/transformer/moe/shared_experts.py")
def _shared_bias(launch: MegatronLaunch) -> Answer:
    """Shared experts with biases."""
    if not launch.get("num_experts") or not launch.get("moe_shared_expert_intermediate_size"):
        return None
    if launch.get("add_bias_linear") is False:
        return None
    return (
        "--moe-shared-expert-intermediate-size: shared experts have no biases",
        {"add_bias_linear": False},
    )


@argument_rule("experts.dispatcher", f"{CONFIG}: moe_token_dispatcher_type")
def _dispatcher(launch: MegatronLaunch) -> Answer:
    """A --moe-token-dispatcher-type that an option of it does not take."""
    kind = launch.get("moe_token_dispatcher_type")
    if is_on(launch, "moe_enable_deepep") and kind != "flex":
        return (
            f"--moe-enable-deepep: takes no --moe-token-dispatcher-type {kind}",
            {"moe_token_dispatcher_type": "flex"},
        )
    if is_on(launch, "moe_pad_expert_input_to_capacity") and (
        launch.get("moe_expert_capacity_factor") is None
    ):
        return (
            "--moe-pad-expert-input-to-capacity: needs --moe-expert-capacity-factor",
            {"moe_pad_expert_input_to_capacity": None},
        )
    return None


@argument_rule("experts.capacity", f"{CONFIG}: moe_expert_capacity_factor")
def _capacity(launch: MegatronLaunch) -> Answer:
    """--moe-expert-capacity-factor with a balancing that has none."""
    if launch.get("moe_expert_capacity_factor") is None:
        return None
    balancing = launch.get("moe_router_load_balancing_type")
    kinds = balancing if isinstance(balancing, list) else [balancing]
    allowed = ("aux_loss", "seq_aux_loss", "global_aux_loss", "none")
    wrong = [kind for kind in kinds if kind not in allowed]
    if not wrong:
        return None
    return (
        f"--moe-expert-capacity-factor: takes no --moe-router-load-balancing-type {wrong[0]}",
        {"moe_expert_capacity_factor": None},
    )


@argument_rule("recompute.experts", f"{CONFIG}: moe_layer_recompute")
def _experts_recompute(launch: MegatronLaunch) -> Answer:
    """--moe-layer-recompute with --recompute-granularity full."""
    if is_on(launch, "moe_layer_recompute") and launch.get("recompute_granularity") == "full":
        return (
            "--moe-layer-recompute: --recompute-granularity full recomputes experts already",
            {"moe_layer_recompute": None},
        )
    return None


RULES = rules_in(globals())
