"""DeepSpeed inside the ranks of a trial: a driver (see `autotune.trial.engines.base`)."""

import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.contract import CONFIG_DIR, TrialSpec
from autotune.trial.engines.base import LiveEngine
from autotune.trial.guest.hooks import around
from autotune.trial.transformer_shape import script_settings

CONFIG_FILE = "ds_config.json"
"""Name of a candidate's configuration, below `CONFIG_DIR`."""

SEGMENTS = "deepspeed_allreduce_buffer_{user}_{address}_"
"""How the names begin of the files in /dev/shm that CPU ranks leave behind; port and rank follow.

Each makes one of 66 MiB for its all-reduce (csrc/cpu/comm/shm.cpp), and nothing ever unlinks it:
/dev/shm is memory, and 100 trials would fill 13 GiB of it."""

_USED_BY_ALL = (
    "deepspeed",
    "autotune.trial.readback",
    "autotune.trial.engines.deepspeed_live",
    "autotune.trial.scripts.train",
)
"""Modules that every trial imports: once in a warm template, before the memory base is taken."""


def load_code(accelerator: str) -> None:
    """Load what every rank on `cpu` or `cuda` uses; a second call costs nothing."""
    for module in _USED_BY_ALL:
        importlib.import_module(module)
    from autotune.trial.prebuilt import NEEDED, load_as_built, load_now, reuse_cpu_info

    reuse_cpu_info()
    load_as_built()
    if accelerator == "cpu":  # those of CUDA are left to DeepSpeed
        load_now(NEEDED[accelerator])


def load_model_code(model: dict[str, Any]) -> None:
    """Import what every trial of a model does, whatever its configuration."""
    from autotune.trial.prebuilt import preload

    preload({}, model)


def read_config(spec: TrialSpec, folder: Path) -> dict[str, Any]:
    """The candidate's configuration, with what it needs imported."""
    from autotune.trial.prebuilt import preload

    config: dict[str, Any] = json.loads((folder / CONFIG_DIR / CONFIG_FILE).read_text("utf-8"))
    preload(config, spec.workload.model)
    return config


def join_ranks() -> None:
    """Make the process group, and wait until it carries something."""
    import deepspeed
    import torch

    accelerator = deepspeed.accelerator.get_accelerator()
    accelerator.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.distributed.all_reduce(torch.zeros(1, device=accelerator.current_device_name()))


def on_initialize(
    config: dict[str, Any], before: Callable[[], None], after: Callable[[Any], None]
) -> None:
    """Make `deepspeed.initialize` use the candidate's configuration.

    `before` is called when the training script initializes its engine, `after` with that engine.
    """
    import deepspeed

    def watched(initialize: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before()
        made = initialize(*args, **{**kwargs, "config": config})
        after(made[0])
        return made

    deepspeed.initialize = around(deepspeed.initialize, watched)


def live(engine: Any) -> LiveEngine:
    """See `autotune.trial.engines.deepspeed_live`."""
    from autotune.trial.engines.deepspeed_live import LiveDeepSpeed

    return LiveDeepSpeed(engine)


def steps(spec: TrialSpec, config: dict[str, Any]) -> Iterator[Any]:
    """Train as the script that an export carries does."""
    from autotune.trial.scripts import train

    script = script_settings(spec.workload, spec.layout)
    settings = train.Settings.of(
        script,
        spec.workload.model.get("config", {}),
        micro_batch=config["train_micro_batch_size_per_gpu"],
        grad_accum=config.get("gradient_accumulation_steps", 1),
    )
    return train.steps(
        train.make_engine(settings, config),
        settings,
        config,
        warm_up_steps=spec.measure.warmup_steps,
        # The rounds of a comparison show what the order of a sum alone changes in the losses.
        order=spec.identity.confirm_round or 0,
    )


def read_back(engine: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a live engine trains with and talks by; see `autotune.trial.readback`."""
    from autotune.trial import communication, readback

    return {**readback.read_back(engine, expected), **communication.read_back(expected)}
