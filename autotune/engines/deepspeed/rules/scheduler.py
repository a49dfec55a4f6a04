"""The scheduler section: types that DeepSpeed builds, where it can, and their parameters."""

from typing import Any

from autotune.engines.deepspeed.rules.arguments import (
    missing,
    unknown_arguments,
    wrong_arguments,
)
from autotune.engines.deepspeed.rules.base import (
    Setup,
    as_section,
    ignored,
    raised,
    unknown_type,
    zero,
)
from autotune.engines.deepspeed.rules.constructors import names_of, scheduler_of
from autotune.space.rule import Choice, Finding, rule

_OWN = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's own (runtime/lr_schedules.py)."""

_WARMUP_TYPES = ("log", "linear")


def _type(setup: Setup) -> str | None:
    name = setup.section("scheduler").get("type")
    return name if isinstance(name, str) else None


def _scheduler(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


def _params(**keys: Any) -> dict[str, Any]:
    return {"scheduler": {"params": keys}}


@rule(
    "runtime/engine.py: _scheduler_from_config",
    raised(
        "AssertionError: DeepSpeed does not recognize LR scheduler WarmupCosine",
        _scheduler("WarmupCosine", total_num_steps=2000),
        {"scheduler": {"type": "WarmupCosineLR"}},
    ),
    raised(
        "AssertionError: DeepSpeed does not recognize LR scheduler warmuplr",
        _scheduler("warmuplr"),
    ),
)
def _unknown_type(setup: Setup) -> Finding | None:
    name = _type(setup)
    # Any name that is not DeepSpeed's is looked up in torch, to the letter.
    if name is None or name in _OWN or name in names_of("schedulers"):
        return None
    known = (*_OWN, *names_of("schedulers"))
    return unknown_type("scheduler", name, known, "WarmupDecayLR", "torch.optim.lr_scheduler")


@rule(
    "runtime/config.py: get_scheduler_name",
    ignored({"scheduler": {"params": {"warmup_num_steps": 10}}}, {"scheduler": None}),
)
def _no_type(setup: Setup) -> Finding | None:
    section = setup.section("scheduler")
    if not section or section.get("type") is not None or not section.get("params"):
        return None
    return Finding(
        message="scheduler without a type: DeepSpeed ignores the section, the learning rate stays "
        "as it is",
        at=("scheduler",),
        choices=(
            Choice(changes={"scheduler": {"type": "WarmupLR"}}),
            Choice(changes={"scheduler": None}),
        ),
        advice="set scheduler.type, such as WarmupLR, or remove scheduler",
    )


@rule(
    "runtime/engine.py: _scheduler_from_config, runtime/lr_schedules.py",
    raised(
        r"TypeError: .* argument after \*\* must be a mapping, not NoneType",
        {"scheduler": {"type": "WarmupLR"}},
    ),
    *(
        raised(
            f"TypeError: .* missing {len(needed)} required positional argument",
            _scheduler(kind),
            _scheduler(kind, **needed),
        )
        for kind, needed in (
            ("WarmupDecayLR", {"total_num_steps": 2000}),
            ("WarmupCosineLR", {"total_num_steps": 2000}),
            ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}),
            ("StepLR", {"step_size": 2}),
            ("CosineAnnealingLR", {"T_max": 10}),
        )
    ),
    raised(
        "ValueError: You must define either total_steps OR",
        _scheduler("OneCycleLR", max_lr=0.1),
        _params(total_steps=10),
    ),
)
def _missing_params(setup: Setup) -> Finding | None:
    section = setup.section("scheduler")
    made = scheduler_of(setup) if section else None
    if made is None or made.never:
        return None
    name, given = _type(setup), section.get("params")
    if lacking := missing("scheduler", made, as_section(given)):
        named = " and ".join(lacking)
        return Finding(
            message=f"scheduler.type={name} without {named}",
            at=("scheduler",),
            advice=f"set {named}",
        )
    if given is None:
        return Finding(
            message=f"scheduler.type={name} without scheduler.params, which DeepSpeed unpacks",
            at=("scheduler",),
            changes={"scheduler": {"params": {}}},
            advice="set scheduler.params to {}",
        )
    if made.alone and set(made.needs) >= set(as_section(given)):
        return Finding(
            message=f"scheduler.type={name} with no more than {', '.join(made.needs)}: "
            f"{made.alone}",
            at=("scheduler.params",),
            advice="set scheduler.params.total_steps",
        )
    return None


@rule(
    "the constructors' signatures, in constructors.json",
    *(
        raised(f"TypeError: .* unexpected keyword argument '{name}'", ds_config, fix)
        for name, ds_config, fix in (
            ("warmup_steps", _scheduler("WarmupLR", warmup_steps=10), None),
            (
                "warmup_max_lr",
                _scheduler("WarmupCosineLR", total_num_steps=2000, warmup_max_lr=0.1),
                _params(warmup_max_lr=None),
            ),
            (
                "total_num_steps",
                _scheduler("WarmupLR", total_num_steps=2000),
                _params(total_num_steps=None),
            ),
            ("stepsize", _scheduler("StepLR", step_size=2, stepsize=2), _params(stepsize=None)),
        )
    ),
)
def _unknown_param(setup: Setup) -> list[Finding] | None:
    given = as_section(setup.section("scheduler").get("params"))
    made = scheduler_of(setup) if given else None
    if made is None or made.never or given.keys() <= made.names:
        return None
    return unknown_arguments("scheduler", made, given)


