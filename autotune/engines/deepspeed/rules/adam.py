"""Adam and AdamW: whether a configuration makes DeepSpeed's own for the CPU."""

from autotune.engines.deepspeed.rules.base import Setup, params
from autotune.space.rule import Patch

CPU_ADAM = params(torch_adam=None)
"""Keys that, laid over a configuration that offloads an Adam, make it DeepSpeed's own."""


def uses_cpu_adam(setup: Setup) -> bool:
    """Whether an offloaded optimizer is DeepSpeedCPUAdam (engine.py: _configure_basic_optimizer).

    Without an optimizer section the script brings its own, which cannot be known here: the answer
    is yes. ZenFlow's is a subclass, and DeepSpeed asks for the exact type.
    """
    if not setup.optimizer:
        return True
    is_adam = setup.optimizer in ("adam", "adamw") and setup.zero.get("zenflow") is None
    return is_adam and not setup.optimizer_params.get("torch_adam", False)


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
