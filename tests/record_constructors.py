"""What the installed optimizers and schedulers take: their signatures, and what they refuse.

python -m tests.record_constructors [--check]

Writes `autotune/engines/deepspeed/rules/constructors.json`, or says by its exit status whether it
is up to date, and what differs. Every parameter of every constructor is given a few values of each
kind, and the thing that was built takes some steps: what raises is recorded with what it raised.
"""

import contextlib
import difflib
import inspect
import json
import logging
import math
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.engines.deepspeed.extensions import build, environment
from autotune.engines.deepspeed.rules.constructors import DATA_FILE, kind_of
from autotune.trial.prebuilt import load_as_built, reuse_cpu_info
from tests.recorded_json import as_text

Constructed = Callable[..., Any]
Attempt = Callable[[Constructed, Mapping[str, Any]], None]

WHOLE: tuple[float, ...] = (-2, -1, 0, 1, 2, 10)
BROKEN: tuple[float, ...] = (
    *(-2.0, -1.0, -1e-9, 0.0, 1e-9, 0.5),
    *(1 - 1e-9, 1.0, 1 + 1e-9, 1.5, 2.0, 10.0),
)
_OTHERS: tuple[Any, ...] = (None, True, False, "0.5", "words", [0.5], {})
SAMPLES: tuple[Any, ...] = (*_OTHERS, *WHOLE, *BROKEN)
"""Values with which every parameter is tried."""

STEPS = 3
_BATCH_SIZE = 8

_GIVEN = {"DeepSpeedCPUAdam": ("adamw_mode",), "ZenFlowCPUAdam": ("adamw_mode", "overlap_step")}
"""Parameters that DeepSpeed gives itself: from a file they would be given twice."""

_IN_FILE = {"adamw_mode": "adam_w_mode"}
"""Parameter that DeepSpeed gives itself -> the key of `optimizer.params` that it takes it from."""

_UNTRIED = ("FusedLion", "FusedLamb")
"""Those that need CUDA: their signatures alone."""

_SELDOM_BUILT = {"DeepSpeedCPUAdagrad": "cpu_adagrad", "DeepSpeedCPULion": "cpu_lion"}
"""Those whose extension takes minutes to compile: tried where `benchmarks/check_truth.py` has
built it, and elsewhere as the file has them."""

_BESIDE = {"nesterov": {"momentum": 0.9}}
"""Parameter -> what else has to be given for it to be taken."""

_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "WarmupDecayLR": {"total_num_steps": 10},
    "WarmupCosineLR": {"total_num_steps": 10},
    "OneCycle": {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1},
    "CosineAnnealingLR": {"T_max": 10},
    "CosineAnnealingWarmRestarts": {"T_0": 4},
    "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1},
    "ExponentialLR": {"gamma": 0.9},
    "MultiStepLR": {"milestones": [2, 4]},
    "OneCycleLR": {"max_lr": 0.1, "total_steps": 50},
    "StepLR": {"step_size": 2},
}
"""Constructor -> values for what has no default."""


def main(arguments: list[str]) -> int:
    """Write the file; with `--check` compare it instead."""
    text = as_text(recorded(), 4)
    if "--check" in arguments:
        old = DATA_FILE.read_text(encoding="utf-8")
        print(*difflib.unified_diff(old.splitlines(), text.splitlines(), lineterm=""), sep="\n")
        return 0 if old == text else 1
    DATA_FILE.write_text(text, encoding="utf-8")
    return 0


def recorded() -> dict[str, Any]:
    """What is recorded of the installed releases; this process's environment is changed for it."""
    build("cpu", lambda line: print(line, file=sys.stderr))
    # Muon's kernels run as they are: compiling them would take longer than all the rest.
    os.environ.update(environment("cpu") | {"TORCHDYNAMO_DISABLE": "1"})
    load_as_built()
    reuse_cpu_info()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _silence()
        return numbered(
            {
                "deepspeed": version("deepspeed"),
                "torch": version("torch").partition("+")[0],
                "raised": [""],
                "optimizers": {
                    **{name: describe(kind, try_optimizer) for name, kind in our_optimizers()},
                    **{f"torch.{name}": describe(kind, try_optimizer) for name, kind in torchs()},
                },
                "schedulers": {
                    **{name: describe(kind, try_scheduler) for name, kind in our_schedulers()},
                    **{
                        f"torch.{name}": describe(kind, try_scheduler)
                        for name, kind in torch_schedulers()
                    },
                },
            }
        )


