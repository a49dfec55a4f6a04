"""The optimizer section: types and parameters that DeepSpeed builds, and where."""

from typing import Any

from autotune.engines.deepspeed.rules.arguments import unknown_arguments, wrong_arguments
from autotune.engines.deepspeed.rules.base import Setup, moved, params, unknown_type
from autotune.engines.deepspeed.rules.constructors import (
    TAKEN_OUT,
    names_of,
    optimizer_of,
    schedule_decides,
)
from autotune.engines.deepspeed.rules.rows import ROWS
from autotune.engines.deepspeed.rules.version import REMOVED_OPTIMIZERS
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

# DeepSpeed's own, whose case does not matter (runtime/config.py: DEEPSPEED_OPTIMIZERS).
_OWN = frozenset(
    {"adagrad", "adam", "adamw", "lamb", "lion", "muon", "muadam", "muadamw", "musgd"}
)
_MAY_TRAIN = ("Adagrad", "Adam", "AdamW", "Lamb", "Lion", "Muon")
# runtime/zero/utils.py: ZERO_SUPPORTED_OPTIMIZERS; torch's Adagrad is among them.
_TESTED_WITH_ZERO = frozenset({"adagrad", "adam", "adamw", "lion", "muon"})
_lacks_kernel = next(row.check for row in ROWS if row.name == "optimizer.needs_cuda")


@rule("runtime/engine.py:2018")
def _unknown_type(setup: Setup) -> Finding | None:
    name = setup.optimizer
    if not name or name in _OWN or name in REMOVED_OPTIMIZERS:
        return None
    given = setup.section("optimizer")["type"]
    # Any name that is not DeepSpeed's is looked up in torch.optim, to the letter.
    torchs = names_of("optimizers")
    if given in torchs:
        return None
    return unknown_type("optimizer", given, (*_MAY_TRAIN, *torchs), "AdamW", "torch.optim")


@rule("the constructors' signatures, in constructors.json")
def _unknown_param(setup: Setup) -> list[Finding] | None:
    given = setup.optimizer_params
    made = optimizer_of(setup) if given else None
    if made is None or made.name == "Muon" or made.never:
        return None
    also = ("max_grad_norm", *(TAKEN_OUT if setup.optimizer in ("adam", "adamw") else ()))
    return unknown_arguments("optimizer", made, given, also)


@rule("runtime/engine.py: _muon_param_groups reads the keys that it knows", consequence="ignored")
def _muon_param(setup: Setup) -> list[Finding] | None:
    given = setup.optimizer_params
    made = optimizer_of(setup) if given and setup.optimizer == "muon" else None
    # What older releases read was not recorded.
    if made is None or not made.refuses:
        return None
    return unknown_arguments("optimizer", made, given, (*TAKEN_OUT, "max_grad_norm", "foreach"))


@rule("the constructors and a first step, in constructors.json")
def _param_value(setup: Setup) -> list[Finding] | None:
    given = setup.optimizer_params
    made = optimizer_of(setup) if given else None
    if made is None or not made.refuses:
        return None
    but = ["amsgrad"]
    if schedule_decides(setup, made):
        but.append("lr")
    if setup.optimizer == "adamw":  # which is in that mode, whatever the file says
        but.append("adam_w_mode")
    return wrong_arguments("optimizer", made, given, setup, but=but)


@rule("torch.optim: what no configuration can give")
def _never_trains(setup: Setup) -> Finding | None:
    made = optimizer_of(setup)
    if made is None or not made.never:
        return None
    name = setup.section("optimizer")["type"]
    return finding("never_trains", name=name, made=made.name, why=made.never)


@rule("runtime/engine.py:2481-2484")
def _max_grad_norm(setup: Setup) -> Finding | None:
    if "max_grad_norm" not in setup.optimizer_params or not setup.optimizer:
        return None
    value = setup.optimizer_params["max_grad_norm"]
    clips = "gradient_clipping" in setup.ds_config or type(value) not in (int, float)
    gone: dict[str, Any] = {"changes": params(max_grad_norm=None)}
    place = ("optimizer.params", "max_grad_norm")
    return Finding(
        message=f"optimizer.params.max_grad_norm={value}: DeepSpeed clips by its own key",
        **(gone if clips else moved(place, ("", "gradient_clipping"), value)),
    )


@rule("runtime/engine.py:2298-2301")
def _untested_with_zero(setup: Setup) -> Finding | None:
    name, given = setup.optimizer, setup.section("optimizer")
    if setup.stage == 0 or not name or name in _TESTED_WITH_ZERO:
        return None
    if setup.ds_config.get("zero_allow_untested_optimizer") is True:
        return None
    if name in REMOVED_OPTIMIZERS or _unknown_type.check(setup) or _lacks_kernel(setup):
        return None
    return finding("untested_with_zero", name=given["type"], stage=setup.stage)
