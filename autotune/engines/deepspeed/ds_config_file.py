"""A user's own ds_config.json: read, freed of "auto" and secrets, and translated into knobs.

DeepSpeed itself resolves "auto" nowhere: a section drops the key and takes its default, the top
level fails. It is Hugging Face that fills it in, so for raw DeepSpeed it has to go.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError, RenderError
from autotune.base.nested import look_up, without
from autotune.base.secrecy import HIDDEN, holds_secret, scrubbed, scrubbed_text
from autotune.base.text import texts_of
from autotune.base.user_text import read_text
from autotune.contract import KnobValue
from autotune.engines.deepspeed.ds_config_text import parse_config
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.rules.sections import SECTIONS as KNOWN
from autotune.engines.deepspeed.rules.sections import SPELLINGS

_PRECISIONS = ("bf16", "bfloat16", "fp16")

MONITORS = ("comet", "csv_monitor", "tensorboard", "wandb")
"""Sections that would have every trial write to the network or the disk in the user's name."""

SECTIONS = ("offload.optimizer", "offload.param")
"""Knobs whose key is a section that other knobs, and the user's own options, stand in."""

OF_THE_JOB = ("precision",)
"""Knobs that a file chooses nothing by: what it trains in is the job's (`precision_of`)."""

Note = tuple[Any, Any]
"""What became of a key: (the user's value, what runs instead or None if the key is left out)."""


def read_ds_config(
    path: Path, *, with_monitors: bool = False
) -> tuple[dict[str, Any], dict[str, Note]]:
    """Read a ds_config.json for raw DeepSpeed.

    Secrets and texts that DeepSpeed does not read are left out: what a trial ran with is
    recorded, shown and handed on. So are monitors, unless they are asked for.

    Returns:
        The configuration with no "auto" in it and DeepSpeed's alternative spellings made one;
        and what was left out or respelled, by dotted key, with secrets masked.

    Raises:
        RenderError: The file cannot be read, does not hold an object, or has a key of
            `zero_optimization` under both its spellings.
    """
    return usable(parse_config(read_text(path), path)[0], path, with_monitors=with_monitors)


def usable(
    given: Mapping[str, Any], path: Path, *, with_monitors: bool = False
) -> tuple[dict[str, Any], dict[str, Note]]:
    """A configuration for raw DeepSpeed; all is as of `read_ds_config`."""
    data = dict(given)
    for section in (*("zero_optimization", "optimizer", "tensor_parallel"), *_PRECISIONS):
        if not isinstance(data.get(section, {}), dict):
            named = {"path": path, "section": section, "value": data[section]}
            raise RenderError.of("engines.deepspeed.no_mapping", **named)
    notes: dict[str, Note] = {}
    if "bfloat16" in data:
        data = _with_bf16(data, notes)
    if _holds_auto(data.get("scheduler")):
        # Its lengths belong to the whole training; a part of them makes another schedule.
        notes["scheduler"] = (data.pop("scheduler"), None)
    for section in () if with_monitors else MONITORS:
        if section in data:
            del data[section]
            notes[section] = (HIDDEN, None)
    data = _usable(data, notes)
    if look_up(data, "tensor_parallel.autotp_size") == 0:
        data = without(data, "tensor_parallel.autotp_size")  # DeepSpeed's word for off
    if "zero_optimization" in data:
        data["zero_optimization"] = _respelled(data["zero_optimization"], notes, path)
    return data, notes


def knobs_of(
    config: Mapping[str, Any], path: Path, *, skips_wrong: bool = False
) -> dict[str, KnobValue]:
    """The knobs that a configuration sets, at their values there.

    Raises:
        JobError: A value is not one of the knob's, and such are not to be skipped.
    """
    found: dict[str, KnobValue] = {}
    for name, knob in KNOBS.items():
        if not knob.key or name in OF_THE_JOB:
            continue
        try:
            value = knob.read(config, where=str(path))
        except JobError:
            if not skips_wrong:
                raise
            continue
        if value is not None:
            found[name] = value
    return found


