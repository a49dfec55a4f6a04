"""Megatron Core inside the ranks of a trial: a driver (see `autotune.trial.engines.base`)."""

import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.contract import CONFIG_DIR, Measure, TrialSpec, settings_of
from autotune.trial.engines.base import LiveEngine
from autotune.trial.guest.hooks import around

ARGUMENTS_FILE = "megatron_args.json"
"""Name of a candidate's arguments, below `CONFIG_DIR`."""
_SPARE_STEPS = 200
"""Steps of a script besides those that are measured: skipped ones, and the diagnostic pass."""
_MOST_STEPS = 20_000
"""Steps for which a script indexes data; only a soak may take more."""


def load_code(accelerator: str) -> None:
    """Load what every rank on `cpu` or `cuda` uses; a second call costs nothing."""
    from autotune.trial.scripts import train_megatron

    train_megatron.load_megatron(accelerator)
    importlib.import_module("autotune.trial.engines.megatron_live")


def load_model_code(model: dict[str, Any]) -> None:
    """Import what every trial of a model does: Megatron has one model, which is loaded by now."""


def read_config(spec: TrialSpec, folder: Path) -> dict[str, Any]:
    """The candidate's arguments."""
    text = (folder / CONFIG_DIR / ARGUMENTS_FILE).read_text("utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def as_words(spec: TrialSpec, config: Mapping[str, Any]) -> list[str]:
    """The candidate's arguments as words of a command line, for a workload with a script."""
    return words_of({**config, "train_iters": _n_iterations(spec.measure)})


def words_of(arguments: Mapping[str, Any]) -> list[str]:
    """Arguments as words of a command line; True stands for a flag that takes no value."""
    words = []
    for name, value in arguments.items():
        words.append(f"--{name.replace('_', '-')}")
        if isinstance(value, list):
            words += map(str, value)
        elif value is not True:
            words.append(str(value))
    return words


def _n_iterations(measure: Measure) -> int:
    """Optimizer steps that a script has data for: more than a trial takes, if need be."""
    begun = 0 if measure.checkpoint is None else measure.checkpoint.resumes_at or 0
    return begun + _SPARE_STEPS + min(measure.warmup_steps + measure.max_steps, _MOST_STEPS)


def join_ranks() -> None:
    """Make the process group, and wait until it carries something."""
    from autotune.trial.scripts import train_megatron

    train_megatron.join_ranks()


def on_initialize(
    config: dict[str, Any], before: Callable[[], None], after: Callable[[Any], None]
) -> None:
    """Make `make_training` use the candidate's arguments, and see what a checkout builds of them.

    `before` is called when the training script builds its model, `after` with what it built.
    """
    from autotune.trial.engines import megatron_checkout
    from autotune.trial.scripts import train_megatron

    def watched(make: Callable[..., Any], arguments: Mapping[str, Any], settings: Any) -> Any:
        before()
        made = make(config, settings)
        after(made)
        return made

    train_megatron.make_training = around(train_megatron.make_training, watched)
    megatron_checkout.watch_imports(before, after)


def live(engine: Any) -> LiveEngine:
    """See `autotune.trial.engines.megatron_live`."""
    from autotune.trial.engines.megatron_checkout import CheckoutTraining, LiveCheckout
    from autotune.trial.engines.megatron_live import LiveMegatron

    return (LiveCheckout if isinstance(engine, CheckoutTraining) else LiveMegatron)(engine)


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
