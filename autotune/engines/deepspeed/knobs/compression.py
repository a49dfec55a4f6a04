"""Knobs of releases before 0.19.7 and 0.19.8: 1-bit optimizers, MiCS, LoCo, rounded weights.

Each acts where somebody switches it on, and nowhere else: a candidate that leaves it off is the
run that it would be without the knob, in a release that has it and in one that has not. Where it
is switched on and the installed release lacks it, the rules refuse it (`version.removed_key`,
`version.removed_optimizer`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from autotune.base.nested import look_up
from autotune.engines.deepspeed.knobs.base import DeepSpeedKnob
from autotune.engines.deepspeed.knobs.situation import (
    at_stages,
    communicates,
    data_parallel,
    degree,
)
from autotune.engines.deepspeed.knobs.zero import quantizes_gradients
from autotune.space.knob import Context, Knobs

ONE_BIT: Mapping[tuple[str, str], str] = {
    ("adam", "one_bit"): "OneBitAdam",
    ("adamw", "one_bit"): "OneBitAdam",
    ("lamb", "one_bit"): "OneBitLamb",
    ("adam", "zero_one"): "ZeroOneAdam",
    ("adamw", "zero_one"): "ZeroOneAdam",
}
"""The job's optimizer and `optimizer.compression` -> the type that compresses what it sends."""

FREEZE_KEYS: Mapping[str, str] = {
    "onebitadam": "freeze_step",
    "onebitlamb": "freeze_step",
    "zerooneadam": "var_freeze_step",
}
"""Optimizer that compresses -> its parameter that says after how many steps."""

_PLAIN: Mapping[str, str] = {
    "onebitadam": "AdamW",
    "onebitlamb": "Lamb",
    "zerooneadam": "AdamW",
}
"""Optimizer that compresses -> the one that it is without; both Adams decay weights as AdamW."""

_SHARED = ("lr", "betas", "eps", "weight_decay", "bias_correction", "max_coeff", "min_coeff")
"""Parameters that an optimizer has with and without compression."""

_OWN = (
    *("cuda_aware", "comm_backend_name", "var_update_scaler"),
    *("local_step_scaler", "local_step_clipper"),
    *("coeff_beta", "factor_max", "factor_min", "factor_threshold"),
)
"""Parameters that only those have that compress (runtime/fp16/onebit of 0.16.9 and 0.19.6)."""

LOCO = {"err_beta": 0.8, "reset_T": 1024}
"""What LoCo's documentation names; both keys have to be there (coalesced_collectives.py)."""

QUANTIZED_MODULES = r"\.\d+\."
"""Names of what stands in a numbered block. Embeddings and the head stay as they are: a tied
table would be cut in two (compression/helper.py makes a new module with a weight of its own)."""


