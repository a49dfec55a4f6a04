"""The dialect of Megatron Core alone: the training script of the trials, and what it reads."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.templates import Templates, canonical_json
from autotune.contract import (
    ContractError,
    EngineSettings,
    Identity,
    Layout,
    Measure,
    Role,
    TrialSpec,
    read_json,
)
from autotune.contract import parts_of as spec_parts
from autotune.devices.hardware import Environment
from autotune.export.base import Dialect, Handout, Launch, Subject
from autotune.export.material import SETTINGS_FILE, settings, trial_script
from autotune.export.megatron import megatron_readme, run_of
from autotune.export.readme import figures_file
from autotune.record.soak import digest_of
from autotune.space.built_in import script_digest
from autotune.trial.engines.megatron import ARGUMENTS_FILE

_LAYOUT = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "vp": "num_virtual_stages_per_pipeline_rank",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "micro_batch": "micro_batch_size",
    "n_layers": "num_layers",
}
"""What the live engine says of itself -> the argument that asks for it."""


class MegatronCoreScript(Dialect):
    """For the package megatron-core: a loop over its GPTModel, as it was measured."""

    engines = ("megatron",)
    script = "train_megatron.py"
    only_launcher = "it starts scripts with a configuration of DeepSpeed"

    def files(
        self, handout: Handout, launch: Launch | None, templates: Templates
    ) -> dict[str, str]:
        """See `Dialect.files`."""
        assert launch is not None, "it has a script"
        scripts = [self.script, "train.py", "lengths.py"]
        if handout.environment.accelerator == "cpu":
            scripts.append("megatron_cpu.py")
        return {
            **handout.files,
            **{name: trial_script(name) for name in scripts},
            SETTINGS_FILE: canonical_json(settings(handout)),
            "README.md": megatron_readme(
                handout, run_of(handout), launch, templates, "megatron/core.md.j2", {}
            ),
            **figures_file(handout),
        }

    def read(self, folder: Path, environment: Environment, *, measure: Measure) -> Subject:
        """See `Dialect.read`: the arguments, and the settings that they do not say."""
        try:
            told, arguments = read_json(folder / SETTINGS_FILE), read_json(folder / ARGUMENTS_FILE)
            limit_bytes = told.get("memory_limit_bytes")
            if limit_bytes is not None:
                limit_bytes = min(int(limit_bytes), environment.device_memory_bytes)
            workload, layout = spec_parts(told, digest=script_digest())
            files = {ARGUMENTS_FILE: canonical_json(arguments)}
            spec = TrialSpec(
                identity=Identity(
                    study=folder.name,
                    number=0,
                    role=Role.SOAK,
                    candidate_hash=digest_of(files)[:12],
                    knobs={},
                ),
                layout=layout,
                workload=workload,
                engine=EngineSettings(
                    name=self.engines[0],
                    expected=_expected(arguments, layout),
                    environment=dict(told["environment_variables"]),
                    binds_cores=bool(told["binds_cores"]),
                ),
                measure=dataclasses.replace(measure, memory_limit_bytes=limit_bytes),
            )
        except (ContractError, KeyError, TypeError, ValueError) as error:
            raise JobError(
                f"{folder}: not an export of autotune: {error}",
                "name a folder that `autotune export --to megatron-core` wrote, or a study",
            ) from error
        return Subject(source=str(folder), folder=folder, spec=spec, files=files, preparation=())


def _expected(arguments: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """What a live Megatron must say of itself, as far as the files of an export tell."""
    found = {name: arguments.get(argument, 1) for name, argument in _LAYOUT.items()}
    return {
        **found,
        "dp": layout.dp,
        "grad_accum": layout.grad_accum,
        "sequence_parallel": bool(arguments.get("sequence_parallel")),
        "distributed_optimizer": bool(arguments.get("use_distributed_optimizer")),
    }
