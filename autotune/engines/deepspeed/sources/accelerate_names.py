"""Accelerate's names for keys of a ds_config: in the section of its YAML, and as flags."""

from collections.abc import Mapping

SECTION = "deepspeed_config"
"""Its section for DeepSpeed."""

KEYS: Mapping[str, str] = {
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
}
"""Field of its section -> the key that it fills in."""

FIELDS = {key: name for name, key in KEYS.items()}
"""Key of a ds_config -> what the section calls it."""

FLAGS = tuple(name for name in KEYS if not name.endswith("_path"))
"""Keys that are flags of `accelerate launch`, which come before the section."""
