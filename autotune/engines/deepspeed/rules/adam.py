"""Adam and AdamW: which of its implementations a configuration makes, and their parameters."""

from autotune.engines.deepspeed.rules.base import Setup, params
from autotune.space.rule import Patch

_COMMON = ("lr", "betas", "eps", "weight_decay", "amsgrad")
# Keys that DeepSpeed takes out before it builds any of them, or that another rule refuses.
_TAKEN_OUT = ("torch_adam", "adam_w_mode", "fp32_optimizer_states", "max_grad_norm")
PARAMS = {
    "torch's": (*_COMMON, "maximize", "foreach", "capturable", "differentiable", "fused"),
    "FusedAdam": (*_COMMON, "bias_correction", "set_grad_none"),
    "DeepSpeedCPUAdam": (*_COMMON, "bias_correction"),
}
"""Implementation -> what its constructor takes (torch/optim/adamw.py, ops/adam/fused_adam.py,
cpu_adam.py)."""

CPU_ADAM = params(torch_adam=None)
"""Keys that, laid over a configuration that offloads an Adam, make it DeepSpeed's own."""


def implementation(setup: Setup) -> str:
    """Which of `PARAMS` an Adam is (engine.py: get_optimizer_configuration).

    ZenFlow's is DeepSpeedCPUAdam with one more parameter, which DeepSpeed gives itself.
    """
    if setup.optimizer_params.get("torch_adam", False):
        return "torch's"
    return "FusedAdam" if setup.optimizer_offload == "none" else "DeepSpeedCPUAdam"


def params_of(kind: str) -> tuple[str, ...]:
    """Every key of `optimizer.params` that an implementation trains with."""
    return (*PARAMS[kind], *_TAKEN_OUT)


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
