"""The scheduler section: types that DeepSpeed builds, and the parameters that they need."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, as_section, raised, unknown_type
from autotune.space.rule import Finding, rule

_REQUIRED = {
    "LRRangeTest": (),
    "OneCycle": ("cycle_min_lr", "cycle_max_lr"),
    "WarmupLR": (),
    "WarmupDecayLR": ("total_num_steps",),
    "WarmupCosineLR": ("total_num_steps",),
}
"""DeepSpeed's own -> the parameters without a default (runtime/lr_schedules.py)."""

# Any other name is looked up in torch, to the letter (runtime/engine.py: _scheduler_from_config).
_TORCH = (
    *("ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts"),
    *("CyclicLR", "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR"),
    *("MultiplicativeLR", "OneCycleLR", "PolynomialLR", "ReduceLROnPlateau", "SequentialLR"),
    "StepLR",
)


def _type(setup: Setup) -> str | None:
    name = setup.section("scheduler").get("type")
    return name if isinstance(name, str) else None


def _scheduler(kind: str, **params: Any) -> dict[str, Any]:
    return {"scheduler": {"type": kind, "params": params}}


@rule(
    "runtime/engine.py: _scheduler_from_config",
    raised(
        "AssertionError: DeepSpeed does not recognize LR scheduler WarmupCosine",
        _scheduler("WarmupCosine", total_num_steps=10),
        {"scheduler": {"type": "WarmupCosineLR"}},
    ),
    raised(
        "AssertionError: DeepSpeed does not recognize LR scheduler warmuplr",
        _scheduler("warmuplr"),
    ),
)
def _unknown_type(setup: Setup) -> Finding | None:
    name = _type(setup)
    if name is None or name in _REQUIRED or name in _TORCH:
        return None
    known = (*_REQUIRED, *_TORCH)
    return unknown_type("scheduler", name, known, "WarmupDecayLR", "torch.optim.lr_scheduler")


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
            ("WarmupDecayLR", {"total_num_steps": 10}),
            ("WarmupCosineLR", {"total_num_steps": 10}),
            ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}),
        )
    ),
)
def _params(setup: Setup) -> Finding | None:
    section, name = setup.section("scheduler"), _type(setup)
    if name is None or _unknown_type.check(setup):
        return None
    given = section.get("params")
    missing = [key for key in _REQUIRED.get(name, ()) if key not in as_section(given)]
    if missing:
        named = " and ".join(f"scheduler.params.{key}" for key in missing)
        return Finding(message=f"scheduler.type={name} without {named}", advice=f"set {named}")
    if given is not None:
        return None
    return Finding(
        message=f"scheduler.type={name} without scheduler.params, which DeepSpeed unpacks",
        changes={"scheduler": {"params": {}}},
        advice="set scheduler.params to {}",
    )
