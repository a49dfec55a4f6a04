"""Megatron as a plug-in: what is known of it before there is a job."""

from autotune.devices.hardware import Environment
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import KNOBS
from autotune.job.job import Job


class Megatron:
    """Megatron-LM; implements `EnginePlugin`."""

    name = "megatron"
    knobs = KNOBS
    predicted = tuple(KNOBS)
    dialect = "megatron"
    packages: tuple[str, ...] = ()
    no_trace = "Megatron's ranks run layers of its own"
    driver = None

    def bind(self, job: Job, environment: Environment) -> MegatronEngine:
        """Megatron for a job.

        Raises:
            FleetError: The accelerator is in no table.
            JobError: The job is not one that Megatron-LM trains, or its sizes cannot be seen.
        """
        return MegatronEngine(job, environment)
