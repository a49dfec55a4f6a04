"""Exports of a tiny model on two CPU ranks, for the tests of dialects and launchers."""

import dataclasses
from pathlib import Path
from typing import Any

from autotune.devices.hardware import Environment
from autotune.engines.deepspeed.engine import DeepSpeedEngine
from autotune.export.base import Handout
from autotune.export.door import export_handout, handout_of
from tests.jobs import CPU, canonical_candidate, tiny_job

GPUS = dataclasses.replace(CPU, accelerator="cuda", n_devices=8)


def handed(
    folder: Path,
    *,
    environment: Environment = CPU,
    job: dict[str, Any] | None = None,
    **knobs: Any,
) -> Handout:
    """A candidate of the tiny model; `__` in the name of a knob stands for a dot."""
    found = tiny_job(folder, **(job or {}))
    return handout_of(
        canonical_candidate(found, environment, **knobs),
        engine=DeepSpeedEngine(found, environment),
        job=found,
        environment=environment,
    )


def export(handout: Handout, folder: Path, to: str, launcher: str | None = None) -> Path:
    """Its files, in a new folder."""
    export_handout(handout, folder / "out", to=to, launcher=launcher)
    return folder / "out"
