"""DeepSpeed as a plug-in: what is known of it before there is a job."""

from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.plans import PREDICTED
from autotune.job.job import Job


class DeepSpeed:
    """DeepSpeed; implements `EnginePlugin`."""

    name = "deepspeed"
    knobs = KNOBS
    predicted = PREDICTED
    dialect = "deepspeed"
    packages = ("deepspeed",)
    no_trace = ""
    driver = "autotune.trial.wrapper"

    def bind(self, job: Job, environment: Environment) -> DeepSpeedEngine:
        """DeepSpeed for a job.

        Raises:
            RenderError: A template or the base configuration cannot be used.
        """
        return DeepSpeedEngine(job, environment)