def plain_optimizer(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The optimizer section without compression; one that does not compress stays as it is."""
    kind = str(section.get("type", "")).lower()
    if kind not in FREEZE_KEYS:
        return section
    given = section.get("params") or {}
    params = {name: value for name, value in given.items() if name in _SHARED}
    return {**section, "type": _PLAIN[kind], "params": params}


def compressed(
    section: Mapping[str, Any], plain: Mapping[str, Any], knobs: Knobs
) -> Mapping[str, Any]:
    """The optimizer section that compresses.

    Args:
        section: As the job or the base configuration has it, which may compress already.
        plain: The same without compression.
        knobs: The candidate.

    Returns:
        A section without the parameters that only the plain optimizer takes (`torch_adam`, ...).
    """
    choice = str(knobs["optimizer.compression"])
    kind = ONE_BIT[str(plain["type"]).lower(), choice]
    is_own = str(section.get("type", "")).lower() == kind.lower()
    taken = (*_SHARED, *_OWN) if is_own else _SHARED
    given = section.get("params") or {}
    params = {name: value for name, value in given.items() if name in taken}
    params[FREEZE_KEYS[kind.lower()]] = int(knobs["optimizer.freeze_step"])
    return {"type": kind, "params": params}


def weight_quantization(knobs: Knobs) -> dict[str, Any]:
    """The section of `compression_training` that rounds weights; empty where none are."""
    if "compression.weight_bits" not in knobs:
        return {}
    bits = int(knobs["compression.weight_bits"])
    return {
        "shared_parameters": {
            "enabled": True,
            "quantizer_kernel": False,
            "schedule_offset": int(knobs["compression.schedule_offset"]),
            "quantize_groups": 1,
            "quantize_verbose": False,
            "quantization_type": "symmetric",
            "quantize_weight_in_forward": True,
            "rounding": "nearest",
        },
        "different_groups": {
            "blocks": {
                "params": {"start_bits": bits, "target_bits": bits, "quantization_period": 0},
                "modules": [QUANTIZED_MODULES],
            }
        },
    }


def _is_on(name: str, acts: Callable[[Knobs, Context], bool]) -> Callable[[Knobs, Context], bool]:
    """Whether a knob is switched on, and could act there."""

    def is_on(values: Knobs, context: Context) -> bool:
        return bool(values[name]) and values[name] != "none" and acts(values, context)

    return is_on


def _is_whole(values: Knobs) -> bool:
    """Whether every rank holds the whole model and samples of its own."""
    return all(degree(values, name) == 1 for name in ("tp", "pp", "sp", "ep"))


def _compresses(values: Knobs, context: Context) -> bool:
    # Their groups are those of an mpu, which AutoTP and AutoEP do not hand them.
    has_kind = (context.optimizer, str(values["optimizer.compression"])) in ONE_BIT
    return has_kind and communicates(values, context) and _is_whole(values)


def _shards_in_groups(values: Knobs, context: Context) -> bool:
    return data_parallel(values, context) > 1 and _is_whole(values)


def _spans_nodes(values: Knobs, context: Context) -> bool:
    # mics_utils.py: create_mics_comm_groups asserts it.
    return bool(context.n_devices) and int(values.get("mics.shard_size", 0)) > context.n_devices


def _carries_errors(values: Knobs, context: Context) -> bool:
    return values.get("zeropp.quantized_gradients") is True and quantizes_gradients(
        values, context
    )


def _rounds_weights(values: Knobs, context: Context) -> bool:
    # Stage 3 makes placeholders of the parameters before they could be replaced.
    return context.is_hugging_face and _is_whole(values) and int(values["zero.stage"]) < 3


def _read_compression(config: Mapping[str, Any]) -> Any:
    kind = look_up(config, "optimizer.type")
    name = kind.lower() if isinstance(kind, str) else ""
    return {"onebitadam": "one_bit", "onebitlamb": "one_bit", "zerooneadam": "zero_one"}.get(name)


def _read_freeze_step(config: Mapping[str, Any]) -> Any:
    kind = look_up(config, "optimizer.type")
    name = FREEZE_KEYS.get(kind.lower() if isinstance(kind, str) else "")
    return None if name is None else look_up(config, f"optimizer.params.{name}")


def _read_shard_size(config: Mapping[str, Any]) -> Any:
    size = look_up(config, "zero_optimization.mics_shard_size")
    return 0 if type(size) is int and size < 0 else size  # -1 is DeepSpeed's word for off


def _read_loco(config: Mapping[str, Any]) -> Any:
    return look_up(config, "zero_optimization.zeropp_loco_param") is not None or None


def _quantized(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section of rounded weights; empty where it is off."""
    found = look_up(config, "compression_training.weight_quantization")
    is_on = look_up(found or {}, "shared_parameters.enabled") is True
    return found if isinstance(found, Mapping) and is_on else {}


def _read_bits(config: Mapping[str, Any]) -> Any:
    groups = _quantized(config).get("different_groups")
    groups = groups.values() if isinstance(groups, Mapping) else ()
    return next((look_up(group, "params.target_bits") for group in groups), None)


def _read_offset(config: Mapping[str, Any]) -> Any:
    return look_up(_quantized(config), "shared_parameters.schedule_offset")


ENTRIES = (
    DeepSpeedKnob(
        name="optimizer.compression",
        key="optimizer.type",
        reader=_read_compression,
        default="none",
        choices=("none", "one_bit", "zero_one"),
        gone_since="0.19.7",
        scope="at stage 0 over more than one rank without tp, pp, sp and ep, for Adam and AdamW; "
        "one_bit for Lamb too",
        when=at_stages(0),
        acts=_is_on("optimizer.compression", _compresses),
        needs_cuda=("one_bit", "zero_one"),
        help="send momentum as signs in place of gradients, after optimizer.freeze_step steps "
        "(1-bit Adam, 1-bit LAMB; 0/1 Adam also sends less often). Needs cupy",
        changes_training="what is sent is one bit per element, with the error carried on; the "
        "variance is frozen meanwhile, and weight decay is AdamW's",
        source="runtime/fp16/onebit of 0.19.6",
    ),
    DeepSpeedKnob(
        name="optimizer.freeze_step",
        key="optimizer.params.freeze_step",
        more_keys=("optimizer.params.var_freeze_step",),
        reader=_read_freeze_step,
        default=100_000,
        minimum=1,
        gone_since="0.19.7",
        scope="with optimizer.compression",
        when={"optimizer.compression": ("one_bit", "zero_one")},
        help="optimizer steps of your training before compression begins (15 to 20% of it in the "
        "paper). A trial sets its own, so that both phases are measured, and says so",
        changes_training="until then it is plain Adam or LAMB",
        source="runtime/fp16/onebit of 0.19.6: freeze_step, var_freeze_step",
    ),
    DeepSpeedKnob(
        name="mics.shard_size",
        key="zero_optimization.mics_shard_size",
        reader=_read_shard_size,
        default=0,
        gone_since="0.19.7",
        scope="at stage 3 on GPUs, over more than one rank without tp, pp, sp and ep",
        when=at_stages(3),
        acts=_is_on("mics.shard_size", _shards_in_groups),
        help="ranks that share one copy of parameters, gradients and optimizer states (MiCS); the "
        "groups reduce their gradients among each other. 0: all ranks share one",
        source="runtime/zero/mics.py of 0.19.6",
    ),
    DeepSpeedKnob(
        name="mics.hierarchical_gather",
        key="zero_optimization.mics_hierarchical_params_gather",
        reader=lambda config: look_up(config, "zero_optimization.mics_hierarchical_params_gather"),
        default=False,
        gone_since="0.19.7",
        scope="where mics.shard_size is more than the devices of a node",
        when=at_stages(3),
        acts=_is_on("mics.hierarchical_gather", _spans_nodes),
        needs_cuda=(True,),
        help="gather parameters between nodes first, then within each",
        source="runtime/zero/mics.py of 0.19.6: _hierarchical_all_gather_params",
    ),
    DeepSpeedKnob(
        name="zeropp.loco",
        key="zero_optimization.zeropp_loco_param",
        reader=_read_loco,
        default=False,
        gone_since="0.19.8",
        scope="with zeropp.quantized_gradients over more than one node",
        when=at_stages(3),
        acts=_is_on("zeropp.loco", _carries_errors),
        needs_cuda=(True,),
        help="carry the rounding errors of quantised gradients on to the next step (LoCo): two "
        "buffers of int8 more per parameter",
        changes_training="gradients are rounded, with the error added to the next ones",
        source="runtime/comm/coalesced_collectives.py of 0.19.7: all_to_all_loco_quant_reduce",
    ),
    DeepSpeedKnob(
        name="compression.weight_bits",
        key="compression_training.weight_quantization",
        reader=_read_bits,
        by_script=True,
        default=0,
        choices=(0, 4, 8),
        gone_since="0.19.7",
        scope="below stage 3 without tp, pp, sp and ep, for Hugging Face models whose blocks are "
        "of torch's linear layers",
        acts=_is_on("compression.weight_bits", _rounds_weights),
        help="round the weights of the blocks to so many bits in every forward pass, after "
        "compression.schedule_offset steps, so that the model bears it later. It only ever costs "
        "time; 0: off",
        changes_training="the forward pass sees rounded weights",
        source="compression/basic_layer.py of 0.19.6: LinearLayer_Compress",
    ),
    DeepSpeedKnob(
        name="compression.schedule_offset",
        key="compression_training.weight_quantization.shared_parameters.schedule_offset",
        reader=_read_offset,
        default=1000,
        gone_since="0.19.7",
        scope="with compression.weight_bits",
        when={"compression.weight_bits": (4, 8)},
        help="optimizer steps of your training before weights are rounded. A trial sets its own, "
        "so that both phases are measured, and says so",
        changes_training="until then weights are not rounded",
        source="compression/scheduler.py of 0.19.6: check_weight_quantization",
    ),
)
