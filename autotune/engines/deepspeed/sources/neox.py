"""GPT-NeoX's YAML: which of its keys reach DeepSpeed.

Source: EleutherAI/gpt-neox, megatron/neox_arguments/arguments.py and deepspeed_args.py. It reads
the file with PyYAML (5e8 is text), takes dashes in keys for underscores, and hands DeepSpeed the
keys of NeoXArgsDeepspeedConfig that are not at NeoX's own default, and `deepspeed_extra_args`.
"""

from collections.abc import Mapping
from typing import Any

from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.launches.line import product
from autotune.space.rule import NotJudged, Violation

READER = "GPT-NeoX"
OWN_CHECKS = NotJudged(
    what=f"{READER}'s own checks", why="of the keys that it does not hand to DeepSpeed"
)

_DEFAULTS: Mapping[str, Any] = PROGRAMS["neox"]["defaults"]
"""Keys of NeoXArgsDeepspeedConfig, and the value at which NeoX leaves each of them out."""
_NEOX_ALONE = frozenset(PROGRAMS["neox"]["keys_of_no_other"])
_LEAST_ALONE = 3
"""Keys of NeoX's own that make a file its."""
_LAYOUT = frozenset(("pipe_parallel_size", "model_parallel_size"))
"""Two that no other program has together."""

_BUILT_BY_DEEPSPEED = "onebitadam"
"""The one optimizer that NeoX leaves to DeepSpeed: it hands over any other as an object, so that
DeepSpeed reads neither `optimizer` nor `scheduler` (megatron/training.py: get_optimizer)."""


def with_underscores(data: Mapping[Any, Any]) -> dict[str, Any]:
    """The keys as NeoX reads them."""
    return {str(name).replace("-", "_"): value for name, value in data.items()}


def is_neox(data: Mapping[str, Any]) -> bool:
    """Whether a file, its keys with underscores, is GPT-NeoX's, or one of the parts of one."""
    return data.keys() >= _LAYOUT or len(_NEOX_ALONE & data.keys()) >= _LEAST_ALONE


def config_of(data: Mapping[str, Any]) -> dict[str, Any]:
    """Part of a file that NeoX hands to DeepSpeed, its keys with underscores; empty: nothing.

    Batch sizes that the file lacks are "auto": they may stand in another of the files that NeoX
    merges.
    """
    config = {
        name: data[name]
        for name, default in _DEFAULTS.items()
        if name in data and data[name] != default
    }
    extra = data.get("deepspeed_extra_args")
    if isinstance(extra, Mapping):
        config |= extra
    optimizer = data.get("optimizer")
    kind = optimizer.get("type") if isinstance(optimizer, Mapping) else None
    if str(kind).lower() != _BUILT_BY_DEEPSPEED:
        config.pop("optimizer", None)
        config.pop("scheduler", None)
    if not config:
        return {}
    precision = {"fp16": "fp16", "bfloat16": "bf16"}.get(str(data.get("precision")))
    if precision is not None and not config.get(precision):
        config[precision] = {"enabled": True}
    micro, _, total = BATCH_KEYS
    if micro not in config and total not in config:
        config[micro] = AUTO
    elif micro in config and total in config:
        # NeoX itself asserts the product with its default (check_batch_parameters).
        config.setdefault("gradient_accumulation_steps", 1)
    return config


DROPPED = ": the DeepSpeed that GPT-NeoX installs drops it, this release refuses it"


def drops(violation: Violation) -> bool:
    """Whether it is a key that the DeepSpeed which NeoX installs drops, and others refuse.

    That is DeeperSpeed (requirements/requirements.txt), whose sections of precision drop keys that
    they do not know: NeoX's own 20B.yml says `fp16: {fp16: true}`.
    """
    sections = {key.partition(".")[0] for key in violation.at}
    return violation.rule == "schema.unknown_key" and set() < sections <= {"fp16", "bf16"}


def degrees(data: Mapping[str, Any]) -> tuple[int, int]:
    """Pipeline stages, and ranks that each of them is split over."""
    sizes = [data.get(name) for name in ("pipe_parallel_size", "model_parallel_size")]
    pp, tp = (size if type(size) is int and size > 1 else 1 for size in sizes)
    return pp, tp


def world_of(data: Mapping[str, Any]) -> int | None:
    """Ranks, where the file says both how many nodes and how many GPUs each has."""
    return product(data.get("num_nodes"), data.get("num_gpus"))
