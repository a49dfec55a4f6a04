"""Names and defaults of the programs that hand a configuration on: recorded, with their sources.

Accelerate 1.15: commands/config/config_args.py, utils/dataclasses.py (DeepSpeedPlugin). Trainer,
transformers 5.23: training_args.py; readers' own defaults: axolotl utils/schemas/config.py, TRL
trainer/base_config.py, ms-swift arguments/sft_args.py. GPT-NeoX: megatron/neox_arguments/
deepspeed_args.py, less `fp32_allreduce`, which no DeepSpeed reads. Lightning:
pytorch/strategies/deepspeed.py (register_strategies, DeepSpeedStrategy).
"""

from collections.abc import Mapping
from typing import Any

from autotune.base.data import table_beside

PROGRAMS: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "programs.json")
"""Program -> what is recorded of it; `files` tells files of other kinds."""
