"""An export of the DeepSpeed dialect read back: what a soak of it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.templates import canonical_json
from autotune.contract import (
    ContractError,
    EngineSettings,
    Identity,
    Layout,
    Measure,
    Role,
    TrialSpec,
    Workload,
    read_json,
)
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.expected import expected
from autotune.engines.deepspeed.rules.base import Setup
from autotune.export.dialects.deepspeed import SETTINGS_FILE
from autotune.record.soak import digest_of
from autotune.space.built_in import script_digest
from autotune.trial.engines.deepspeed import CONFIG_FILE


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What an export would run."""

    spec: TrialSpec
    files: dict[str, str]
    """The engine's configuration files: path -> text."""
    preparation: tuple[str, ...]
    """What builds what its ranks load: see `Engine.preparation`."""


def read_export(folder: Path, environment: Environment, *, measure: Measure) -> Exported:
    """Read DeepSpeed's configuration, and the settings that it has no key for.

    Args:
        folder: The export.
        environment: The devices that will run it.
        measure: How its trial measures; the memory limit is the export's.

    Raises:
        JobError: The folder holds no such export.
    """
    try:
        config, settings = read_json(folder / CONFIG_FILE), read_json(folder / SETTINGS_FILE)
        files = {CONFIG_FILE: canonical_json(config)}
        setup = _setup_of_export(config, settings, environment)
        spec = _spec_of_export(folder, setup, settings, measure, digest_of(files))
    except (ContractError, KeyError, TypeError, ValueError) as error:
        raise JobError(
            f"{folder}: not an export of autotune: {error}",
            "name a folder that `autotune export --to deepspeed` wrote, or a study",
        ) from error
    swaps = "nvme" in (setup.optimizer_offload, setup.param_offload)
    command = extensions.build_command(environment.accelerator, nvme=swaps)
    return Exported(spec=spec, files=files, preparation=command)


def _setup_of_export(
    config: dict[str, Any], settings: dict[str, Any], environment: Environment
) -> Setup:
    """What runs; of the model the shape alone is unknown, it was judged before it was exported."""
    return Setup(
        ds_config=config,
        world=_whole(settings, "world"),
        tp=_whole(settings, "tp"),
        pp=_whole(settings, "pp"),
        global_batch=_whole(settings, "global_batch"),
        seq_len=_whole(settings, "seq_len"),
        recompute=str(settings["recompute"]),
        precision=str(settings["precision"]),
        model=None,
        supports_tp=True,
        supports_recompute=True,
        environment=environment,
        attention=str(settings["attention"]),
        loss_chunk_tokens=_whole(settings, "loss_chunk_tokens", least=0),
        compile=str(settings["compile"]),
        sp_by_script=_whole({"sp": 1, **settings}, "sp"),  # older exports say none
    )


def _spec_of_export(
    folder: Path, setup: Setup, settings: dict[str, Any], measure: Measure, digest: str
) -> TrialSpec:
    named = ("factory", "path", "vocab", "lora")
    model: dict[str, Any] = {key: settings[key] for key in named if key in settings}
    if "factory" not in model:
        model["config"] = read_json(folder / "model" / "config.json")
    return TrialSpec(
        identity=Identity(
            study=folder.name, number=0, role=Role.SOAK, candidate_hash=digest[:12], knobs={}
        ),
        layout=Layout(
            accelerator=str(settings["accelerator"]),
            world=setup.world,
            tp=setup.tp,
            pp=setup.pp,
            sp=setup.sp,
            dp=_whole(settings, "dp"),
            micro_batch=_whole(setup.ds_config, "train_micro_batch_size_per_gpu"),
            grad_accum=_whole(setup.ds_config, "gradient_accumulation_steps"),
            global_batch=_whole(settings, "global_batch"),
        ),
        workload=Workload(
            model=model,
            seq_len=_whole(settings, "seq_len"),
            precision=str(settings["precision"]),
            lengths=dict(settings["lengths"]),
            seed=_whole(settings, "seed", least=0),
            digest=script_digest(),
            settings={
                "recompute": setup.recompute,
                "attention": setup.attention,
                "loss_chunk_tokens": setup.loss_chunk_tokens,
                "compile": setup.compile,
            },
        ),
        engine=EngineSettings(
            expected=expected(setup, model),
            environment=dict(settings["environment_variables"]),
            binds_cores=bool(settings["binds_cores"]),
        ),
        measure=replace(measure, memory_limit_bytes=_limit_of_export(settings, setup.environment)),
    )


def _limit_of_export(settings: dict[str, Any], environment: Environment) -> int | None:
    """What it was tuned for, where there is as much here; an older export does not say."""
    if settings.get("memory_limit_bytes") is None:
        return None
    return min(_whole(settings, "memory_limit_bytes"), environment.device_memory_bytes)


def _whole(settings: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    value = settings[name]
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: {str(value)[:60]!r} is not a whole number from {least}")
    return value
