"""Megatron as a plug-in: what is known of it before there is a job."""

from autotune.devices.hardware import Environment
from autotune.engines.base import EnginePlugin
from autotune.engines.megatron.engine import LAYOUT_FILE, MegatronEngine
from autotune.engines.megatron.knobs import KNOBS
from autotune.job.job import Job


class Megatron(EnginePlugin):
    """Megatron-LM."""

    name = "megatron"
    knobs = KNOBS
    predicted = tuple(KNOBS)
    dialect = "megatron"
    no_trace = "Megatron's ranks run layers of its own"
    config_file = LAYOUT_FILE

    def bind(self, job: Job, environment: Environment) -> MegatronEngine:
        """Megatron for a job."""
        return MegatronEngine(job, environment)