def leftover(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without the keys that knobs govern and the batch they imply.

    Sections of offload stay: some of their keys (`pin_memory`, `nvme_path`) are no knobs.
    """
    rest = dict(config)
    batch = ("train_batch_size", "gradient_accumulation_steps")
    names = KNOBS.keys() - {*SECTIONS, *OF_THE_JOB}
    governed = [key for name in names for key in KNOBS[name].keys]
    for key in (*batch, *governed):
        rest = without(rest, key)
    return {key: value for key, value in rest.items() if value != {}}


def precision_of(config: Mapping[str, Any], path: Path) -> str:
    """`bf16`, `fp16` or `fp32`, as DeepSpeed would read it.

    Raises:
        JobError: A switch of theirs is neither on nor off, or both are on.
    """
    switches = {name: config.get(name, {}).get("enabled", False) for name in ("bf16", "fp16")}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise JobError(f"{path}: {name}.enabled is {value!r}", "write true or false there")
    if all(switches.values()):
        raise JobError(f"{path}: fp16.enabled and bf16.enabled are both true", "switch one off")
    return next((name for name, is_on in switches.items() if is_on), "fp32")


def _holds_auto(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_holds_auto(item) for item in value.values())
    return bool(value == "auto")


def _usable(
    section: Mapping[str, Any],
    notes: dict[str, Note],
    prefix: str = "",
    *,
    is_unread: bool = False,
) -> dict[str, Any]:
    """The configuration without values that are "auto" or secret, and texts that nobody reads."""
    usable_keys: dict[str, Any] = {}
    for key, value in section.items():
        if value == "auto":
            notes[f"{prefix}{key}"] = (value, None)
        elif holds_secret(key, value) or _tells_secret(key, value):
            notes[f"{prefix}{scrubbed_text(key)}"] = (HIDDEN, None)
        elif isinstance(value, dict):
            inner = is_unread or _is_unread(prefix.rstrip("."), key)
            usable_keys[key] = _usable(value, notes, f"{prefix}{key}.", is_unread=inner)
        elif (is_unread or _is_unread(prefix.rstrip("."), key)) and any(texts_of(value)):
            notes[f"{prefix}{key}"] = (HIDDEN, None)
        else:
            usable_keys[key] = value
    return usable_keys


def _is_unread(section: str, key: str) -> bool:
    """Whether DeepSpeed passes over a key: whatever a text there says, no trial needs it."""
    known = KNOWN.get(section)
    return known is not None and not known.strict and key not in known.keys


def _tells_secret(key: str, value: Any) -> bool:
    is_text = isinstance(value, str | list)
    return scrubbed_text(key) != key or (is_text and scrubbed(value) != value)


def _with_bf16(data: dict[str, Any], notes: dict[str, Note]) -> dict[str, Any]:
    """Rename `bfloat16` to `bf16`; DeepSpeed ignores the old name beside the new one."""
    old = data["bfloat16"]
    if "bf16" in data:
        notes["bfloat16"] = (old, None)
        return without(data, "bfloat16")
    notes["bfloat16"] = (old, {"bf16": old})
    return {"bf16" if key == "bfloat16" else key: value for key, value in data.items()}


def _respelled(zero: Mapping[str, Any], notes: dict[str, Note], path: Path) -> dict[str, Any]:
    for second, first in SPELLINGS.items():
        if first in zero and second in zero:
            named = {"second": second, "first": first, "value": zero[second], "other": zero[first]}
            raise RenderError.of("engines.deepspeed.same_key", path=path, **named)
        if second in zero:
            notes[f"zero_optimization.{second}"] = (zero[second], {first: zero[second]})
    spelled = {SPELLINGS.get(key, key): value for key, value in zero.items()}
    for old, new in (("cpu_offload", "offload_optimizer"), ("cpu_offload_param", "offload_param")):
        if old in spelled:
            device = "cpu" if spelled.pop(old) else "none"
            spelled.setdefault(new, {"device": device})
            notes[f"zero_optimization.{old}"] = (device == "cpu", spelled[new])
    return spelled