def numbered(found: dict[str, Any]) -> dict[str, Any]:
    """The same with the number of each error in place of its words, which stand in `raised`."""
    words = found["raised"]

    def number(value: Any) -> Any:
        if isinstance(value, str):
            if value not in words:
                words.append(value)
            return words.index(value)
        if isinstance(value, dict):
            return {name: number(inner) for name, inner in value.items()}
        return [number(inner) for inner in value] if isinstance(value, list) else value

    for group in ("optimizers", "schedulers"):
        for constructor in found[group].values():
            if "refuses" in constructor:
                constructor["refuses"] = number(constructor["refuses"])
    return found


def _silence() -> None:
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)


def our_optimizers() -> Iterator[tuple[str, Constructed]]:
    """Those of DeepSpeed's own that a configuration can name (engine.py)."""
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam, ZenFlowCPUAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    for kind in (
        *(FusedAdam, DeepSpeedCPUAdam, ZenFlowCPUAdam, DeepSpeedCPUAdagrad),
        *(DeepSpeedCPULion, FusedLion, FusedLamb),
    ):
        yield kind.__name__, kind
    yield "Muon", muon()


def muon() -> Callable[..., Any]:
    """Muon with Adam for what it does not train, out of one section (runtime/engine.py)."""
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam

    def made(parameters: list[Any], **given: Any) -> Any:
        bias = torch.nn.Parameter(torch.ones(4))
        for one in (*parameters, bias):
            one.use_muon = one.dim() > 1
        groups = DeepSpeedEngine._muon_param_groups([*parameters, bias], given)
        return MuonWithAuxAdam(groups)

    names = {
        *(*DeepSpeedEngine._MUON_HALF_KEYS, *DeepSpeedEngine._ADAM_HALF_KEYS),
        *("muon_lr", "adam_lr"),
    }
    one = inspect.Parameter("parameters", inspect.Parameter.POSITIONAL_ONLY)
    others = (
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default={"betas": (0.9, 0.95)}.get(name),
            annotation=str if name == "ns_method" else float,
        )
        for name in sorted(names)
    )
    vars(made)["__signature__"] = inspect.Signature([one, *others])
    made.__name__ = "Muon"
    return made


def torchs() -> Iterator[tuple[str, type]]:
    """Those of torch.optim."""
    import torch

    for name, kind in vars(torch.optim).items():
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer):
            yield name, kind


def our_schedulers() -> Iterator[tuple[str, type]]:
    """DeepSpeed's schedulers."""
    from deepspeed.runtime import lr_schedules

    for name in lr_schedules.VALID_LR_SCHEDULES:
        yield name, getattr(lr_schedules, name)


def torch_schedulers() -> Iterator[tuple[str, type]]:
    """Those of torch.optim.lr_scheduler, without aliases."""
    from torch.optim import lr_scheduler

    for name, kind in vars(lr_scheduler).items():
        is_one = inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler)
        if is_one and kind.__name__ == name and not name.startswith("_"):
            yield name, kind


