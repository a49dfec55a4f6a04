"""Offload: where optimizer states and parameters live, and which stage can do it."""

from autotune.engines.deepspeed.rules.base import Setup, params, zero
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


@rule("runtime/zero/partition_parameters.py:1225-1230")
def _nvme_without_path(setup: Setup) -> Finding | None:
    if setup.stage != 3:
        return None
    found = [
        f"zero_optimization.{name}"
        for name in ("offload_optimizer", "offload_param")
        for section in [setup.zero_section(name)]
        if section.get("device") == "nvme" and section.get("nvme_path") is None
    ]
    if not found:
        return None
    return Finding(
        message=" and ".join(f"{name}.device=nvme" for name in found) + " without a nvme_path",
        advice=f"set {' and '.join(f'{name}.nvme_path' for name in found)} to a folder on a "
        "local disk",
    )


@rule("runtime/zero/stage3.py:313-316")
def _ratio_needs_cpu_adam(setup: Setup) -> Finding | None:
    if _ratio(setup) >= 1 or setup.stage != 3:
        return None
    if setup.optimizer_offload == "none" or setup.uses_cpu_adam:
        return None
    is_adam = setup.optimizer in ("adam", "adamw")
    return Finding(
        message=f"zero_optimization.offload_optimizer.ratio={_ratio(setup):g} needs DeepSpeed's "
        f"CPU Adam, which this is not: {adam_in_words(setup)}",
        changes=cpu_adam_by(setup) or zero(offload_optimizer={"ratio": 1.0}),
        advice="" if is_adam else "or set optimizer.type to AdamW",
    )
