"""The optimizer section: types and parameters that DeepSpeed builds, and where."""

from difflib import get_close_matches
from typing import Any

from autotune.engines.deepspeed.rules.adam import PARAMS, implementation, params_of
from autotune.engines.deepspeed.rules.base import (
    Setup,
    offload,
    optimizer,
    params,
    raised,
    unknown_type,
    zero,
)
from autotune.engines.deepspeed.rules.version import OPTIMIZERS_REMOVED_IN, REMOVED_OPTIMIZERS
from autotune.space.rule import Finding, rule

# DeepSpeed's own, whose case does not matter (runtime/config.py: DEEPSPEED_OPTIMIZERS).
_OWN = frozenset(
    {"adagrad", "adam", "adamw", "lamb", "lion", "muon", "muadam", "muadamw", "musgd"}
)
# Any other name is looked up in torch.optim, to the letter (runtime/engine.py:1985).
_TORCH = (
    *("ASGD", "Adadelta", "Adafactor", "Adamax", "LBFGS", "NAdam", "RAdam", "RMSprop"),
    *("Rprop", "SGD", "SparseAdam"),
)
_MAY_TRAIN = ("Adagrad", "Adam", "AdamW", "Lamb", "Lion", "Muon")
# runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS; torch's Adagrad is among them.
_TESTED_WITH_ZERO = frozenset({"adagrad", "adam", "adamw", "lion", "muon"})


@rule(
    "runtime/engine.py:2018",
    raised(
        "AssertionError: AdamX is not a supported DeepSpeed Optimizer",
        optimizer("AdamX"),
        optimizer("Adamax"),
    ),
    raised("AssertionError: sgd is not a supported DeepSpeed Optimizer", optimizer("sgd")),
)
def _unknown_type(setup: Setup) -> Finding | None:
    name = setup.optimizer
    if not name or name in _OWN or name in REMOVED_OPTIMIZERS:
        return None
    given = setup.section("optimizer")["type"]
    if given in _TORCH:
        return None
    return unknown_type("optimizer", given, (*_MAY_TRAIN, *_TORCH), "AdamW", "torch.optim")


@rule(
    "the constructors of ops/adam and torch.optim",
    *(
        raised(f"TypeError: .* unexpected keyword argument '{name}'", ds_config)
        for name, ds_config in (
            ("learning_rate", params(learning_rate=1e-3)),
            ("foreach", optimizer("AdamW", foreach=True)),
            ("bias_correction", params(bias_correction=True)),
            ("set_grad_none", optimizer("AdamW", set_grad_none=True) | offload(1)),
        )
    ),
)
def _unknown_param(setup: Setup) -> Finding | None:
    if setup.optimizer not in ("adam", "adamw"):
        return None
    kind = implementation(setup)
    unknown = [name for name in setup.optimizer_params if name not in params_of(kind)]
    if not unknown:
        return None
    changes: dict[str, Any] = {}
    for name in unknown:
        near = get_close_matches(str(name), PARAMS[kind], n=1, cutoff=0.7)
        changes[name] = None
        if near and near[0] not in setup.optimizer_params:
            changes[near[0]] = setup.optimizer_params[name]
    named = ", ".join(f"optimizer.params.{name}" for name in unknown)
    return Finding(
        message=f"{named}: {kind} Adam has no such parameter ({', '.join(PARAMS[kind])})",
        changes=params(**changes),
    )


@rule(
    "ops/adam/fused_adam.py, cpu_adam.py",
    *(
        raised(
            f"RuntimeError: {kind} does not support the AMSGrad variant",
            zero_section | optimizer("AdamW", amsgrad=True),
        )
        for kind, zero_section in (("FusedAdam", {}), ("DeepSpeedCPUAdam", offload(1)))
    ),
)
def _amsgrad(setup: Setup) -> Finding | None:
    if setup.optimizer not in ("adam", "adamw") or not setup.optimizer_params.get("amsgrad"):
        return None
    kind = implementation(setup)
    if kind == "torch's":
        return None
    return Finding(
        message=f"optimizer.params.amsgrad=true: {kind} has no such variant, torch's Adam has",
        changes=params(torch_adam=True),
        advice="or remove optimizer.params.amsgrad",
        # DeepSpeedCPUAdam of 0.18.9 accepts the word and ignores it.
        consequence="raised" if kind == "FusedAdam" or setup.is_at_least("0.19.8") else "ignored",
    )


