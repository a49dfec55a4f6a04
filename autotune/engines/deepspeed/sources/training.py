"""What the arguments of a training say that no key of DeepSpeed's does, as values of knobs.

Sources: transformers/training_args.py (5.23); LLaMA-Factory, src/llamafactory/hparams/
model_args.py and model/model_utils/checkpointing.py; axolotl, utils/schemas/config.py and
utils/config/__init__.py; TRL, trainer/base_config.py; ms-swift, arguments/sft_args.py.
"""

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from autotune.contract import KnobValue
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.trial.guest.frameworks import FACTORY_ATTENTION, RECOMPUTE_NAMES

AXOLOTL, FACTORY, SWIFT = "axolotl", "LLaMA-Factory", "ms-swift"

NOT_CHECKPOINTING = "disable_gradient_checkpointing"
"""LLaMA-Factory's switch: it recomputes unless this is true."""

EVERY = "every_n_layers"
"""Key of Trainer's `activation_checkpointing_kwargs` for every n-th layer alone."""

FLASH_ATTN: Mapping[str, str] = {
    "auto": "default",
    **{name: value for value, name in FACTORY_ATTENTION.items()},
}
"""Value of LLaMA-Factory's `flash_attn` -> of the knob."""

ATTENTION_SWITCHES: Mapping[str, str] = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
"""axolotl's switches -> value of the knob."""

DEFAULT_OPTIM = "adamw_torch_fused"
"""Trainer's, since torch 2.8, and axolotl's."""

_SWIFTS_BATCH = 16
"""Samples of a step that ms-swift accumulates for where nobody says (_init_batch_size)."""


def defaults_of(reader: str = "") -> dict[str, Any]:
    """What arguments are where nobody says: those of Trainer, under those of who reads them."""
    tables = PROGRAMS["trainer"]
    return {**tables["defaults"], **tables["readers_defaults"].get(reader, {})}


def completed(arguments: Mapping[str, Any], reader: str, world: int) -> dict[str, Any]:
    """The arguments with the defaults of who reads them.

    Args:
        arguments: As they were given, by the names of TrainingArguments.
        reader: The program that reads them, where it has a name; else Trainer's script.
        world: Ranks.
    """
    given = {name: value for name, value in arguments.items() if value is not None}
    known = {**defaults_of(reader), **given}
    if given.get("fp16") is True and "bf16" not in given and known["bf16"] is True:
        known["bf16"] = False
    if reader == AXOLOTL:
        known |= _axolotls_batch(given)
    if reader == SWIFT and "gradient_accumulation_steps" not in given:
        per_step = int(known["per_device_train_batch_size"]) * world
        known["gradient_accumulation_steps"] = max(1, math.ceil(_SWIFTS_BATCH / per_step))
    return known


def _axolotls_batch(given: Mapping[str, Any]) -> dict[str, Any]:
    """Its `batch_size` is of one rank, and says what one of the other two is."""
    total = given.get("batch_size")
    names = ("per_device_train_batch_size", "gradient_accumulation_steps")
    sizes = {name: given[name] for name in names if type(given.get(name)) is int}
    if type(total) is not int or len(sizes) != 1:
        return {}
    name, size = next(iter(sizes.items()))
    other = next(one for one in names if one != name)
    return {other: total // size} if size else {}


def script_knobs(arguments: Mapping[str, Any], reader: str) -> dict[str, KnobValue]:
    """Knob -> value, of what the script does besides its configuration.

    Args:
        arguments: As of `completed`.
        reader: As there.
    """
    knobs: dict[str, KnobValue] = {"recompute": _recompute(arguments, reader)}
    if (attention := _attention(arguments, reader)) is not None:
        knobs["attention"] = attention
    knobs["compile"] = "torch" if arguments.get("torch_compile") is True else "none"
    return knobs


def _recompute(arguments: Mapping[str, Any], reader: str) -> str:
    if reader == FACTORY:
        return "none" if arguments.get(NOT_CHECKPOINTING) is True else "full"
    given = next(
        (arguments[name] for name in RECOMPUTE_NAMES if arguments.get(name) is not None), False
    )
    if not given or given == "false":
        return "none"
    given = [arguments.get(f"{name}_kwargs") for name in RECOMPUTE_NAMES]
    options = next((one for one in given if one is not None), None)
    every = options_of(options).get(EVERY, 1)
    return f"every_{every}" if type(every) is int and every > 1 else "full"


def options_of(value: Any) -> dict[str, Any]:
    """The options of an argument that is a mapping, or its JSON."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
    return dict(value) if isinstance(value, Mapping) else {}


def _attention(arguments: Mapping[str, Any], reader: str) -> str | None:
    if reader == FACTORY:
        return FLASH_ATTN.get(str(arguments.get("flash_attn", "auto")))
    if reader == AXOLOTL:
        on = [knob for name, knob in ATTENTION_SWITCHES.items() if arguments.get(name) is True]
        if on:
            return on[0]
    implementation = arguments.get("attn_implementation")
    return implementation if implementation in ("eager", "sdpa", "flash_attention_2") else None
