"""Parameters of the constructors of optimizers and schedulers, as their own releases took them.

`constructors.json` is recorded by `make constructors`, which gives a few values of each kind to
every parameter and lets what was built take some steps. A number between two that were tried is
refused where both were; nobody says anything where only one was.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from autotune.base.data import table_beside
from autotune.engines.deepspeed.rules.base import Setup, as_section
from autotune.engines.releases import is_at_least

DATA_FILE = Path(__file__).with_name("constructors.json")

_BY_DEVICE = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Switches of torch's that other devices take: they were tried on a CPU."""


TAKEN_OUT = ("torch_adam", "adam_w_mode", "fp32_optimizer_states")
"""Keys of `optimizer.params` that DeepSpeed takes out before it builds an Adam."""


@dataclass(frozen=True, kw_only=True)
class Constructor:
    """The constructor of one optimizer or scheduler."""

    name: str
    """Name as people write it: `torch.optim.SGD`, `DeepSpeedCPUAdam`."""
    takes: Sequence[str]
    """Parameters that a configuration can give, in the order of the signature."""
    needs: Sequence[str] = ()
    """Parameters without a default."""
    texts: Collection[str] = ()
    """Parameters that are words, or may be: what they say was not tried."""
    never: str = ""
    """Error that it raised with anything that a file can hold; empty: a file can make it."""
    alone: str = ""
    """Error that it raised with the parameters that it needs alone; empty: none."""
    refuses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Parameter -> kind of value -> number of what it raised, 0: nothing; of numbers for each
    range, of lists for each length and each item."""
    wants: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> its legal values in words; none where they are no numbers."""

    def refusal(self, parameter: str, value: Any, *, accelerator: str) -> str:
        """Error that a value raises, as `type: message`; empty: none, as far as was tried."""
        refused = self.refuses.get(parameter)
        if not refused or (parameter in _BY_DEVICE and accelerator != "cpu"):
            return ""
        if isinstance(value, str) and parameter in self.texts:
            return ""
        raised: str = _data()["raised"][_refusal(refused, value)]
        return raised


def optimizer_of(setup: Setup) -> Constructor | None:
    """The optimizer that DeepSpeed builds (engine.py: _configure_basic_optimizer).

    None where the configuration names none, or one that is not known here, such as those of mup.
    """
    kind = setup.optimizer
    is_on_cpu = setup.optimizer_offload != "none"
    if not kind or kind in ("muadam", "muadamw", "musgd"):
        return None
    if kind in ("adam", "adamw"):
        return _ours(f"optimizers/{_adam(setup, is_on_cpu)}", setup)
    if kind == "adagrad":
        name = "DeepSpeedCPUAdagrad" if is_on_cpu else "torch.Adagrad"
    elif kind == "lion":
        name = "DeepSpeedCPULion" if is_on_cpu else "FusedLion"
    elif kind == "lamb":
        name = "FusedLamb"
    elif kind == "muon":
        name = "Muon"
    else:
        name = f"torch.{setup.section('optimizer').get('type')}"
    return _ours(f"optimizers/{name}", setup)


def scheduler_of(setup: Setup) -> Constructor | None:
    """The scheduler that DeepSpeed builds; None where the configuration names none that is known.

    DeepSpeed's own come before torch's of the same name (engine.py: _scheduler_from_config).
    """
    name = setup.section("scheduler").get("type")
    if not isinstance(name, str):
        return None
    return _ours(f"schedulers/{name}", setup) or _ours(f"schedulers/torch.{name}", setup)


def schedule_decides(setup: Setup, made: Constructor) -> bool:
    """Whether a scheduler puts its own learning rate over one that nobody has looked at yet.

    These optimizers look at it in the first step.
    """
    if made.name not in ("FusedAdam", "Muon"):
        return False
    section = setup.section("scheduler")
    kind = section.get("type")
    if kind == "WarmupLR":
        return as_section(section.get("params")).get("warmup_max_lr") is not None
    return kind in ("WarmupDecayLR", "OneCycle", "LRRangeTest")


def takes(optimizer: str) -> Sequence[str]:
    """Parameters of an optimizer, by its recorded name."""
    return tuple(_data()["optimizers"][optimizer]["takes"])


@cache
def names_of(group: str) -> tuple[str, ...]:
    """Types that torch has: `optimizers` or `schedulers`."""
    return tuple(
        name.removeprefix("torch.") for name in _data()[group] if name.startswith("torch.")
    )


def _adam(setup: Setup, is_on_cpu: bool) -> str:
    given = setup.optimizer_params
    if given.get("torch_adam", False):
        is_w = setup.optimizer == "adamw" or given.get("adam_w_mode", True)
        return "torch.AdamW" if is_w else "torch.Adam"
    if not is_on_cpu:
        return "FusedAdam"
    return "DeepSpeedCPUAdam" if setup.zero.get("zenflow") is None else "ZenFlowCPUAdam"


def _ours(path: str, setup: Setup) -> Constructor | None:
    return _of_release(path, setup.version, setup.environment.torch_version)


@lru_cache(maxsize=256)
def _of_release(path: str, version: str, torch_version: str) -> Constructor | None:
    """A constructor as it was recorded, without the values where the release may say otherwise.

    A newer torch may take more parameters, an older DeepSpeed took values that it refuses now.
    """
    found = _constructor(path)
    if found is None:
        return None
    if found.name.startswith("torch."):
        return found if is_at_least(_data()["torch"], torch_version or "0") else None
    if is_at_least(version, _data()["deepspeed"]):
        return found
    return Constructor(name=found.name, takes=found.takes, needs=found.needs)


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = table_beside(__file__, DATA_FILE.name)
    return data


@cache
def _constructor(path: str) -> Constructor | None:
    group, _, name = path.partition("/")
    recorded = _data()[group].get(name)
    if recorded is None:
        return None
    prefix = "torch.optim" if group == "optimizers" else "torch.optim.lr_scheduler"
    return Constructor(
        name=name.replace("torch", prefix, 1) if name.startswith("torch.") else name,
        **recorded,
    )


def kind_of(value: Any) -> str:
    """Name of the kind of a value under which it is recorded; what JSON lacks has none."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, str):
        return "number as text" if _is_number(value) else "text"
    if isinstance(value, Mapping):
        return "section"
    return type(value).__name__ if type(value) in (int, float, list) else ""


def _refusal(refused: Mapping[str, Any], value: Any) -> int:
    """Number of the error that a value raises, by the samples next to it."""
    kind = kind_of(value)
    found = refused.get(kind, 0)
    if kind == "list" and "lengths" in refused:
        wrong: int = refused["lengths"][min(len(value), len(refused["lengths"]) - 1)]
        items = map(_refusal, refused["items"], value)
        return wrong or next(filter(None, items), 0)
    if kind in ("int", "float"):
        ranges = found if found and -math.inf < value < math.inf else ()
        for low, high, raised in ranges:
            if (low is None or low <= value) and (high is None or value <= high):
                return int(raised)
        return 0
    return int(found)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
