"""OpenRLHF: the configuration that its scripts make of their arguments.

Source: OpenRLHF, openrlhf/utils/deepspeed/deepspeed.py (get_ds_train_config), deepspeed_utils.py.
Arguments are told by their names before 0.10; from then on they have dots (`--train.batch_size`).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

from autotune.engines.deepspeed.rules.base import BATCH_KEYS
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.programs import PROGRAMS
from autotune.engines.launches.line import product

READER = "OpenRLHF"
_SCRIPT = re.compile(r"(?:.*[./])?openrlhf[./]cli[./]train_\w+")
_NAMES: Mapping[str, str] = PROGRAMS["openrlhf"]["names"]
"""Argument with dots -> its name before, where that is not it with `_` for each dot."""


def is_openrlhf(script: str) -> bool:
    """Whether a script or a module is one of OpenRLHF's that train."""
    return _SCRIPT.fullmatch(script.removesuffix(".py")) is not None


def arguments_of(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags by the names of arguments before 0.10."""
    return {_NAMES.get(name, name.replace(".", "_")): value for name, value in flags.items()}


def config_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, "auto" where the line does not say a value."""
    micro, accum, total = BATCH_KEYS
    given = {name: value for name, value in arguments.items() if "$" not in str(value)}
    sizes = {micro: given.get("micro_train_batch_size"), total: given.get("train_batch_size")}
    if type(sizes[total]) is int:  # ranks that share a sample count as if each had one
        shares = (given.get(name, 1) for name in ("ring_attn_size", "ds_tensor_parallel_size"))
        sizes[total] = math.prod((sizes[total], *shares))
    if given.get("use_dynamic_batch"):
        sizes = {micro: 1, accum: 1}
    zero: dict[str, Any] = {"stage": given.get("zero_stage", 2)}
    if given.get("adam_offload"):
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if given.get("zpg", 1) != 1:
        zero["zero_hpz_partition_size"] = given["zpg"]
    return {
        **{name: AUTO if size is None else size for name, size in sizes.items()},
        "zero_optimization": zero,
        "bf16": {"enabled": given.get("param_dtype", "bf16") == "bf16"},
    }


def world_of(arguments: Mapping[str, Any]) -> int | None:
    """Ranks that train PPO's actor, as its arguments say; None: the launch decides."""
    names = ("actor_num_nodes", "actor_num_gpus_per_node")
    return product(*(arguments.get(name) for name in names))