def describe(kind: Constructed, attempt: Attempt) -> dict[str, Any]:
    """What is recorded of one constructor."""
    others = list(inspect.signature(kind).parameters.values())[1:]
    if kind.__name__ == "ZenFlowCPUAdam":  # its own signature is *args and **kwargs
        (base,) = kind.__bases__
        others = list(inspect.signature(base).parameters.values())[1:]
    needs = [one.name for one in others if one.default is inspect.Parameter.empty]
    found: dict[str, Any] = {
        "takes": [one.name for one in others if one.name not in _GIVEN.get(kind.__name__, ())],
        "needs": needs,
        "texts": [one.name for one in others if _may_be_text(one)],
    }
    if kind.__name__ in _UNTRIED:
        return found
    if kind.__name__ in _SELDOM_BUILT and not _is_built(_SELDOM_BUILT[kind.__name__]):
        return _recorded_before(kind.__name__) | found
    given = dict(_NEEDED.get(kind.__name__, {}))
    if never := refused(attempt, kind, given):
        return found | {"never": never}
    found["alone"] = refused(attempt, kind, {name: given[name] for name in needs})
    defaults = {one.name: given.get(one.name, one.default) for one in others}
    refuses, wants = {}, {}
    for name in defaults:
        wrong: dict[str, str] = {}
        for sample, value in samples(defaults[name]):
            raised = refused(attempt, kind, given | {name: value})
            if raised and name in _BESIDE:
                raised = refused(attempt, kind, given | _BESIDE[name] | {name: value})
            if raised:
                wrong[sample] = _without(value, raised)
        if wrong:
            refuses[_IN_FILE.get(name, name)] = by_kind(wrong)
        if words := wanted(wrong) if wrong else "":
            wants[_IN_FILE.get(name, name)] = words
    return found | {"refuses": refuses, "wants": wants}


def by_kind(refused: Mapping[str, str], at: str = "") -> dict[str, Any]:
    """What was raised, by the kind of the value: of neighbours among numbers once."""
    found: dict[str, Any] = {}
    for value in _OTHERS:
        if raised := refused.get(at + sample_name(value)):
            found[kind_of(value)] = raised
    for tried in (WHOLE, BROKEN):
        ranges: list[list[Any]] = []
        for at_number, number in enumerate(tried):
            if not (raised := refused.get(at + sample_name(number))):
                continue
            low = None if not at_number else number
            high = None if at_number + 1 == len(tried) else number
            if ranges and ranges[-1][1] == tried[at_number - 1]:
                # Between two that were refused, what the lower one raised.
                is_same = ranges[-1][2] == raised
                ranges[-1][1] = high if is_same else math.nextafter(number, -math.inf)
                if is_same:
                    continue
            ranges.append([low, high, raised])
        if ranges:
            found[kind_of(tried[0])] = ranges
    lengths = [int(name.removeprefix("length ")) for name in refused if name.startswith("length ")]
    if lengths and not at:
        found["lengths"] = [refused.get(f"length {n}", "") for n in range(max(lengths) + 1)]
        items = [name.split(maxsplit=2)[1] for name in refused if name.startswith("item ")]
        n_items = max((int(one.rstrip(":")) + 1 for one in items), default=0)
        found["items"] = [by_kind(refused, f"item {n}: ") for n in range(n_items)]
    return found


def sample_name(value: Any) -> str:
    """The name under which what a sample raised is kept."""
    return json.dumps(value)


def wanted(refused: Mapping[str, str], at: str = "") -> str:
    """The legal values of a parameter in words; empty where they are no numbers."""
    lengths = [name for name in refused if name.startswith("length ")]
    if lengths and not at:
        longest = max(int(name.removeprefix("length ")) for name in lengths)
        right = [n for n in range(longest + 1) if f"length {n}" not in refused]
        item = wanted(refused, "item 0: ").replace("a number ", "")
        few = f"a list of {right[0]} numbers" if len(right) == 1 else "a list of numbers"
        return few if item in ("", "a number") else f"{few}, each {item}"
    broken, whole = (
        [one for one in tried if at + sample_name(one) not in refused] for tried in (BROKEN, WHOLE)
    )
    if not broken and not whole:
        return ""
    taken = sorted({*broken, *whole})
    noun = "a number" if broken else "a whole number"
    bounds = [_low(taken[0]), _high(taken[-1])] if broken else [_low_whole(taken[0])]
    words = " and ".join(filter(None, bounds))
    null = "" if at + sample_name(None) in refused else " or null"
    return f"{noun} {words}".strip() + null


