"""How somebody other than a ds_config splits a training: the script of an export, Megatron."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.base.errors import RenderError
from autotune.base.user_text import read_text
from autotune.contract import SETTINGS_FILE


@dataclass(frozen=True, kw_only=True)
class ExportedLayout:
    """How the script beside a ds_config splits the training, and on what: it does not say."""

    pp: int = 1
    """Stages."""
    tp: int = 1
    """Ranks that each layer of a pipeline is split over; without one the ds_config says."""
    sp: int = 1
    """Ranks that share each sequence."""
    accelerator: str | None = None
    """One of `ACCELERATORS`; None: nobody said."""


ACCELERATORS = ("cuda", "cpu")
ACCELERATOR_VARIABLE = "DS_ACCELERATOR"
"""Environment variable by which DeepSpeed is told what it runs on."""
UNSPLIT = ExportedLayout()


def layout_beside(path: Path) -> ExportedLayout:
    """The layout of an export, by the settings beside its ds_config; of other files `UNSPLIT`."""
    settings = _settings_beside(path)
    pp, tp, sp = (settings.get(name, 1) for name in ("pp", "tp", "sp"))
    if any(type(degree) is not int or degree < 1 for degree in (pp, tp, sp)):
        return UNSPLIT
    named = settings.get("accelerator")
    accelerator = named if named in ACCELERATORS else None
    if pp == 1:
        return ExportedLayout(sp=sp, accelerator=accelerator)
    if "transformer" in settings:
        return ExportedLayout(pp=pp, tp=tp, accelerator=accelerator)
    return UNSPLIT


def world_beside(path: Path) -> int | None:
    """The ranks of an export, by the settings beside a file of it; None: it is none."""
    world = _settings_beside(path).get("world")
    return world if type(world) is int and world > 0 else None


def _settings_beside(path: Path) -> dict[str, Any]:
    """The settings of the export that a file is of; empty: it is none."""
    try:
        settings = json.loads(read_text(path.parent / SETTINGS_FILE))
    except (RenderError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}
