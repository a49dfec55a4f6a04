"""Megatron Core inside the ranks of a trial: a driver (see `autotune.trial.engines.base`)."""

import functools
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.contract import CONFIG_DIR, TrialSpec, settings_of
from autotune.trial.engines.base import LiveEngine

ARGUMENTS_FILE = "megatron_args.json"
"""Name of a candidate's arguments, below `CONFIG_DIR`."""


def load_code(accelerator: str) -> None:
    """Load what every rank on `cpu` or `cuda` uses; a second call costs nothing."""
    from autotune.trial.scripts import train_megatron

    train_megatron.load_megatron(accelerator)
    for module in ("train", "lengths"):
        importlib.import_module(f"autotune.trial.scripts.{module}")
    importlib.import_module("autotune.trial.engines.megatron_live")


def load_model_code(model: dict[str, Any]) -> None:
    """Import what every trial of a model does: Megatron has one model, which is loaded by now."""


def read_config(spec: TrialSpec, folder: Path) -> dict[str, Any]:
    """The candidate's arguments."""
    text = (folder / CONFIG_DIR / ARGUMENTS_FILE).read_text("utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def join_ranks() -> None:
    """Make the process group, and wait until it carries something."""
    from autotune.trial.scripts import train_megatron

    train_megatron.join_ranks()


def on_initialize(
    config: dict[str, Any], before: Callable[[], None], after: Callable[[Any], None]
) -> None:
    """Make `make_training` use the candidate's arguments.

    `before` is called when the training script builds its model, `after` with what it built.
    """
    from autotune.trial.scripts import train_megatron

    make_training = train_megatron.make_training

    @functools.wraps(make_training)
    def watched_make_training(arguments: Mapping[str, Any], settings: Any) -> Any:
        before()
        made = make_training(config, settings)
        after(made)
        return made

    train_megatron.make_training = watched_make_training


def live(engine: Any) -> LiveEngine:
    """See `autotune.trial.engines.megatron_live`."""
    from autotune.trial.engines.megatron_live import LiveMegatron

    return LiveMegatron(engine)


def steps(spec: TrialSpec, config: dict[str, Any]) -> Iterator[Any]:
    """Train as the script that an export carries does."""
    from autotune.trial.scripts import train_megatron

    settings = train_megatron.settings_of(settings_of(spec.workload, spec.layout), config)
    training = train_megatron.make_training(config, settings)
    # The rounds of a comparison show what the order of a sum alone changes in the losses.
    return train_megatron.steps(training, order=spec.identity.confirm_round or 0)


def read_back(engine: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a live Megatron trains with; see `autotune.trial.megatron_readback`."""
    from autotune.trial import communication, megatron_readback

    return {**megatron_readback.read_back(engine), **communication.read_back(expected)}
