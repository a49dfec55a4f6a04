"""Expert parallelism (AutoEP): over which ranks the experts of each layer are spread."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Case, Setup, Witness
from autotune.engines.deepspeed.rules.releases import is_at_least
from autotune.engines.deepspeed.rules.values import ELEMENTS
from autotune.space.rule import Finding, rule

_AT_STAGE_3_SINCE = "0.19.3"


def _spread(stage: int = 1, **zero: Any) -> dict[str, Any]:
    return {
        "expert_parallel": {"enabled": True, "autoep_size": 2},
        "zero_optimization": {"stage": stage, **zero},
    }


_EXPERTS = {"architecture": "mixtral", "n_experts": 4, "experts_per_token": 2}


@rule(
    "experts.world",
    "module_inject/auto_ep_folding.py: build_folding_spec",
    Witness(
        broken=Case(ds_config=_spread(), model=_EXPERTS, world=3),
        repaired=Case(model=_EXPERTS, world=3),
        consequence="raised",
        raises="ValueError: expert_parallel.autoep_size",
    ),
)
def _world(setup: Setup) -> Finding | None:
    ep, ranks = setup.ep, setup.world // max(1, setup.pp)
    if ep == 1 or ranks % ep == 0:
        return None
    return Finding(
        message=f"ep={ep} (expert_parallel.autoep_size) does not divide the {ranks} ranks: "
        f"{ranks} % {ep} = {ranks % ep}",
        changes=_size(_divisor(ranks, ep)),
    )


@rule(
    "experts.count",
    "module_inject/auto_ep_config.py: validate_autoep_post_detection",
    Witness(
        broken=Case(ds_config=_spread(), model=_EXPERTS | {"n_experts": 3}),
        repaired=Case(model=_EXPERTS | {"n_experts": 3}),
        consequence="raised",
        raises="ValueError: num_experts=3 in layer .* is not divisible",
    ),
)
def _count(setup: Setup) -> Finding | None:
    experts = setup.model.n_experts if setup.model is not None else 0
    if setup.ep == 1 or not experts or experts % setup.ep == 0:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) does not divide the {experts} "
        f"experts of a layer: {experts} % {setup.ep} = {experts % setup.ep}",
        changes=_size(_divisor(experts, setup.ep)),
    )


@rule(
    "experts.dense",
    "module_inject/auto_ep.py: ep_parser finds nothing to replace",
    Witness(
        broken=Case(ds_config=_spread()),
        repaired=Case(ds_config={"zero_optimization": {"stage": 1}}),
        consequence="ignored",
    ),
)
def _dense(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or setup.model.n_experts:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size): the model has no experts",
        changes={"expert_parallel": None},
    )


@rule(
    "experts.sequence",
    "runtime/engine.py: _configure_expert_parallel; parallel_state_sp.py: "
    "get_model_parallel_world_size",
    Witness(
        broken=Case(
            ds_config={**_spread(1), "sequence_parallel_size": 2},
            model=_EXPERTS,
            sp_by_script=2,
        ),
        repaired=Case(
            ds_config={"zero_optimization": {"stage": 1}, "sequence_parallel_size": 2},
            model=_EXPERTS,
            sp_by_script=2,
        ),
        consequence="raised",
        raises="ValueError: AutoEP does not currently support tensor model parallelism",
    ),
)
def _sequence(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.sp_by_script == 1:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) with sp={setup.sp_by_script}: "
        "AutoEP takes the ranks that share a sample for parts of the model",
        changes={"expert_parallel": None},
    )


@rule(
    "experts.second_copy",
    "runtime/engine.py: _validate_zero3_moe_compatibility",
    Witness(
        broken=Case(ds_config=_spread(3, zero_hpz_partition_size=2), model=_EXPERTS),
        repaired=Case(ds_config=_spread(3, zero_hpz_partition_size=1), model=_EXPERTS),
        consequence="raised",
        raises="AssertionError: AutoEP with ZeRO Stage 3 does not support hpZeRO",
    ),
)
def _secondary(setup: Setup) -> Finding | None:
    size = setup.zero.get("zero_hpz_partition_size", 1)
    if setup.ep == 1 or setup.stage != 3 or not ELEMENTS.accepts(size) or int(size) <= 1:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) at stage 3 with "
        f"zero_hpz_partition_size={size}: experts have no second copy",
        changes={"zero_optimization": {"zero_hpz_partition_size": 1}},
    )


@rule(
    "experts.adapters",
    "module_inject/auto_ep.py: ep_parser, with adapters on all linear layers; on "
    "attention alone stage 1 fails in _configure_optimizer",
    Witness(
        broken=Case(ds_config=_spread(), model=_EXPERTS | {"lora_rank": 4}),
        repaired=Case(
            ds_config={"zero_optimization": {"stage": 1}},
            model=_EXPERTS | {"lora_rank": 4},
        ),
        consequence="raised",
        raises="ValueError: AutoEP: no MoE layers detected",
    ),
)
def _adapters(setup: Setup) -> Finding | None:
    if setup.ep == 1 or setup.model is None or not setup.model.n_params_frozen:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) with LoRA: AutoEP finds no experts "
        "where adapters stand beside them",
        changes={"expert_parallel": None},
    )


@rule(
    "experts.stage_3",
    "runtime/engine.py of 0.19.2: _configure_zero_optimizer; DeepSpeed PR 8060",
    Witness(
        broken=Case(ds_config=_spread(3), model=_EXPERTS),
        repaired=Case(ds_config=_spread(2), model=_EXPERTS),
        consequence="raised",
        raises="AssertionError: MoE not supported with Stage 3",
        deepspeed="0.19.2",
    ),
)
def _stage_3(setup: Setup) -> Finding | None:
    version = setup.environment.deepspeed_version
    if setup.ep == 1 or setup.stage != 3 or is_at_least(version, _AT_STAGE_3_SINCE):
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) at stage 3: DeepSpeed {version} "
        f"spreads experts at stages 0 to 2 ({_AT_STAGE_3_SINCE} and later at 3 too)",
        changes={"zero_optimization": {"stage": 2}},
        advice=f"or install deepspeed>={_AT_STAGE_3_SINCE}",
    )


def _divisor(total: int, most: int) -> int:
    return max(d for d in range(1, most) if total % d == 0)


def _size(ep: int) -> dict[str, Any]:
    if ep == 1:
        return {"expert_parallel": None}
    return {"expert_parallel": {"autoep_size": ep}}


@rule(
    "experts.clipping_at_stage_0",
    "runtime/engine.py: clip_fp32_gradients; runtime/utils.py: clip_grad_norm_",
    Witness(
        broken=Case(ds_config=_spread(0), model=_EXPERTS),
        repaired=Case(ds_config=_spread(1), model=_EXPERTS),
        consequence="differs",
        reads={"norm_is_whole": False},
    ),
)
def _clipping(setup: Setup) -> Finding | None:
    clipping = setup.clipping
    if setup.ep == 1 or setup.stage or not clipping:
        return None
    return Finding(
        message=f"ep={setup.ep} (expert_parallel.autoep_size) at stage 0 with gradient_clipping="
        f"{clipping}: each rank clips by a norm that is not that of all experts' gradients",
        changes={"zero_optimization": {"stage": 1}},
        advice="or set gradient_clipping to 0",
    )
