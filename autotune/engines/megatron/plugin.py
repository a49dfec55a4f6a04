"""Megatron as a plug-in: what is known of it before there is a job."""

from collections.abc import Callable, Mapping

from autotune.devices.hardware import Environment
from autotune.engines.megatron.engine import LAYOUT_FILE, MegatronEngine
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
    is_driven = False
    config_file = LAYOUT_FILE

    def knob_of(self, key: str) -> str:
        """Each knob is a key of its own."""
        return key if key in KNOBS else ""

    def rank_variables(self, accelerator: str, given: Mapping[str, str]) -> dict[str, str]:
        """No variables: nothing is built."""
        return {}

    def build(self, accelerator: str, note: Callable[[str], None]) -> None:
        """Nothing is built."""

    def bind(self, job: Job, environment: Environment) -> MegatronEngine:
        """Megatron for a job.

        Raises:
            FleetError: The accelerator is in no table.
            JobError: The job is not one that Megatron-LM trains, or its sizes cannot be seen.
        """
        return MegatronEngine(job, environment)
