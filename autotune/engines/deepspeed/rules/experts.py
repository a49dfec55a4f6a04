"""Expert parallelism (AutoEP): over which ranks the experts of each layer are spread."""

from typing import Any

from autotune.engines.deepspeed.mixtures import AUTOEP_PRESETS
from autotune.engines.deepspeed.rules.base import (
    Setup,
    zero,
)
from autotune.engines.deepspeed.rules.values import ELEMENTS
from autotune.space.rule import Finding, Patch, rule

_AT_STAGE_3_SINCE = "0.19.3"
DEFAULT_LEAF_BLOCKS = frozenset(
    {"MixtralSparseMoeBlock", "Qwen2MoeSparseMoeBlock", "Qwen3MoeSparseMoeBlock"}
)
"""Blocks whose experts DeepSpeed gathers at once by itself.

Source: runtime/zero/leaf_module_config.py.
"""
_OFF: dict[str, Any] = {"expert_parallel": None}


def _against(setup: Setup, what: str, changes: Patch = _OFF, advice: str = "") -> Finding:
    message = f"ep={setup.ep} (expert_parallel.autoep_size) {what}"
    return Finding(message=message, changes=changes, advice=advice)


def as_list(value: Any) -> list[Any]:
    """A list or one of its items, as DeepSpeed takes either."""
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_on(setup: Setup) -> bool:
    return setup.section("expert_parallel").get("enabled") is True


def _undivided(setup: Setup, total: int, of_what: str) -> Finding | None:
    ep = setup.ep
    if ep == 1 or total % ep == 0:
        return None
    size = max(d for d in range(1, ep) if total % d == 0)
    return _against(
        setup,
        f"does not divide the {total} {of_what}: {total} % {ep} = {total % ep}",
        _OFF if size == 1 else {"expert_parallel": {"autoep_size": size}},
    )


@rule("module_inject/auto_ep_folding.py: build_folding_spec")
def _world(setup: Setup) -> Finding | None:
    if setup.ep == 1:
        return None
    return _undivided(setup, setup.world // max(1, setup.pp), "ranks")


@rule("module_inject/auto_ep_config.py: validate_autoep_post_detection")
def _count(setup: Setup) -> Finding | None:
    experts = setup.model.n_experts if setup.model is not None else 0
    return _undivided(setup, experts, "experts of a layer")


@rule("module_inject/auto_ep.py: ep_parser finds nothing to replace", consequence="ignored")
def _dense(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or setup.model.n_experts:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size): the model has no experts",
        changes=_OFF,
    )


@rule("module_inject/auto_ep_presets/registry.py: resolve_preset_candidates tries every preset")
def _family(setup: Setup) -> Finding | None:
    section = setup.section("expert_parallel")
    if setup.ep == 1 or not setup.model_type or setup.model is None or not setup.model.n_experts:
        return None
    if section.get("preset_model") or section.get("moe_layer_pattern"):
        return None  # the user says which
    preset = AUTOEP_PRESETS.get(setup.model_type)
    if preset == "":
        return None
    is_gpt_oss = setup.model_type == "gpt_oss"
    what = "warns and spreads nothing" if is_gpt_oss else "finds several presets that match"
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size): AutoEP does not know "
        f"{setup.model_type}, and {what}",
        changes={"expert_parallel": {"preset_model": preset}} if preset else _OFF,
        consequence="ignored" if is_gpt_oss else "raised",
    )


@rule("module_inject/auto_ep_folding.py: build_folding_spec, validate_folding_global")
def _expert_tp(setup: Setup) -> Finding | None:
    size = setup.section("expert_parallel").get("expert_tensor_parallel_size", 1)
    if not _is_on(setup) or size == 1:
        return None
    return Finding(
        message=f"expert_parallel.expert_tensor_parallel_size={size}: an expert is on one rank",
        changes={"expert_parallel": {"expert_tensor_parallel_size": None}},
    )


@rule("module_inject/auto_ep_config.py: validate_autoep_config; module_inject/auto_ep_comm.py")
def _deepep(setup: Setup) -> Finding | None:
    section = setup.section("expert_parallel")
    if setup.ep == 1 or section.get("comm_backend") != "deepep":
        return None
    precision = setup.precision or setup.dtype
    if not section.get("comm_max_tokens_per_rank"):
        what = "without comm_max_tokens_per_rank, the tokens of a micro-batch"
    elif precision != "bf16":
        what = f"in {precision}: DeepEP sends bf16 alone"
    elif setup.accelerator == "cpu":
        what = "on CPU ranks: DeepEP is for GPUs"
    elif not setup.environment.has_deep_ep:
        what = "without the package deep_ep"
    else:
        return None
    return Finding(
        message=f"expert_parallel.comm_backend=deepep {what}",
        changes={"expert_parallel": {"comm_backend": None}},
    )