def _low(least: float) -> str:
    known = {0.0: "of at least 0", 1e-9: "above 0", 1.0: "of at least 1", 1 + 1e-9: "above 1"}
    return known.get(least, "")


def _low_whole(least: float) -> str:
    return f"of at least {least:g}" if least > WHOLE[0] else ""


def _high(most: float) -> str:
    known = {0.0: "of at most 0", 1 - 1e-9: "below 1", 1.0: "of at most 1"}
    return known.get(most, "")


def _recorded_before(name: str) -> dict[str, Any]:
    """What the file has of an optimizer, with the words of its errors."""
    data = json.loads(DATA_FILE.read_text(encoding="utf-8"))

    def worded(kind: str, value: Any) -> Any:
        if kind in ("int", "float"):
            return [[low, high, data["raised"][number]] for low, high, number in value]
        if isinstance(value, dict):
            return {name: worded(name, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [worded("", inner) for inner in value]
        return data["raised"][value]

    recorded: dict[str, Any] = data["optimizers"][name]
    return recorded | {"refuses": worded("", recorded["refuses"])}


def _is_built(extension: str) -> bool:
    return Path(os.environ["TORCH_EXTENSIONS_DIR"], extension, f"{extension}.so").exists()


def _without(value: Any, raised: str) -> str:
    """What was raised, so that it is the same for every value."""
    words = re.sub(r"{('[^{}]*')}", lambda found: ", ".join(sorted(found[1].split(", "))), raised)
    return re.sub(rf"(?<![\w.'-]){re.escape(str(value))}(?![\w'])", "VALUE", words)


def _may_be_text(parameter: inspect.Parameter) -> bool:
    return isinstance(parameter.default, str) or "str" in str(parameter.annotation)


def samples(default: Any) -> Iterator[tuple[str, Any]]:
    """Named values to try for a parameter; for one that is a sequence also sequences."""
    for value in SAMPLES:
        yield sample_name(value), value
    if not isinstance(default, tuple | list):
        return
    usual = list(default)
    for length in range(len(usual) + 2):
        yield f"length {length}", (usual + usual)[:length]
    for at in range(len(usual)):
        for value in SAMPLES:
            yield f"item {at}: {sample_name(value)}", [*usual[:at], value, *usual[at + 1 :]]


def refused(attempt: Attempt, kind: Constructed, given: Mapping[str, Any]) -> str:
    """What it raised, as `type: message`; empty: nothing."""
    try:
        attempt(kind, given)
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        # A schedule that these steps outran is long enough for nobody to know what.
        return "" if "Tried to step" in message else f"{type(error).__name__}: {message}"
    return ""


def try_optimizer(kind: Constructed, given: Mapping[str, Any]) -> None:
    """Build one as DeepSpeed does, and let it step."""
    optimizer = kind([_parameter()], **given)
    for _ in range(STEPS):
        _step(optimizer)


def try_scheduler(kind: Constructed, given: Mapping[str, Any]) -> None:
    """Build one as DeepSpeed does, and let it step as the engine does (runtime/engine.py).

    A division by zero in the optimizer's step is the optimizer's: another one does without.
    """
    import torch

    optimizer = torch.optim.AdamW([_parameter()], lr=0.1)
    scheduler = kind(optimizer, **given)
    for _ in range(STEPS):
        _step(optimizer, ZeroDivisionError)
        try:
            scheduler.step()
        except TypeError:
            scheduler.step(_BATCH_SIZE)
    _step(optimizer, ZeroDivisionError)


def _parameter() -> Any:
    import torch

    parameter = torch.nn.Parameter(torch.ones(4, 4))
    parameter.grad = torch.full((4, 4), 0.5)
    return parameter


def _step(optimizer: Any, *ignored: type[Exception]) -> None:
    with contextlib.suppress(*ignored):
        _plain_step(optimizer)


def _plain_step(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = parameter.detach() * 0.5
    if type(optimizer).__name__ == "ZenFlowCPUAdam":
        optimizer.step(step_id=1)
    else:
        optimizer.step()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
