"""The scheduler section: types that DeepSpeed builds, where it can, and their parameters."""

from autotune.engines.deepspeed.rules.arguments import missing, unknown_arguments, wrong_arguments
from autotune.engines.deepspeed.rules.base import Setup, as_section, unknown_type
from autotune.engines.deepspeed.rules.constructors import names_of, scheduler_of
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, rule

_OWN = ("LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR")
"""DeepSpeed's own (runtime/lr_schedules.py)."""


def _type(setup: Setup) -> str | None:
    name = setup.section("scheduler").get("type")
    return name if isinstance(name, str) else None


@rule("runtime/engine.py: _scheduler_from_config")
def _unknown_type(setup: Setup) -> Finding | None:
    name = _type(setup)
    # Any name that is not DeepSpeed's is looked up in torch, to the letter.
    if name is None or name in _OWN or name in names_of("schedulers"):
        return None
    known = (*_OWN, *names_of("schedulers"))
    return unknown_type("scheduler", name, known, "WarmupDecayLR", "torch.optim.lr_scheduler")


@rule("runtime/engine.py: _scheduler_from_config, runtime/lr_schedules.py")
def _missing_params(setup: Setup) -> Finding | None:
    section = setup.section("scheduler")
    made = scheduler_of(setup) if section else None
    if made is None or made.never:
        return None
    name, given = _type(setup), section.get("params")
    if lacking := missing("scheduler", made, as_section(given)):
        return finding("missing_params", name=name, named=" and ".join(lacking))
    if given is None:
        return finding("no_params", name=name)
    if made.alone and set(made.needs) >= set(as_section(given)):
        needs = ", ".join(made.needs)
        return finding("params_alone", name=name, needs=needs, why=made.alone)
    return None


@rule("the constructors' signatures, in constructors.json")
def _unknown_param(setup: Setup) -> list[Finding] | None:
    given = as_section(setup.section("scheduler").get("params"))
    made = scheduler_of(setup) if given else None
    if made is None or made.never:
        return None
    return unknown_arguments("scheduler", made, given)


@rule("the constructors and some steps, in constructors.json")
def _param_value(setup: Setup) -> list[Finding] | None:
    given = as_section(setup.section("scheduler").get("params"))
    made = scheduler_of(setup) if given else None
    if made is None or not made.refuses:
        return None
    return wrong_arguments("scheduler", made, given, setup)


@rule(
    "torch.optim.lr_scheduler: it asks for torch's Optimizer, which DeepSpeed's wrappers are not"
)
def _torch_under_wrapper(setup: Setup) -> Finding | None:
    name = _type(setup)
    if name is None or name in _OWN or name not in names_of("schedulers"):
        return None
    if setup.stage == 0 and setup.dtype == "fp32":
        return None
    wrapped = f"stage {setup.stage}" if setup.stage else f"{setup.dtype} at stage 0"
    return finding("torch_under_wrapper", name=name, wrapped=wrapped, own=", ".join(_OWN))


@rule("torch.optim.lr_scheduler: what no configuration can give")
def _never_made(setup: Setup) -> Finding | None:
    made = scheduler_of(setup) if setup.section("scheduler") else None
    if made is None or not made.never or _torch_under_wrapper.check(setup):
        return None
    return finding("never_made", name=_type(setup), made=made.name, own=", ".join(_OWN))
