"""DeepSpeed as a plug-in: what is known of it before there is a job."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autotune.base.data import table_beside
from autotune.contract import KnobValue
from autotune.devices.hardware import Environment, version_of
from autotune.engines.advice import COMMON, read_advice
from autotune.engines.base import Compiled, EnginePackage, EnginePlugin
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.engines.deepspeed.knobs import KNOBS
from autotune.engines.deepspeed.plans import PREDICTED
from autotune.engines.deepspeed.rules.releases import TRIED
from autotune.job.job import Job
from autotune.trial.engines.deepspeed import CONFIG_FILE

_REMOVED = tuple((one, what) for one, what in table_beside(__file__, "removed.json"))
"""Release -> what it removed: it raises if the key is merely there (runtime/config.py)."""


class DeepSpeed(EnginePlugin):
    """DeepSpeed."""

    name = "deepspeed"
    knobs = KNOBS
    predicted = PREDICTED
    dialect = "deepspeed"
    packages = (
        EnginePackage(
            name="deepspeed", title="DeepSpeed", least="0.16.4", tried=TRIED, removed=_REMOVED
        ),
    )
    ladder_in_words = (
        "the lowest ZeRO stage that runs without offload, with the largest power-of-two "
        "micro-batch that runs there"
    )
    is_driven = True
    config_file = CONFIG_FILE
    advice = read_advice(Path(__file__).with_name("advice.json"), COMMON)
    saves_memory = (
        ("recompute", "none", "recomputation (a space with recompute: [none, full])"),
        ("offload.optimizer", "none", "optimizer offload to the host ({space} zero_offload)"),
        ("offload.param", "none", "parameter offload to the host ({space} zero_offload)"),
    )

    def needed(self, job: Job) -> Sequence[EnginePackage]:
        peft = EnginePackage(name="peft", title="peft", least="")  # it adds adapters in the ranks
        return self.packages if job.finetune is None else (*self.packages, peft)

    def knob_of(self, key: str) -> str:
        governing = [k for k in KNOBS.values() if k.key and f"{key}.".startswith(f"{k.key}.")]
        if governing:
            # A key of a section may be a knob's own.
            return max(governing, key=lambda knob: len(knob.key)).name
        # It follows from micro_batch and the layout: the global batch is never touched.
        return "micro_batch, tp" if key == "gradient_accumulation_steps" else ""

    def ranks_of_command(self, command: Sequence[str], folder: Path) -> tuple[int | None, int]:
        from autotune.engines.deepspeed.sources.source import ranks_in
        from autotune.engines.launches.line import RANKS_VARIABLE

        ranks = os.environ.get(RANKS_VARIABLE, "")
        world, n_nodes = ranks_in(command, folder)
        return world or (int(ranks) if ranks.isdecimal() else 0) or None, n_nodes

    def updates_on_host(self, knobs: Mapping[str, KnobValue]) -> bool:
        return str(knobs.get("offload.optimizer", "none")) != "none"

    def takes_gradients(self, knobs: Mapping[str, KnobValue]) -> bool:
        """ZeRO does.

        Without it they stay until the step, and are freed there. Source: DeepSpeed,
        runtime/zero/stage_1_and_2.py and stage3.py (`reduce_ready_partitions_and_remove_grads`),
        runtime/engine.py (`zero_grad`).
        """
        return int(knobs.get("zero.stage", 0) or 0) > 0

    def rank_variables(self, accelerator: str, given: Mapping[str, str]) -> dict[str, str]:
        """Folder in which the extensions were built."""
        return extensions.environment(accelerator, given)

    def compiled(self, accelerator: str) -> Compiled:
        """The extensions; without torch and DeepSpeed they have no folder."""
        if None in map(version_of, ("torch", "deepspeed")):
            return Compiled(missing=extensions.needed(accelerator))
        built = extensions.built(accelerator)
        return Compiled(
            folder=str(extensions.extensions_folder(accelerator)),
            built=tuple(built),
            missing=tuple(x for x in extensions.needed(accelerator) if x not in built),
            stale_locks=(
                *map(str, extensions.stale_locks(accelerator)),
                *map(str, extensions.stale_locks_of_others()),
            ),
            misread=extensions.misread(accelerator),
        )

    def build(
        self,
        accelerator: str,
        note: Callable[[str], None],
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        extensions.build(accelerator, note, on_progress=on_progress)

    def bind(self, job: Job, environment: Environment) -> DeepSpeedEngine:
        if job.script is None:
            return DeepSpeedEngine(job, environment)
        from autotune.engines.deepspeed.script import ScriptEngine

        return ScriptEngine(job, environment)
