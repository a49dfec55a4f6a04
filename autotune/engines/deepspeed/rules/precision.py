"""Number formats: of the model, of accumulated and communicated gradients, of master weights."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Setup
from autotune.engines.deepspeed.rules.offload import adam_in_words, cpu_adam_by
from autotune.engines.deepspeed.rules.sections import CANONICAL
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Choice, Finding, Patch, rule

MASTERS, STATES = "bf16_master_weights_and_grads", "bf16_optimizer_states"
_OFFLOADED_STATES_SINCE = "0.19.1"  # DeepSpeed's pull request 8010


@rule("runtime/config.py:511")
def _fp16_and_bf16(setup: Setup) -> Finding | None:
    if setup.section("fp16").get("enabled") is not True or setup.bf16.get("enabled") is not True:
        return None
    message = "fp16.enabled and bf16.enabled are both true"
    if setup.precision is None:
        off = (Choice(changes={name: {"enabled": False}}) for name in ("fp16", setup.bf16_name))
        return Finding(message=message, advice="switch one of them off", choices=tuple(off))
    loser = "fp16" if setup.precision == "bf16" else setup.bf16_name
    return Finding(message=message, changes={loser: {"enabled": False}})


@rule("runtime/engine.py: the sections decide, nothing else", consequence="differs")
def _other_than_asked(setup: Setup) -> Finding | None:
    wanted, found = setup.precision, setup.dtype
    if wanted is None or found == wanted or _fp16_and_bf16.check(setup):
        return None
    names = {"fp16": "fp16", "bf16": setup.bf16_name if found == "bf16" else "bf16"}
    changes = {
        names[name]: {"enabled": on}
        for name, on in ((found, False), (wanted, True))
        if name in names
    }
    return finding("other_than_asked", changes=changes, wanted=wanted, found=found)


@rule("runtime/engine.py: _do_sanity_check")
def _unsupported(setup: Setup) -> Finding | None:
    there = setup.environment.precisions
    if setup.dtype in there:
        return None
    other = next((name for name in ("bf16", "fp16") if name in there), "fp32")
    device, known = setup.environment.device_name, ", ".join(there)
    facts: dict[str, Any] = {"dtype": setup.dtype, "device": device}
    return finding("unsupported_precision", there=known, other=other, **facts)


@rule("runtime/engine.py:1812-1829")
def _param_dtype(setup: Setup) -> Finding | None:
    wanted = setup.section("data_types").get("param_dtype")
    if wanted is None or CANONICAL.get(wanted) == setup.dtype or _fp16_and_bf16.check(setup):
        return None
    return finding("param_dtype", wanted=wanted, dtype=setup.dtype)


@rule("runtime/engine.py:2323")
def _accumulation_at_stage_0(setup: Setup) -> Finding | None:
    wanted = setup.section("data_types").get("grad_accum_dtype")
    is_same = wanted is None or CANONICAL.get(wanted) == setup.dtype
    if is_same or setup.stage != 0 or _fp16_and_bf16.check(setup):
        return None
    return finding("accumulation_at_stage_0", wanted=wanted, dtype=setup.dtype)


def _low_masters(setup: Setup) -> tuple[str, str] | None:
    """The section and key that ask for 16-bit master weights."""
    if setup.bf16_masters:
        return setup.bf16_name, MASTERS
    if setup.section("fp16").get("fp16_master_weights_and_grads") is True:
        return "fp16", "fp16_master_weights_and_grads"
    return None


@rule("runtime/base_optimizer.py:507-518, zero/stage_1_and_2.py:331, zero/stage3.py:299")
def _master_weights_offload(setup: Setup) -> Finding | None:
    if setup.stage == 0 or (found := _low_masters(setup)) is None:
        return None
    section, key = found
    is_bf16, is_offloaded = section != "fp16", setup.optimizer_offload != "none"
    is_asked = is_offloaded and setup.is_at_least(_OFFLOADED_STATES_SINCE)
    if is_bf16 and setup.bf16_states and not is_asked:
        return None
    if setup.uses_bf16_optimizer or (is_offloaded and setup.uses_cpu_adam):
        return None
    if is_bf16 and not is_offloaded:
        changes: Patch = {section: {STATES: True}}
    else:
        off = {key: False} | ({STATES: None} if is_bf16 else {})
        changes = (is_offloaded and cpu_adam_by(setup)) or {section: off}
    facts: dict[str, Any] = {"section": section, "key": key, "adam": adam_in_words(setup)}
    return finding("masters_offload", changes=changes, device=setup.optimizer_offload, **facts)
