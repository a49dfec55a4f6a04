"""Settings that act after so many steps: a trial brings them forward and measures both phases.

1-bit optimizers compress what they send after `freeze_step` steps, thousands of them, and rounded
weights come after `schedule_offset`. A short trial would see the phase before alone. So it sets
that number to its own warm-up and as many steps as it measures at the least; the phase that it is
in is asked of the live engine after every step. 1-bit optimizers get a learning rate besides that
leaves the weights where they are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.contract import Measure
from autotune.trial.faults import ReadBackError

_FREEZE_KEYS = {
    "onebitadam": "freeze_step",
    "onebitlamb": "freeze_step",
    "zerooneadam": "var_freeze_step",
}
"""Optimizer that compresses -> its parameter that says after how many steps."""
_FLAGS = ("adam_freeze_key", "lamb_freeze_key", "freeze_key")
"""What these optimizers call it that they compress (runtime/fp16/onebit of 0.16.9 and 0.19.6)."""
_PARAMS = "optimizer.params"
_STANDSTILL = 1e-12
"""Learning rate of a trial whose optimizer compresses. A variance that is frozen after so few
steps is far too small: with 0.19.6 the loss was 535042 three steps later. What a step costs does
not depend on it; 0 would be divided by (0/1 Adam)."""
_SLACK = 60
"""Steps by which the phase may come late: fp16 skips some until its loss scale fits."""


def bring_forward(config: dict[str, Any], measure: Measure) -> dict[str, list[Any]]:
    """Set, in a ds_config, the steps after which something begins to act.

    A soak is left alone: it trains on from where another trial ended.

    Returns:
        Dotted key -> [its value in the configuration, the trial's]; empty where nothing waits.
    """
    if measure.checkpoint is not None:
        return {}
    # In 16 bits DeepSpeed makes a step of its own when it starts, which counts.
    first = measure.warmup_steps + measure.min_steps + 1
    changed: dict[str, list[Any]] = {}
    for section, path, name in _waiting(config):
        changed[f"{path}.{name}"] = [section.get(name), first]
        section[name] = first
        if path != _PARAMS:
            continue
        changed[f"{path}.lr"] = [section.get("lr"), _STANDSTILL]
        section["lr"] = _STANDSTILL
        if (scheduler := config.pop("scheduler", None)) is not None:
            changed["scheduler"] = [scheduler, None]
    return changed


def first_step_of(changed: Mapping[str, list[Any]]) -> int:
    """The step after which what was brought forward is to begin."""
    return max(ours for _, ours in changed.values() if type(ours) is int)


class Delay:
    """Knows whether what a trial brought forward has begun to act."""

    def __init__(self, engine: Any, after_steps: int) -> None:
        self._asks = _switches(engine)
        self._most = after_steps + _SLACK
        self._steps = 0
        self.has_begun = False
        """True if it acted in the step that comes next, when last asked."""

    def look(self) -> None:
        """Ask the engine, after a step.

        Raises:
            ReadBackError: It should have begun long ago.
        """
        self._steps += 1
        self.has_begun = bool(self._asks) and all(ask() for ask in self._asks)
        if not self.has_begun and self._steps > self._most:
            raise ReadBackError(
                f"compression: asked to begin after {self._most - _SLACK} steps, the engine has "
                f"not begun after {self._steps}"
            )


def _waiting(config: Mapping[str, Any]) -> list[tuple[dict[str, Any], str, str]]:
    """Sections of a ds_config that hold a number of steps to wait: section, its path, key."""
    found: list[tuple[dict[str, Any], str, str]] = []
    optimizer = config.get("optimizer") or {}
    if name := _FREEZE_KEYS.get(str(optimizer.get("type", "")).lower()):
        found.append((optimizer.setdefault("params", {}), _PARAMS, name))
    rounding = (config.get("compression_training") or {}).get("weight_quantization") or {}
    shared = rounding.get("shared_parameters") or {}
    if shared.get("enabled") is True:
        path = "compression_training.weight_quantization.shared_parameters"
        found.append((shared, path, "schedule_offset"))
    return found


def _switches(engine: Any) -> list[Callable[[], bool]]:
    """Questions to a live engine, whether each of its delayed settings acts."""
    optimizer, asks = engine.basic_optimizer, []
    asks += [_flag(optimizer, name) for name in _FLAGS if hasattr(optimizer, name)]
    scheduler = getattr(engine, "compression_scheduler", None)
    methods = getattr(scheduler, "different_compression_methods", {})
    if methods.get("weight_quantization", {}).get("enabled"):
        asks.append(_flag(scheduler, "weight_quantization_enabled"))
    return asks


def _flag(owner: Any, name: str) -> Callable[[], bool]:
    return lambda: bool(getattr(owner, name))
