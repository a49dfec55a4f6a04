"""What a Megatron layout chooses: the names and values, as people write them and as columns."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches

import numpy as np

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron.rules import Counts, LayoutTask, chunk_layers

QUARTERS = 4
"""Block recomputation is offered in quarters of a chunk's layers."""
RECOMPUTE = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE, "full": Recompute.FULL}
_BLOCK = "block_"
_SWITCHES = ("ends_as_layers", "sequence_parallel", "distributed_optimizer")
_NUMBERS = ("tp", "pp", "vp", "cp", "ep", "micro_batch")
_ALWAYS = ("tp", "pp", "micro_batch")
_MEANING = {
    "tp": "tensor parallel degree",
    "pp": "pipeline parallel degree",
    "vp": "interleaved model chunks of a pipeline rank",
    "ends_as_layers": "whether embedding and loss count as a layer each where stages are cut",
    "cp": "context parallel degree",
    "ep": "expert parallel degree",
    "sequence_parallel": "whether norms are split over the tensor parallel ranks",
    "micro_batch": "samples per rank and forward pass",
    "distributed_optimizer": "whether optimizer states are sharded",
    "recompute": "none, selective, full, or block_N: N layers of each chunk",
}
KNOBS = tuple(_MEANING)
"""In the order in which they are shown."""
_HIGHEST = 2**31 - 1


def knobs_of(row: Mapping[str, int]) -> dict[str, KnobValue]:
    """What a row of columns chooses."""
    found: dict[str, KnobValue] = {name: row[name] for name in KNOBS}
    found |= {name: bool(row[name]) for name in _SWITCHES}
    found["recompute"] = next(name for name, kind in RECOMPUTE.items() if kind == row["recompute"])
    if row["recompute_layers"]:
        found["recompute"] = f"{_BLOCK}{row['recompute_layers']}"
    return found


def choices_of(knobs: Mapping[str, KnobValue]) -> dict[str, KnobValue]:
    """Those that are not at their default, and those that are always shown."""
    return {
        name: value
        for name, value in knobs.items()
        if name in _ALWAYS or value is True or value not in (1, False, "none")  # True == 1
    }


def parse_layout(settings: Iterable[str]) -> dict[str, KnobValue]:
    """Read `tp=8 recompute=full`.

    Raises:
        JobError: One is not `name=value`, names no knob or no value of it, or is there twice.
    """
    values: dict[str, KnobValue] = {}
    for setting in settings:
        name, equals, text = (part.strip() for part in setting.partition("="))
        if not (name and equals and text):
            raise JobError(f"{setting}: not name=value", "write it as tp=8")
        if name not in KNOBS:
            near = get_close_matches(name, KNOBS, n=2, cutoff=0.4)
            guess = f"did you mean {' or '.join(near)}? " if near else ""
            raise JobError(
                f"{setting}: {name!r} is no knob of a Megatron layout",
                f"{guess}knobs: {', '.join(KNOBS)}",
            )
        if name in values:
            raise JobError(f"{setting}: {name} was already set", "set it once")
        values[name] = _value(name, text)
    return values


def row_of(task: LayoutTask, knobs: Mapping[str, KnobValue]) -> dict[str, Counts]:
    """The columns of one layout, legal or not, with what is not named at its default."""
    row = {name: int(knobs.get(name, 1)) for name in _NUMBERS}
    row |= {name: int(knobs.get(name, False)) for name in _SWITCHES}
    kind = str(knobs.get("recompute", "none"))
    row["recompute"] = int(RECOMPUTE.get(kind, Recompute.FULL))
    row["recompute_layers"] = int(kind.removeprefix(_BLOCK)) if kind.startswith(_BLOCK) else 0
    row["dp"] = max(1, task.world // (row["tp"] * row["pp"] * row["cp"]))
    row["grad_accum"] = max(1, task.global_batch // (row["dp"] * row["micro_batch"]))
    return {name: np.array([value], dtype=np.int64) for name, value in row.items()}


def steps_of(task: LayoutTask, knobs: Mapping[str, KnobValue]) -> Iterable[tuple[str, KnobValue]]:
    """Each knob one step up and down: numbers doubled and halved, and every other choice."""
    for name in _NUMBERS:
        own = int(knobs[name])
        is_idle = name == "ep" and task.n_experts < 2
        for value in (own * 2, own // 2):
            if value >= 1 and not is_idle:
                yield name, value
    for name in _SWITCHES:
        yield name, not knobs[name]
    layers = int(chunk_layers(task, row_of(task, knobs))[0])
    blocks = (f"{_BLOCK}{layers * part // QUARTERS}" for part in range(1, QUARTERS))
    parts = blocks if layers % QUARTERS == 0 else ()
    for kind in (*RECOMPUTE, *parts):
        if kind != knobs["recompute"]:
            yield "recompute", kind


def _value(name: str, text: str) -> KnobValue:
    meaning = f"{name} is {_MEANING[name]}"
    if name in _NUMBERS:
        if text.isdecimal() and 1 <= int(text) <= _HIGHEST:
            return int(text)
        raise JobError(f"{name}={text}: not a whole number above zero", meaning)
    if name in _SWITCHES:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise JobError(f"{name}={text}: not true or false", meaning)
    layers = text.removeprefix(_BLOCK)
    if text in RECOMPUTE or (
        layers != text and layers.isdecimal() and 1 <= int(layers) <= _HIGHEST
    ):
        return text
    raise JobError(f"{name}={text}: no way to recompute", meaning)
