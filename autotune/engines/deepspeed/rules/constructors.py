"""Parameters of the constructors of optimizers and schedulers, as their own releases took them.

`constructors.json` is recorded by `python -m tests.record_constructors`, which gives a few values
of each kind to every parameter and lets what was built take some steps. A value between two that
were tried is refused where both were; nobody says anything where only one was.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.rules.base import Setup, as_section
from autotune.engines.deepspeed.rules.releases import is_at_least

DATA_FILE = Path(__file__).with_name("constructors.json")

WHOLE = (-2, -1, 0, 1, 2, 10)
"""Whole numbers with which every parameter is tried."""
BROKEN = (-2.0, -1.0, -1e-9, 0.0, 1e-9, 0.5, 1 - 1e-9, 1.0, 1 + 1e-9, 1.5, 2.0, 10.0)
_NUMBER_AS_TEXT, _TEXT = "0.5", "words"
SAMPLES: tuple[Any, ...] = (
    *(None, True, False, _NUMBER_AS_TEXT, _TEXT, [0.5], {}),
    *(*WHOLE, *BROKEN),
)
"""Values with which every parameter is tried."""

_BY_DEVICE = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""Switches of torch's that other devices take: they were tried on a CPU."""


_IN_FILE = {"adamw_mode": "adam_w_mode"}
"""Parameter that DeepSpeed gives itself -> the key of `optimizer.params` that it takes it from."""

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
    texts: frozenset[str] = frozenset()
    """Parameters that are words, or may be: what they say was not tried."""
    never: str = ""
    """Error that it raised with anything that a file can hold; empty: a file can make it."""
    alone: str = ""
    """Error that it raised with the parameters that it needs alone; empty: none."""
    refuses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Parameter -> sample -> what it raised."""
    wants: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> its legal values in words; none where they are no numbers."""

    @cached_property
    def names(self) -> frozenset[str]:
        """The same, to ask of many configurations; DeepSpeed takes care of max_grad_norm."""
        return frozenset((*self.takes, "max_grad_norm"))

    @cached_property
    def names_with_taken_out(self) -> frozenset[str]:
        """The same for an Adam."""
        return self.names | frozenset(TAKEN_OUT)

    def refusal(self, parameter: str, value: Any, *, accelerator: str) -> str:
        """Error that a value raises, as `type: message`; empty: none, as far as was tried."""
        refused = self.refuses.get(parameter)
        if not refused or (parameter in _BY_DEVICE and accelerator != "cpu"):
            return ""
        if isinstance(value, str) and parameter in self.texts:
            return ""
        # Almost every configuration that is judged is one that a template rendered.
        key = (parameter, *_key(value))
        try:
            return self._answers[key]
        except KeyError:
            return self._answers.setdefault(key, _refusal(refused, value))
        except TypeError:  # a section is no key
            return _refusal(refused, value)

    @cached_property
    def _answers(self) -> dict[tuple[Any, ...], str]:
        return {}


def sample_name(value: Any) -> str:
    """The name under which a sample is recorded; what JSON lacks, a date of YAML say, has none."""
    return json.dumps(value, default=str)


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
    return _constructors()[f"optimizers/{optimizer}"].takes


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
    found = _constructors().get(path)
    if found is None:
        return None
    if found.name.startswith("torch."):
        return found if is_at_least(_data()["torch"], torch_version or "0") else None
    if is_at_least(version, _data()["deepspeed"]):
        return found
    return Constructor(name=found.name, takes=found.takes, needs=found.needs)


@cache
def _data() -> Mapping[str, Any]:
    data: Mapping[str, Any] = json.loads(DATA_FILE.read_text(encoding="utf-8"))
    return data


@cache
def _constructors() -> Mapping[str, Constructor]:
    prefix = {"optimizers": "torch.optim", "schedulers": "torch.optim.lr_scheduler"}
    return {
        f"{group}/{name}": Constructor(
            name=name.replace("torch", prefix[group], 1) if name.startswith("torch.") else name,
            takes=tuple(recorded["takes"]),
            needs=tuple(recorded["needs"]),
            texts=frozenset(recorded.get("texts", ())),
            never=recorded.get("never", ""),
            alone=recorded.get("alone", ""),
            refuses={
                _IN_FILE.get(parameter, parameter): {
                    sample: raised for raised, tried in wrong.items() for sample in tried
                }
                for parameter, wrong in recorded.get("refuses", {}).items()
            },
            wants={
                _IN_FILE.get(parameter, parameter): words
                for parameter, words in recorded.get("wants", {}).items()
            },
        )
        for group in prefix
        for name, recorded in _data()[group].items()
    }


def _key(value: Any) -> tuple[Any, ...]:
    """A value with its type: 1 is neither 1.0 nor true."""
    if isinstance(value, list):
        return (list, *map(_key, value))
    return type(value), value


def _refusal(refused: Mapping[str, str], value: Any, at: str = "") -> str:
    """Error that a value raises, by the samples next to it."""
    if isinstance(value, str):
        return refused.get(at + sample_name(_NUMBER_AS_TEXT if _is_number(value) else _TEXT), "")
    if type(value) in (int, float):
        return _of_number(refused, value, at)
    if isinstance(value, Mapping):
        return refused.get(at + sample_name({}), "")
    if not isinstance(value, list):
        return refused.get(at + sample_name(value), "")
    if not any(name.startswith("length ") for name in refused):
        return refused.get(sample_name([0.5]), "")
    wrong = refused.get(f"length {min(len(value), longest(refused))}", "")
    items = (_refusal(refused, item, f"item {n}: ") for n, item in enumerate(value))
    return wrong or next(filter(None, items), "")


def _of_number(refused: Mapping[str, str], value: float, at: str) -> str:
    tried: Sequence[float] = WHOLE if type(value) is int else BROKEN
    if not -math.inf < value < math.inf:
        return ""
    after = bisect_left(tried, value)
    if after < len(tried) and tried[after] == value:
        return refused.get(at + sample_name(tried[after]), "")
    beside = [
        refused.get(at + sample_name(one), "") for one in tried[max(0, after - 1) : after + 1]
    ]
    return beside[0] if all(beside) else ""


def longest(refused: Mapping[str, str]) -> int:
    """Length of the longest list that was tried for a parameter."""
    return max(int(name.removeprefix("length ")) for name in refused if name.startswith("length "))


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
