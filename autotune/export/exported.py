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
    Measure,
    Role,
    TrialSpec,
    parts_of,
    read_json,
)
from autotune.devices.hardware import Environment
from autotune.engines.deepspeed import extensions
from autotune.engines.deepspeed.expected import expected
from autotune.engines.deepspeed.rules.base import Setup
from autotune.record.soak import digest_of
from autotune.space.built_in import script_digest
from autotune.trial.engines.deepspeed import CONFIG_FILE, SETTINGS_FILE

_LEAST = {
    **dict.fromkeys(("world", "tp", "pp", "sp", "dp", "global_batch", "seq_len"), 1),
    **dict.fromkeys(("seed", "loss_chunk_tokens"), 0),
}
"""Settings that are whole numbers -> the least that each may be."""
_WORDS = ("recompute", "attention", "compile")
"""Settings that are text."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A configuration to soak."""

    source: str
    """The study's name or the export's folder."""
    folder: Path
    """Where `soak.json` goes."""
    trial: int | None = None
    spec: TrialSpec
    files: dict[str, str]
    """The engine's configuration files: path -> text."""
    preparation: tuple[str, ...]
    """Command that builds what its ranks load: see `Engine.preparation`."""
    n_params: int | None = None
    """None: nobody knows how large a checkpoint will be."""


def read_export(folder: Path, environment: Environment, *, measure: Measure) -> Subject:
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
        limit_bytes = _limit_of_export(settings, environment)
        measure = replace(measure, memory_limit_bytes=limit_bytes)
        spec, setup = _read(folder, config, settings, environment, measure, digest_of(files))
    except (ContractError, KeyError, TypeError, ValueError) as error:
        raise JobError(
            f"{folder}: not an export of autotune: {error}",
            "name a folder that `autotune export --to deepspeed` wrote, or a study",
        ) from error
    swaps = "nvme" in (setup.optimizer_offload, setup.param_offload)
    return Subject(
        source=str(folder),
        folder=folder,
        spec=spec,
        files=files,
        preparation=extensions.build_command(environment.accelerator, nvme=swaps),
    )


def _read(
    folder: Path,
    config: dict[str, Any],
    settings: dict[str, Any],
    environment: Environment,
    measure: Measure,
    digest: str,
) -> tuple[TrialSpec, Setup]:
    """What its trial is, and what would run."""
    told = {"sp": 1, **settings}  # older exports say none
    for name, least in _LEAST.items():
        _whole(told, name, least=least)
    for name in _WORDS:
        if not isinstance(told[name], str):
            raise ValueError(f"{name}: {str(told[name])[:60]!r} is no text")
    told["micro_batch"] = _whole(config, "train_micro_batch_size_per_gpu")
    told["grad_accum"] = _whole(config, "gradient_accumulation_steps")
    if "factory" not in told:
        told["config"] = read_json(folder / "model" / "config.json")
    workload, layout = parts_of(told, digest=script_digest())
    own: dict[str, Any] = workload.settings
    setup = Setup(
        ds_config=config,
        world=layout.world,
        tp=layout.tp,
        pp=layout.pp,
        sp_by_script=layout.sp,
        global_batch=layout.global_batch,
        seq_len=workload.seq_len,
        precision=workload.precision,
        environment=environment,
        **own,
    )
    hashed = digest[:12]
    spec = TrialSpec(
        identity=Identity(
            study=folder.name, number=0, role=Role.SOAK, candidate_hash=hashed, knobs={}
        ),
        layout=layout,
        workload=workload,
        engine=EngineSettings(
            expected=expected(setup, workload.model),
            environment=dict(settings["environment_variables"]),
            binds_cores=bool(settings["binds_cores"]),
        ),
        measure=measure,
    )
    return spec, setup


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
