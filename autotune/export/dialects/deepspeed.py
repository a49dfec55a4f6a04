"""The dialect of raw DeepSpeed: ds_config.json, a script, its settings, a README; and back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.base.templates import Templates, canonical_json
from autotune.check.baseline import refusals_of
from autotune.contract import SETTINGS_FILE, Layout, Measure, Workload, parts_of, read_json
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.expected import expected
from autotune.engines.deepspeed.outputs import without_outputs
from autotune.engines.deepspeed.rules.base import Setup
from autotune.export.base import (
    Dialect,
    Handout,
    Launch,
    Patched,
    Subject,
    reading_export,
    subject_of,
    whole,
)
from autotune.export.material import model_config, readme, training_script, trial_script
from autotune.export.patch import Wanted, patched_all
from autotune.export.trainer import untuned
from autotune.space.built_in import script_digest
from autotune.trial.engines.deepspeed import CONFIG_FILE
from autotune.trial.scripts.lengths import is_drawn
from autotune.trial.transformer_shape import script_settings

_LEAST = {
    **dict.fromkeys(("world", "tp", "pp", "sp", "dp", "global_batch", "seq_len"), 1),
    **dict.fromkeys(("seed", "loss_chunk_tokens", "mlp_chunk_tokens"), 0),
}
"""Settings that are whole numbers -> the least that each may be."""
_WORDS = ("recompute", "attention", "compile", "offload.activations")
"""Settings that are text."""
_MORE = ("mlp_chunk_tokens", "offload.activations")
"""Settings of this engine alone."""


class DeepSpeedFiles(Dialect):
    """For `deepspeed.initialize(config=...)`: concrete numbers only."""

    engines = ("deepspeed",)
    script = "train.py"

    def files(self, handout: Handout, launch: Launch, templates: Templates) -> dict[str, str]:
        settings = {**script_settings(handout.workload, handout.layout), **handout.settings}
        values = _values(handout, launch, settings)
        files = {
            **handout.exported,
            SETTINGS_FILE: canonical_json(settings),
            self.script: training_script(handout),
            **readme(handout, launch, templates, "launch/README.md.j2", values),
        }
        if handout.candidate.pp > 1:
            files["transformer.py"] = trial_script("transformer.py")
        if is_drawn(handout.workload.lengths):
            files["lengths.py"] = trial_script("lengths.py")
        return {**files, **model_config(handout)}

    def patched(self, paths: Sequence[Path], handout: Handout, engine: Engine) -> list[Patched]:
        return patched_all(paths, Wanted(handout, engine, None))

    def refusals(
        self, path: Path, *, world: int, environment: Environment
    ) -> list[tuple[str, str]]:
        return refusals_of(path, world=world, environment=environment)

    def read(self, folder: Path, environment: Environment, *, measure: Measure) -> Subject:
        """The configuration, and the settings that it has no key for."""
        with reading_export(folder, "deepspeed"):
            settings = read_json(folder / SETTINGS_FILE)
            # A soak is no run of the user's: it writes nothing to where those write.
            config, _ = without_outputs(read_json(folder / CONFIG_FILE))
            workload, layout = _parts(folder, config, settings)
            chosen: dict[str, Any] = {
                n.replace(".", "_"): value for n, value in workload.settings.items()
            }
            setup = Setup(
                ds_config=config,
                ranks=layout.world,
                sp_by_script=layout.sp,
                environment=environment,
                **{name: getattr(layout, name) for name in ("tp", "pp", "global_batch")},
                **{name: getattr(workload, name) for name in ("seq_len", "precision")},
                **chosen,
            )
            swaps = "nvme" in (setup.optimizer_offload, setup.param_offload)
            return subject_of(
                folder,
                settings,
                {CONFIG_FILE: canonical_json(config)},
                workload,
                layout,
                engine=self.engines[0],
                expected=expected(setup, workload.model),
                environment=environment,
                measure=measure,
                preparation=extensions.build_command(environment.accelerator, nvme=swaps),
            )


def _values(handout: Handout, launch: Launch, settings: dict[str, Any]) -> dict[str, Any]:
    config = json.loads(handout.exported[CONFIG_FILE])
    return {
        "recompute": "none",
        **settings,
        "started": ", ".join(f"`{name}`" for name in (*launch.files, DeepSpeedFiles.script)),
        "stage": config["zero_optimization"]["stage"],
        "offload_activations": settings.get("offload.activations", "none"),
        "ep": handout.candidate.get("ep", 1),
        "lora": handout.job.model.source.get("lora"),
        "has_config": "config" in handout.job.model.source,
        "untuned": untuned(config),
    }


def _parts(
    folder: Path, config: Mapping[str, Any], settings: Mapping[str, Any]
) -> tuple[Workload, Layout]:
    stated = dict(settings)
    for name, least in _LEAST.items():
        whole(stated, name, least=least)
    for name in _WORDS:
        if not isinstance(stated[name], str):
            raise ValueError(f"{name}: {str(stated[name])[:60]!r} is no text")
    stated["micro_batch"] = whole(config, "train_micro_batch_size_per_gpu")
    stated["grad_accum"] = whole(config, "gradient_accumulation_steps")
    if "factory" not in stated:
        stated["config"] = read_json(folder / "model" / "config.json")
    return parts_of(stated, digest=script_digest(), more=_MORE)
