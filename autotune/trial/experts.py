"""Mixtures of experts: what their layers need besides DeepSpeed's configuration."""

from typing import Any

import deepspeed
import torch

_STACKED = 3
"""Dimensions of a tensor that holds the weights of all experts of a layer."""


def initialize_experts(model: Any) -> None:
    """Give a mixture of experts that was built under `zero.Init` its initial values.

    transformers makes fused experts and routers empty and fills them once the model stands. By
    then stage 3 has sharded whatever the memory held (not a number, as a rule).
    """
    if not any(_dimensions(parameter) >= _STACKED for parameter in model.parameters()):
        return
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        is_filled = hasattr(module, "reset_parameters")  # torch's own fill themselves
        if is_filled or not any(_dimensions(parameter) > 1 for parameter in own):
            continue
        with deepspeed.zero.GatheredParameters(own, modifier_rank=0):
            if torch.distributed.get_rank() == 0:
                for parameter in own:
                    parameter._is_hf_initialized = False
                model._init_weights(module)


def prepare_autoep(model: Any, ds_config: dict[str, Any]) -> None:
    """Let DeepSpeed's AutoEP put its own layers in place of a mixture of experts.

    It also moves the hooks by which transformers records what routers say, and fails over those
    of a newer transformers (DeepSpeed 0.19.8, transformers 5.23: `_CanRecordRegistry.get`).
    Training without a loss of the routers records nothing: the hooks are given up.
    """
    if not ds_config.get("expert_parallel", {}).get("enabled", False):
        return
    for module in model.modules():
        if getattr(module, "_can_record_outputs", None):
            module._can_record_outputs = {}


def _dimensions(parameter: torch.nn.Parameter) -> int:
    # At stage 3 the parameter itself is an empty placeholder.
    return len(getattr(parameter, "ds_shape", parameter.shape))
