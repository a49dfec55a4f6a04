"""Settings that the live engine must read back, from the configuration that would run.

Names as in `autotune.trial.readback`; one that has no meaning in the setup is left out.
"""

from collections.abc import Mapping
from typing import Any

from autotune.contract import KnobValue
from autotune.engines.communication.knobs import expected_of
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.knobs.readers import ZENFLOW
from autotune.engines.deepspeed.knobs.situation import recompute_interval
from autotune.engines.deepspeed.mixtures import experts_elsewhere
from autotune.engines.deepspeed.rules.base import Setup

DEFAULT_GRADIENT_CLIPPING = 1.0
"""DeepSpeed's own (its runtime/constants.py); written out, because older releases had 0."""


def expected(setup: Setup, source: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that the live engine must read back, training the model of `TrialSpec.model`."""
    config, stage = setup.ds_config, setup.stage
    precision = setup.precision or setup.dtype
    found: dict[str, Any] = {
        "stage": stage,
        "micro_batch": config["train_micro_batch_size_per_gpu"],
        "grad_accum": config["gradient_accumulation_steps"],
        "dp": setup.world // (setup.tp * setup.pp * setup.sp),
        "tp": setup.tp,
        "sp": setup.sp,
        "ep": setup.ep,
        "pp": setup.pp,
        "dtype": precision,
        "gradient_clipping": config.get("gradient_clipping", DEFAULT_GRADIENT_CLIPPING),
        "communication_dtype": _communication_dtype(setup, precision),
        "compiled": setup.compile != "none",
    }
    if setup.communication is not None:
        found |= expected_of(setup.communication.values, setup.communication.nccl)
    if "config" in source:
        found |= _of_the_script(setup)
    if setup.model is not None and (setup.tp == 1 or setup.pp > 1):
        found["n_params"] = setup.model.n_params - experts_elsewhere(setup.model, setup.ep)
        found["n_params_frozen"] = setup.model.n_params_frozen
    if setup.optimizer in ("adam", "adamw"):
        found["optimizer"] = optimizer_class(setup)
        if setup.optimizer_params.get("torch_adam") is True:
            found["optimizer_fused"] = setup.optimizer_params.get("fused") is True
    if setup.tp > 1 and setup.pp == 1:
        if config_value(config, "tp.overlap_comm"):
            found["tp_overlap_comm"] = True
        if (head := config_value(config, "tp.head")) != "default":
            found["head_is_split"] = head == "split"
    if stage > 0:
        dtype = config_value(config, "grad_accum_dtype")
        found["grad_accum_dtype"] = precision if dtype == "model" else dtype
    if stage == 0 or setup.uses_bf16_optimizer:
        return found
    return found | _as_written(setup) | _derived(setup)


def config_value(config: Mapping[str, Any], knob: str) -> KnobValue:
    """Value of a knob in a configuration; the engine's default where it is silent."""
    value = KNOBS[knob].read(config)
    if value is not None:
        return value
    return KNOBS[knob].default_for({"zero.stage": KNOBS["zero.stage"].read(config) or 0})


def optimizer_class(setup: Setup) -> str:
    """Name of the class that updates (engine.py: get_optimizer_configuration)."""
    decoupled = setup.optimizer == "adamw" or setup.optimizer_params.get("adam_w_mode", True)
    if setup.optimizer_params.get("torch_adam") is True:
        return "AdamW" if decoupled else "Adam"
    if setup.optimizer_offload == "none":
        return "FusedAdam"
    return "ZenFlowCPUAdam" if setup.zero.get("zenflow") else "DeepSpeedCPUAdam"


def _of_the_script(setup: Setup) -> dict[str, Any]:
    found: dict[str, Any] = {"loss_chunk_tokens": setup.loss_chunk_tokens}
    if setup.mlp_chunk_tokens:
        found["mlp_chunk_tokens"] = setup.mlp_chunk_tokens
    if setup.offload_activations != "none":
        found["offload_activations"] = setup.offload_activations
    if setup.pp > 1:
        found["recompute_interval"] = recompute_interval(setup.recompute)
    elif setup.model is not None:
        interval = recompute_interval(setup.recompute)  # layers 0, K, 2K, ...
        found["recomputed_layers"] = -(-setup.model.n_layers // interval) if interval else 0
    if setup.attention != "default":
        found["attention"] = setup.attention
    return found


def _as_written(setup: Setup) -> dict[str, KnobValue]:
    """Values that ZeRO's optimizer holds as the configuration has them."""
    config = setup.ds_config
    return {
        knob.read_back: config_value(config, name)
        for name, knob in KNOBS.items()
        if knob.read_back
        and all(config_value(config, other) in allowed for other, allowed in knob.when.items())
        and (setup.zero.get("zenflow") or not knob.key.startswith(ZENFLOW))
    }


def _derived(setup: Setup) -> dict[str, Any]:
    """Values that follow from several keys together."""
    config, stage = setup.ds_config, setup.stage
    found: dict[str, Any] = {}
    if stage < 3 and setup.optimizer_offload != "none":
        found["contiguous_gradients"] = True  # forced
    if setup.pp > 1:
        found["overlap_comm"] = False  # switched off
    if stage < 3 and setup.optimizer_offload == "nvme":
        found["offload_optimizer"] = "cpu"  # nothing swaps below stage 3
    masters = config_value(config, "master_dtype")
    found["master_dtype"] = setup.precision if masters == "model" else "fp32"
    if setup.optimizer in ("adam", "adamw") and setup.optimizer_offload != "nvme":
        states = config_value(config, "optimizer_states_dtype")
        found["optimizer_states_dtype"] = "bf16" if states == "model" else "fp32"
    if stage == 3:
        size = int(config_value(config, "zeropp.hpz_partition_size"))
        found["hpz_partition_size"] = max(1, min(size, setup.world))
    return found


def _communication_dtype(setup: Setup, precision: str) -> str:
    # engine.py: _configure_distributed_model; what shards sequences has a key of its own.
    if setup.sp > 1:
        return str(setup.ds_config.get("seq_parallel_communication_data_type", "fp32"))
    return str(setup.ds_config.get("communication_data_type", precision))
