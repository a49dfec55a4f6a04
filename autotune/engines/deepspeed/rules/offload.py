"""Offload: where optimizer states and parameters live, and which stage can do it."""

from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, params, zero
from autotune.engines.deepspeed.rules.words import finding
from autotune.space.rule import Finding, Patch, rule

CPU_ADAM = params(torch_adam=None)
"""Keys that, laid over a configuration that offloads an Adam, make it DeepSpeed's own."""


def cpu_adam_by(setup: Setup) -> Patch:
    """The change that makes an offloaded optimizer DeepSpeedCPUAdam; empty if none would."""
    if setup.optimizer not in ("adam", "adamw") or setup.zero.get("zenflow") is not None:
        return {}
    return CPU_ADAM


def adam_in_words(setup: Setup) -> str:
    """All that decides which Adam it is."""
    torch_adam = str(bool(setup.optimizer_params.get("torch_adam"))).lower()
    zenflow = "" if setup.zero.get("zenflow") is None else ", with ZenFlow's own Adam"
    kind = setup.optimizer or "the script's own"
    return f"optimizer.type={kind}, torch_adam={torch_adam}{zenflow}"


def _ratio(setup: Setup) -> float:
    return float(setup.zero_section("offload_optimizer").get("ratio", 1))


@rule("runtime/zero/stage3.py:313-316")
def _ratio_needs_cpu_adam(setup: Setup) -> Finding | None:
    if _ratio(setup) >= 1 or setup.stage != 3:
        return None
    if setup.optimizer_offload == "none" or setup.uses_cpu_adam:
        return None
    changes = cpu_adam_by(setup) or zero(offload_optimizer={"ratio": 1.0})
    way = "" if setup.optimizer in ("adam", "adamw") else "or set optimizer.type to AdamW"
    facts: dict[str, Any] = {"ratio": _ratio(setup), "adam": adam_in_words(setup), "way": way}
    return finding("ratio_needs_cpu_adam", changes=changes, **facts)
