"""Megatron as a plug-in: what is known of it before there is a job."""

from collections.abc import Sequence
from pathlib import Path

from autotune.devices.hardware import Environment
from autotune.engines.base import CommandJob, EnginePackage, EnginePlugin
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.engines.megatron.engine import MegatronEngine
from autotune.engines.megatron.knobs import KNOBS, LATTICE_KNOBS
from autotune.engines.megatron.own_command import is_megatrons, read_command
from autotune.job.job import Job
from autotune.trial.engines.megatron import ARGUMENTS_FILE


class Megatron(EnginePlugin):
    """Megatron-LM."""

    name = "megatron"
    knobs = KNOBS
    predicted = tuple(LATTICE_KNOBS)
    dialect = "megatron-core"
    packages = (
        EnginePackage(
            name="megatron-core",
            title="Megatron Core",
            least="0.14.0",
            tried=("0.14.0", "0.15.3", "0.16.1", "0.19.2"),
        ),
    )
    lays_out = True
    ladder_in_words = (
        "as little splitting as memory allows (experts first, then tp, then pp), with the largest "
        "power-of-two micro-batch that runs there"
    )
    is_driven = True
    saves_memory = (
        ("recompute", "none", "recomputation (recompute=full)"),
        ("distributed_optimizer", False, "the distributed optimizer"),
        ("fsdp", "none", "Megatron's FSDP ({space} megatron)"),
        ("optimizer_offload", 0.0, "the optimizer on the host ({space} megatron)"),
    )
    no_trace = "Megatron's ranks run layers of its own"
    config_file = ARGUMENTS_FILE

    def needed(self, job: Job) -> Sequence[EnginePackage]:
        return self.packages if job.megatron_path is None else ()

    def knob_of(self, key: str) -> str:
        return KNOBS_OF.get(key, "")

    def read_command(
        self, command: Sequence[str], folder: Path, *, is_named: bool
    ) -> CommandJob | None:
        is_read = is_named or is_megatrons(command, folder)
        return read_command(command, folder) if is_read else None

    def bind(self, job: Job, environment: Environment) -> MegatronEngine:
        return MegatronEngine(job, environment)
