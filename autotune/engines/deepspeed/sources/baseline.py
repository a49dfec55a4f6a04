"""A user's own file as a baseline: what DeepSpeed gets of it, and what its script does besides."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.base.nested import look_up
from autotune.contract import KnobValue
from autotune.engines.deepspeed.ds_config_file import Note, read_ds_config, usable
from autotune.engines.deepspeed.rules.sections import AUTO
from autotune.engines.deepspeed.sources.consumers import Consumer, known_values
from autotune.engines.deepspeed.sources.filled import filled, with_hidden_sizes
from autotune.engines.deepspeed.sources.kinds import NotADsConfigError
from autotune.engines.deepspeed.sources.reading import Source
from autotune.engines.deepspeed.sources.source import read
from autotune.engines.deepspeed.sources.training import (
    DEFAULT_OPTIM,
    completed,
    script_knobs,
)
from autotune.space.script import IMPLEMENTATIONS
from autotune.trial.guest.frameworks import as_argument_of

_MICRO, _ACCUM = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


@dataclass(frozen=True, kw_only=True)
class BaselineRun:
    """What a user's file would have trained."""

    config: Mapping[str, Any]
    """The ds_config, freed of "auto" and secrets."""
    notes: dict[str, Note]
    """What was left out of it, or respelled."""
    knobs: Mapping[str, KnobValue]
    """What the script does that the configuration does not say."""


def read_run(path: Path, *, world: int, hidden: int, with_monitors: bool = False) -> BaselineRun:
    """Read a ds_config.json, or a file in which a consumer of DeepSpeed's is told what to train.

    What the consumer fills in is filled in as it does; what only a run can know is left out.

    Args:
        path: A ds_config, arguments of Hugging Face's Trainer, an accelerate YAML, a file of
            axolotl, LLaMA-Factory or another reader that is known, or a shell file with a launch
            line.
        world: Ranks of the job.
        hidden: Hidden size of its model.
        with_monitors: Whether sections stay that write to the network or the disk.

    Raises:
        RenderError: A file cannot be read.
        JobError: It holds several configurations, starts another number of ranks, or its consumer
            refuses it.
    """
    source: Source | None = None
    try:
        source = read(path)
    except NotADsConfigError as error:
        if error.is_known:
            raise  # else a ds_config may hold little that tells it
    if source is None or _is_plain(source, path):
        config, notes = read_ds_config(path, with_monitors=with_monitors)
        return BaselineRun(config=config, notes=notes, knobs={})
    if source.world not in (None, world):
        ranks = source.world
        raise JobError.of("engines.deepspeed.world_of_a_file", path=path, ranks=ranks, world=world)
    if source.not_for:
        raise JobError.of("engines.deepspeed.not_deepspeed", path=path, kind=source.not_for)
    return _run_of(replace(source, world=world), path, hidden, with_monitors=with_monitors)


def _is_plain(source: Source, path: Path) -> bool:
    """Whether the file is a ds_config and nobody's arguments stand beside it."""
    is_told = source.is_made or source.arguments or source.accelerate.path is not None
    return source.path == path and not source.at and not is_told


def _run_of(source: Source, path: Path, hidden: int, *, with_monitors: bool) -> BaselineRun:
    world = source.world
    assert world is not None, "the caller knows it"
    is_trainers = source.consumer is Consumer.TRAINER
    has_own = source.arguments_path is not None
    has_arguments = is_trainers or has_own or "per_device_train_batch_size" in source.arguments
    arguments = completed(source.arguments, source.reader, world) if has_arguments else {}
    source = replace(source, arguments=arguments) if is_trainers else source
    if is_trainers:
        _refuse_mismatch(source, path)
    config, _ = filled(with_hidden_sizes(source.config, source.consumer, hidden), source)
    if source.consumer is Consumer.ACCELERATE:
        if config.get(_ACCUM) == AUTO:
            config[_ACCUM] = 1  # DeepSpeedPlugin.deepspeed_config_process
        if config.get(_MICRO) == AUTO and has_arguments:  # the batch of Trainer's data loader
            config[_MICRO] = arguments["per_device_train_batch_size"]
    config, notes = usable(config, path, with_monitors=with_monitors)
    knobs = script_knobs(arguments, source.reader) if has_arguments else {}
    if has_arguments and arguments.get("attn_implementation") and "attention" not in knobs:
        # A kernel that the knob does not have: forecasts are of transformers' own choice.
        notes["attn_implementation"] = (arguments["attn_implementation"], None)
    if is_trainers and "optimizer" not in source.config:
        optimizer_name, _ = as_argument_of(source.reader, "optim", None)
        optim = str(arguments.get(optimizer_name, DEFAULT_OPTIM))
        if optim in IMPLEMENTATIONS:
            is_offloaded = look_up(config, "zero_optimization.offload_optimizer.device")
            # accelerate swaps it for DeepSpeed's own there (map_pytorch_optim_to_deepspeed).
            if is_offloaded in (None, "none"):
                knobs["optimizer.implementation"] = IMPLEMENTATIONS[optim]
        else:
            notes[optimizer_name] = (optim, None)
    return BaselineRun(config=config, notes=notes, knobs=knobs)


def _refuse_mismatch(source: Source, path: Path) -> None:
    known = known_values(source.arguments, source.world)
    for key in (_MICRO, _ACCUM):
        value = look_up(source.config, key)
        if value not in (None, AUTO) and value != known.get(key):
            named = {"key": key, "value": value, "given": known.get(key), "file": source.path}
            raise JobError.of("engines.deepspeed.argument_differs", path=path, **named)
