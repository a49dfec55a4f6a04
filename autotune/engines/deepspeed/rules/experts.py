"""Expert parallelism (AutoEP): over which ranks the experts of each layer are spread."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, differs, ignored, raised, zero
from autotune.engines.deepspeed.rules.values import ELEMENTS
from autotune.space.rule import Finding, Patch, rule

_AT_STAGE_3_SINCE = "0.19.3"
_OFF: dict[str, Any] = {"expert_parallel": None}
_EXPERTS = {"architecture": "mixtral", "n_experts": 4, "experts_per_token": 2}


def _spread(stage: int = 1, **keys: Any) -> dict[str, Any]:
    return zero(stage, **keys) | {"expert_parallel": {"enabled": True, "autoep_size": 2}}


def _against(setup: Setup, what: str, changes: Patch = _OFF, advice: str = "") -> Finding:
    message = f"ep={setup.ep} (expert_parallel.autoep_size) {what}"
    return Finding(message=message, changes=changes, advice=advice)


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


@rule(
    "module_inject/auto_ep_folding.py: build_folding_spec",
    raised(
        "ValueError: expert_parallel.autoep_size",
        _spread(),
        _OFF | zero(0),
        model=_EXPERTS,
        world=3,
    ),
)
def _world(setup: Setup) -> Finding | None:
    if setup.ep == 1:
        return None
    return _undivided(setup, setup.world // max(1, setup.pp), "ranks")


@rule(
    "module_inject/auto_ep_config.py: validate_autoep_post_detection",
    raised(
        "ValueError: num_experts=3 in layer .* is not divisible",
        _spread(),
        _OFF | zero(0),
        model=_EXPERTS | {"n_experts": 3},
    ),
)
def _count(setup: Setup) -> Finding | None:
    experts = setup.model.n_experts if setup.model is not None else 0
    return _undivided(setup, experts, "experts of a layer")


@rule("module_inject/auto_ep.py: ep_parser finds nothing to replace", ignored(_spread()))
def _dense(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or setup.model.n_experts:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size): the model has no experts",
        changes=_OFF,
    )


@rule(
    "runtime/engine.py: _configure_expert_parallel; parallel_state_sp.py: "
    "get_model_parallel_world_size",
    raised(
        "ValueError: AutoEP does not currently support tensor model parallelism",
        _spread() | {"sequence_parallel_size": 2},
        model=_EXPERTS,
        sp_by_script=2,
    ),
)
def _sequence(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.sp_by_script == 1:
        return None
    return _against(
        setup,
        f"with sp={setup.sp_by_script}: AutoEP takes the ranks that share a sample for parts of "
        "the model",
    )


@rule(
    "runtime/engine.py: _validate_zero3_moe_compatibility",
    raised(
        "AssertionError: AutoEP with ZeRO Stage 3 does not support hpZeRO",
        _spread(3, zero_hpz_partition_size=2),
        model=_EXPERTS,
    ),
)
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
    "attention alone stage 1 fails in _configure_optimizer",
    raised(
        "ValueError: AutoEP: no MoE layers detected", _spread(), model=_EXPERTS | {"lora_rank": 4}
    ),
)
def _adapters(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or not setup.model.n_params_frozen:
        return None
    return _against(setup, "with LoRA: AutoEP finds no experts where adapters stand beside them")


@rule(
    "runtime/engine.py of 0.19.2: _configure_zero_optimizer; DeepSpeed PR 8060",
    raised(
        "AssertionError: MoE not supported with Stage 3",
        _spread(3),
        model=_EXPERTS,
        deepspeed="0.19.2",
    ),
)
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


@rule(
    "runtime/engine.py: clip_fp32_gradients; runtime/utils.py: clip_grad_norm_",
    differs({"norm_is_whole": False}, _spread(0), model=_EXPERTS),
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
