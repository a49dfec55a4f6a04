"""A user's own ds_config.json: read, freed of "auto", and translated into knobs.

DeepSpeed itself resolves "auto" nowhere: a section drops the key and takes its default, the top
level fails. It is Hugging Face that fills it in, so for raw DeepSpeed it has to go.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.contract import KnobValue
from autotune.engines.ds_keys import PATHS, SECTIONS, governed_keys, read_knob
from autotune.errors import RenderError
from autotune.nested import look_up, without
from autotune.rules.keys import SPELLINGS

_PRECISIONS = ("bf16", "bfloat16", "fp16")

Note = tuple[Any, Any]
"""What became of a key: (the user's value, what runs instead or None if the key is left out)."""


def read_text(path: Path) -> str:
    """The text of a user's file, its line ends as they are.

    Raises:
        RenderError: It cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RenderError(f"{path}: cannot be read: {error}", "name a ds_config.json") from error


def parse_json(text: str, path: Path) -> dict[str, Any]:
    """The object that a text holds.

    Raises:
        RenderError: It is not JSON, or not an object.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RenderError(f"{path}: not valid JSON: {error}", "mend the file there") from error
    if not isinstance(data, dict):
        raise RenderError(
            f"{path}: holds a {type(data).__name__}, not an object", "write one { ... }"
        )
    return data


def read_ds_config(path: Path) -> tuple[dict[str, Any], dict[str, Note]]:
    """Read a ds_config.json for raw DeepSpeed.

    Returns:
        The configuration with no "auto" in it and DeepSpeed's alternative spellings made one;
        and what was left out or respelled, by dotted key.

    Raises:
        RenderError: The file cannot be read, does not hold a JSON object, or has a key of
            `zero_optimization` under both its spellings.
    """
    data = parse_json(read_text(path), path)
    for section in (*("zero_optimization", "optimizer", "tensor_parallel"), *_PRECISIONS):
        if not isinstance(data.get(section, {}), dict):
            raise RenderError(
                f"{path}: {section} is {data[section]!r}, not a section", "write { ... } there"
            )
    notes: dict[str, Note] = {}
    if "bfloat16" in data:
        data = _with_bf16(data, notes)
    if _holds_auto(data.get("scheduler")):
        # Its lengths belong to the whole training; half of them make another schedule.
        notes["scheduler"] = (data.pop("scheduler"), None)
    data = _without_auto(data, notes)
    if look_up(data, "tensor_parallel.autotp_size") == 0:
        data = without(data, "tensor_parallel.autotp_size")  # DeepSpeed's word for off
    if "zero_optimization" in data:
        data["zero_optimization"] = _respelled(data["zero_optimization"], notes, path)
    return data, notes


def knobs_of(config: Mapping[str, Any], path: Path) -> dict[str, KnobValue]:
    """The knobs that a configuration sets, at their values there.

    Raises:
        JobError: A value is not one of the knob's.
    """
    found: dict[str, KnobValue] = {}
    for knob in PATHS:
        value = read_knob(config, knob, where=str(path))
        if value is not None:
            found[knob] = value
    return found


def leftover(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the keys that knobs govern and the batch they imply.

    Sections of offload stay: some of their keys (`pin_memory`, `nvme_path`) are no knobs.
    """
    rest = dict(config)
    batch = ("train_batch_size", "gradient_accumulation_steps")
    governed = [key for knob in PATHS if knob not in SECTIONS for key in governed_keys(knob)]
    for key in (*batch, *governed):
        rest = without(rest, key)
    return {key: value for key, value in rest.items() if value != {}}


def precision_of(config: Mapping[str, Any]) -> str:
    """`bf16`, `fp16` or `fp32`, as DeepSpeed would read it."""
    for name in ("bf16", "fp16"):
        if config.get(name, {}).get("enabled") is True:
            return name
    return "fp32"


def _holds_auto(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_auto(item) for item in value.values())
    return bool(value == "auto")


def _without_auto(
    section: Mapping[str, Any], notes: dict[str, Note], prefix: str = ""
) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in section.items():
        if value == "auto":
            notes[f"{prefix}{key}"] = (value, None)
        elif isinstance(value, dict):
            kept[key] = _without_auto(value, notes, f"{prefix}{key}.")
        else:
            kept[key] = value
    return kept


def _with_bf16(data: dict[str, Any], notes: dict[str, Note]) -> dict[str, Any]:
    """`bfloat16` under its new name; DeepSpeed ignores it beside the other."""
    old = data["bfloat16"]
    if "bf16" in data:
        notes["bfloat16"] = (old, None)
        return without(data, "bfloat16")
    notes["bfloat16"] = (old, {"bf16": old})
    return {"bf16" if key == "bfloat16" else key: value for key, value in data.items()}


def _respelled(zero: Mapping[str, Any], notes: dict[str, Note], path: Path) -> dict[str, Any]:
    for second, first in SPELLINGS.items():
        if first in zero and second in zero:
            raise RenderError(
                f"{path}: zero_optimization.{second}={zero[second]!r} and "
                f"{first}={zero[first]!r} are the same key, and DeepSpeed refuses both",
                f"remove {second}",
            )
        if second in zero:
            notes[f"zero_optimization.{second}"] = (zero[second], {first: zero[second]})
    spelled = {SPELLINGS.get(key, key): value for key, value in zero.items()}
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if old in spelled:
            device = "cpu" if spelled.pop(old) else "none"
            spelled.setdefault(new, {"device": device})
            notes[f"zero_optimization.{old}"] = (device == "cpu", spelled[new])
    return spelled