@rule("module_inject/auto_ep_layer.py: async_split_plan waits for events of the device")
def _split_plan(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.section("expert_parallel").get("async_split_plan") is not True:
        return None
    if setup.accelerator != "cpu" and setup.tp == 1:
        return None
    why = f"with tp={setup.tp}" if setup.tp > 1 else "on CPU ranks, which have no device events"
    return Finding(
        message=f"expert_parallel.async_split_plan=true {why}",
        changes={"expert_parallel": {"async_split_plan": None}},
    )


@rule("module_inject/auto_ep_folding.py: validate_folding_global")
def _tensor_parallel_alone(setup: Setup) -> Finding | None:
    if not _is_on(setup) or setup.ep > 1 or setup.tp == 1:
        return None
    return Finding(
        message=f"tp={setup.tp} with expert_parallel.autoep_size=1: each rank of tp would add the "
        "gradients of the same tokens to its experts",
        changes=_OFF,
        advice="or set autoep_size to 2 or more",
    )


@rule("module_inject/auto_ep_folding.py: validate_folding_global")
def _tensor_parallel_offload(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.tp == 1:
        return None
    sections = ("offload_optimizer", "offload_param")
    offloaded = [
        name for name in sections if setup.zero_section(name).get("device", "none") != "none"
    ]
    if not offloaded:
        return None
    return _against(
        setup,
        f"with tp={setup.tp} and {' and '.join(offloaded)}",
        zero(**dict.fromkeys(offloaded)),
    )


@rule("module_inject/auto_ep_folding.py: validate_folding_global")
def _tensor_parallel_deepcompile(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.tp == 1 or setup.section("compile").get("deepcompile") is not True:
        return None
    return _against(
        setup,
        f"with tp={setup.tp} and compile.deepcompile",
        {"compile": {"deepcompile": None}},
    )


@rule(
    "runtime/zero/stage_1_and_2.py: experts of other ranks of tp are not in the norm; "
    "runtime/zero/stage3.py: counts_every_rank",
    consequence="differs",
)
def _tensor_parallel_clipping(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.tp == 1 or setup.stage not in (1, 2) or not setup.clipping:
        return None
    return _against(
        setup,
        f"with tp={setup.tp} at stage {setup.stage} and gradient_clipping={setup.clipping}: ranks "
        "clip by a norm that lacks the experts of some of them",
        zero(3),
        "or set gradient_clipping to 0",
    )


@rule(
    "runtime/engine.py: _configure_expert_parallel; parallel_state_sp.py: "
    "get_model_parallel_world_size"
)
def _sequence(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.sp_by_script == 1:
        return None
    return _against(
        setup,
        f"with sp={setup.sp_by_script}: AutoEP takes the ranks that share a sample for parts of "
        "the model",
    )


@rule("runtime/engine.py: _validate_zero3_moe_compatibility")
def _second_copy(setup: Setup) -> Finding | None:
    size = setup.zero.get("zero_hpz_partition_size", 1)
    if setup.ep == 1 or setup.stage != 3 or not ELEMENTS.accepts(size) or int(size) <= 1:
        return None
    return _against(
        setup,
        f"at stage 3 with zero_hpz_partition_size={size}: experts have no second copy",
        zero(zero_hpz_partition_size=1),
    )


@rule(
    "module_inject/auto_ep.py: ep_parser, with adapters on all linear layers; on "
    "attention alone stage 1 fails in _configure_optimizer"
)
def _adapters(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or not setup.model.n_params_frozen:
        return None
    return _against(setup, "with LoRA: AutoEP finds no experts where adapters stand beside them")


@rule("runtime/engine.py of 0.19.2: _configure_zero_optimizer; DeepSpeed PR 8060")
def _stage_3(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.stage != 3 or setup.is_at_least(_AT_STAGE_3_SINCE):
        return None
    return _against(
        setup,
        f"at stage 3: DeepSpeed {setup.version} spreads experts at stages 0 to 2 "
        f"({_AT_STAGE_3_SINCE} and later at 3 too)",
        zero(2),
        f"or install deepspeed>={_AT_STAGE_3_SINCE}",
    )


@rule("moe/ep_router.py: its routers record nothing, of which transformers would make a loss")
def _router_loss(setup: Setup) -> Finding | None:
    if setup.ep == 1 or not setup.balances_routers:
        return None
    return _against(
        setup,
        "with output_router_logits in the model's config: spread routers record nothing for the "
        "loss that balances them",
        advice="or set output_router_logits to false there",
    )


@rule(
    "runtime/zero/parameter_offload.py: ranks that route to other experts gather other weights, "
    "and wait for one another; utils/z3_leaf_module.py"
)
def _leaf_modules(setup: Setup) -> Finding | None:
    if setup.stage != 3 or not setup.expert_blocks or setup.world == 1:
        return None
    section = setup.zero_section("leaf_module")
    given = section.get("classes", ())
    names = {str(each).rpartition(".")[2] for each in as_list(given)} | (
        DEFAULT_LEAF_BLOCKS if "classes" not in section else set()
    )
    missing = [each for each in setup.expert_blocks if each not in names]
    if not missing or section.get("names") or section.get("name_suffixes"):
        return None
    return Finding(
        message=f"stage 3 with experts as modules of their own in {', '.join(missing)}: ranks "
        "that route to different experts would wait for each other for ever",
        changes=zero(leaf_module={"classes": [*as_list(given), *missing]}),
    )


@rule(
    "runtime/engine.py: clip_fp32_gradients; runtime/utils.py: clip_grad_norm_",
    consequence="differs",
)
def _clipping_at_stage_0(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.stage or not setup.clipping:
        return None
    return _against(
        setup,
        f"at stage 0 with gradient_clipping={setup.clipping}: each rank clips by a norm that is "
        "not that of all experts' gradients",
        zero(1),
        "or set gradient_clipping to 0",
    )