@rule(
    "the constructors and some steps, in constructors.json",
    *(
        raised(
            f"ValueError: warmup_num_steps must be a positive integer, got {value}",
            _scheduler(kind, warmup_num_steps=value, **more),
            _params(warmup_num_steps=10),
        )
        for kind, value, more in (
            ("WarmupLR", 0, {}),
            ("WarmupDecayLR", -5, {"total_num_steps": 2000}),
            ("WarmupCosineLR", 0.5, {"total_num_steps": 2000}),
        )
    ),
    *(
        raised(pattern, ds_config, fix)
        for pattern, ds_config, fix in (
            (
                "ValueError: warmup_num_steps must be a positive integer, got 10",
                _scheduler("WarmupLR", warmup_num_steps="10"),
                None,
            ),
            ("TypeError: unsupported operand", _scheduler("WarmupLR", warmup_max_lr="1e-3"), None),
            (
                "ValueError: lr_range_test_step_size must be a positive integer, got 2.0",
                _scheduler("LRRangeTest", lr_range_test_step_size=2.0),
                None,
            ),
            (
                "ValueError: cycle_first_step_size must be positive, got 0.0",
                _scheduler("OneCycle", cycle_min_lr=0.1, cycle_max_lr=1, cycle_first_step_size=0),
                _params(cycle_first_step_size=2),
            ),
            ("ZeroDivisionError", _scheduler("StepLR", step_size=0), _params(step_size=1)),
        )
    ),
)
def _param_value(setup: Setup) -> list[Finding] | None:
    given = as_section(setup.section("scheduler").get("params"))
    made = scheduler_of(setup) if given else None
    if made is None or not made.refuses:
        return None
    return wrong_arguments("scheduler", made, given, setup)


@rule(
    "runtime/lr_schedules.py: WarmupLR logs it and takes `log`",
    ignored(
        _scheduler("WarmupLR", warmup_num_steps=4, warmup_type="cosine"),
        _params(warmup_type=None),
    ),
)
def _warmup_type(setup: Setup) -> Finding | None:
    given = as_section(setup.section("scheduler").get("params")).get("warmup_type")
    if not isinstance(given, str) or given in (*_WARMUP_TYPES, "auto"):
        return None
    if _type(setup) not in ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR"):
        return None
    return Finding(
        message=f"scheduler.params.warmup_type={given}: DeepSpeed reads every value but "
        "linear as log",
        at=("scheduler.params.warmup_type",),
        choices=tuple(Choice(changes=_params(warmup_type=one)) for one in _WARMUP_TYPES),
        advice="set scheduler.params.warmup_type to log or linear",
    )


@rule(
    "torch.optim.lr_scheduler: it asks for torch's Optimizer, which DeepSpeed's wrappers are not",
    *(
        raised(
            "TypeError: .* is not an Optimizer",
            _scheduler("StepLR", step_size=2) | more,
            {"scheduler": None},
            **case,
        )
        for more, case in (
            (zero(1), {}),
            (zero(2), {}),
            (zero(3), {}),
            ({"bf16": {"enabled": True}}, {"precision": "bf16"}),
            ({"fp16": {"enabled": True}}, {"precision": "fp16"}),
        )
    ),
)
def _torch_under_wrapper(setup: Setup) -> Finding | None:
    name = _type(setup)
    if name is None or name in _OWN or name not in names_of("schedulers"):
        return None
    if setup.stage == 0 and setup.dtype == "fp32":
        return None
    wrapped = f"stage {setup.stage}" if setup.stage else f"{setup.dtype} at stage 0"
    return Finding(
        message=f"scheduler.type={name} is torch's, which takes torch's optimizers alone: at "
        f"{wrapped} DeepSpeed wraps the optimizer",
        at=("scheduler.type",),
        advice=f"choose one of DeepSpeed's: {', '.join(_OWN)}",
    )


@rule(
    "torch.optim.lr_scheduler: what no configuration can give",
    *(
        raised(pattern, _scheduler(kind, **given), _scheduler("WarmupLR", **dict.fromkeys(given)))
        for kind, pattern, given in (
            ("LambdaLR", "TypeError: 'float' object is not callable", {"lr_lambda": 0.9}),
            ("LRScheduler", "NotImplementedError", {}),
            ("ChainedScheduler", "TypeError: .* has no len", {}),
        )
    ),
)
def _never_made(setup: Setup) -> Finding | None:
    made = scheduler_of(setup) if setup.section("scheduler") else None
    if made is None or not made.never or _torch_under_wrapper.check(setup):
        return None
    return Finding(
        message=f"scheduler.type={_type(setup)}: {made.name} needs arguments that no "
        "configuration can hold",
        at=("scheduler.type",),
        advice=f"choose one of DeepSpeed's: {', '.join(_OWN)}",
    )


@rule(
    "runtime/lr_schedules.py: WarmupDecayLR logs it",
    ignored(
        _scheduler("WarmupDecayLR", total_num_steps=2, warmup_num_steps=8),
        _params(total_num_steps=8),
    ),
)
def _warmup_beyond_total(setup: Setup) -> Finding | None:
    if _type(setup) not in ("WarmupDecayLR", "WarmupCosineLR"):
        return None
    given = as_section(setup.section("scheduler").get("params"))
    total, warmup = given.get("total_num_steps"), given.get("warmup_num_steps", 1000)
    if not isinstance(total, int | float) or not isinstance(warmup, int):
        return None
    if total >= max(2, warmup):
        return None
    default = "" if "warmup_num_steps" in given else " (its default)"
    return Finding(
        message=f"scheduler.params.total_num_steps={total} with warmup_num_steps={warmup}"
        f"{default}: the training is over before the learning rate is at its highest",
        is_note=True,
        at=("scheduler.params.total_num_steps",),
        advice="set scheduler.params.warmup_num_steps to less than total_num_steps",
    )
