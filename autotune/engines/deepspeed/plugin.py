"""DeepSpeed as a plug-in: what is known of it before there is a job."""

from collections.abc import Callable, Mapping

from autotune.devices.hardware import Environment
from autotune.engines.base import EnginePlugin
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.plans import PREDICTED
from autotune.job.job import Job
from autotune.trial.engines.deepspeed import CONFIG_FILE


class DeepSpeed(EnginePlugin):
    """DeepSpeed."""

    name = "deepspeed"
    knobs = KNOBS
    predicted = PREDICTED
    dialect = "deepspeed"
    packages = ("deepspeed",)
    is_driven = True
    config_file = CONFIG_FILE

    def knob_of(self, key: str) -> str:
        """The knob that governs a dotted key of a ds_config.json."""
        governing = [k for k in KNOBS.values() if k.key and f"{key}.".startswith(f"{k.key}.")]
        if governing:
            # A key of a section may be a knob's own.
            return max(governing, key=lambda knob: len(knob.key)).name
        # It follows from micro_batch and the layout: the global batch is never touched.
        return "micro_batch, tp" if key == "gradient_accumulation_steps" else ""

    def rank_variables(self, accelerator: str, given: Mapping[str, str]) -> dict[str, str]:
        """Where the extensions were built."""
        return extensions.environment(accelerator, given)

    def build(self, accelerator: str, note: Callable[[str], None]) -> None:
        """Build the extensions that every trial loads."""
        extensions.build(accelerator, note)

    def bind(self, job: Job, environment: Environment) -> DeepSpeedEngine:
        """DeepSpeed for a job."""
        return DeepSpeedEngine(job, environment)