@rule(
    "runtime/engine.py:2481-2484",
    raised("ValueError: 'max_grad_norm' is not supported", params(max_grad_norm=0.5)),
)
def _max_grad_norm(setup: Setup) -> Finding | None:
    if "max_grad_norm" not in setup.optimizer_params:
        return None
    value = setup.optimizer_params["max_grad_norm"]
    clips = "gradient_clipping" in setup.ds_config or type(value) not in (int, float)
    return Finding(
        message=f"optimizer.params.max_grad_norm={value}: DeepSpeed clips by its own key",
        changes=params(max_grad_norm=None) | ({} if clips else {"gradient_clipping": value}),
    )


@rule(
    "runtime/engine.py:2298-2301",
    raised("AssertionError: You are using an untested ZeRO Optimizer", optimizer("SGD") | zero(1)),
)
def _untested_with_zero(setup: Setup) -> Finding | None:
    name = setup.optimizer
    if setup.stage == 0 or not name or name in _TESTED_WITH_ZERO:
        return None
    if setup.ds_config.get("zero_allow_untested_optimizer") is True:
        return None
    if name in REMOVED_OPTIMIZERS or _unknown_type.check(setup) or _needs_cuda.check(setup):
        return None
    return Finding(
        message=f"optimizer.type={setup.section('optimizer')['type']} at stage {setup.stage} is "
        "not one that ZeRO was tested with",
        changes={"zero_allow_untested_optimizer": True},
    )


@rule(
    "op_builder/cpu/no_impl.py:21",
    *(
        raised(
            "ValueError: This op had not been implemented on CPU backend",
            optimizer(kind),
            optimizer("AdamW", torch_adam=True),
        )
        for kind in ("Lamb", "Lion")
    ),
)
def _needs_cuda(setup: Setup) -> Finding | None:
    if setup.accelerator != "cpu" or setup.optimizer not in ("lamb", "lion"):
        return None
    if setup.optimizer == "lion" and setup.optimizer_offload != "none":
        return None
    return Finding(
        message=f"optimizer.type={setup.section('optimizer')['type']}: DeepSpeed has no kernel "
        "for it on the CPU accelerator",
        advice="choose another optimizer.type, such as AdamW",
    )


@rule(
    "runtime/zero/stage3.py:360",
    raised(
        "ValueError: Muon and reduce scatter cannot be used together", optimizer("Muon") | zero(3)
    ),
)
def _muon_scatters(setup: Setup) -> Finding | None:
    scatters = setup.zero.get("reduce_scatter") is not False
    if setup.optimizer != "muon" or setup.stage != 3 or not scatters:
        return None
    return Finding(
        message="optimizer.type=Muon at stage 3 with zero_optimization.reduce_scatter=true (the "
        "default)",
        changes=zero(reduce_scatter=False),
    )


@rule(
    "runtime/engine.py before 0.19.7: _configure_basic_optimizer",
    *(
        # Repaired by its type: at stage 0 the optimizer itself needs CUDA.
        raised(
            "AssertionError: .* is not compatible with ZeRO",
            optimizer(kind) | zero(1),
            optimizer("AdamW"),
            deepspeed="0.19.6",
        )
        for kind in ("OneBitAdam", "ZeroOneAdam", "OneBitLamb")
    ),
)
def _one_bit_with_zero(setup: Setup) -> Finding | None:
    if setup.optimizer not in REMOVED_OPTIMIZERS or setup.stage == 0:
        return None
    if setup.is_at_least(OPTIMIZERS_REMOVED_IN):
        return None
    return Finding(
        message=f"optimizer.type={setup.section('optimizer')['type']} with "
        f"zero_optimization.stage={setup.stage}: it compresses gradients that ZeRO would have "
        "sharded",
        changes=zero(0),
    )
