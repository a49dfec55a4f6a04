"""What the dialects of Megatron's family share: a layout with its arguments, in groups."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.base.templates import Templates
from autotune.contract import settings_of
from autotune.engines.megatron import flags
from autotune.engines.megatron.arguments import (
    ON_CPU,
    SCRIPT_ON_CPU,
    Arguments,
    layout_arguments,
    model_arguments,
    optimizer_arguments,
    seed_arguments,
)
from autotune.engines.megatron.engine import PADDED_TO, task_of
from autotune.engines.megatron.flags import known_release, newest_release, words_of
from autotune.engines.megatron.knobs import rows_of
from autotune.engines.megatron.rules import LayoutTask
from autotune.export.base import Handout, Launch
from autotune.export.readme import choice_values


@dataclass(frozen=True, kw_only=True)
class MegatronRun:
    """A layout to hand out, with its arguments in groups."""

    task: LayoutTask
    row: Mapping[str, int]
    """The layout's columns."""
    layout: Arguments
    model: Arguments
    """The model's sizes, all but the number of its token ids."""
    training: Arguments
    """The optimizer, and what has no other place."""
    vocab: int
    """Token ids, before any padding."""


def run_of(handout: Handout) -> MegatronRun:
    """A handout's layout and arguments.

    Raises:
        JobError: Megatron's GPT model cannot be the job's model.
    """
    job, task = handout.job, task_of(handout.job, handout.environment)
    row = rows_of(task, [handout.candidate]).row(0)
    model = model_arguments(job.model, job.seq_len)
    vocab = int(str(model.pop("vocab_size")))
    on_cpu = ON_CPU | SCRIPT_ON_CPU if handout.environment.accelerator == "cpu" else {}
    return MegatronRun(
        task=task,
        row=row,
        layout=layout_arguments(row, job),
        model={**model, **on_cpu},
        training={**optimizer_arguments(job), **seed_arguments(job)},
        vocab=vocab,
    )


def release_of(handout: Handout) -> str:
    """The release of Megatron Core that a handout is written for.

    Raises:
        JobError: Its flags are not known.
    """
    if handout.release:
        return known_release(handout.release, where="--to")
    if (checkout := handout.job.megatron_path) is not None:
        return known_release(flags.release_of(checkout), where=f"megatron_path: {checkout}")
    return newest_release()


def lines_of(arguments: Arguments, release: str) -> list[list[str]]:
    """Arguments as words of a command line, a list each.

    Raises:
        JobError: The release has no such flag.
    """
    lines = (words_of(name, value, release) for name, value in arguments.items())
    return [words for words in lines if words]


def megatron_readme(
    handout: Handout,
    run: MegatronRun,
    launch: Launch,
    templates: Templates,
    name: str,
    more: Mapping[str, Any],
) -> str:
    """The README of an export, from the template `name` and what that needs besides."""
    fused = run.task.fused_attention
    values = {
        **settings_of(handout.workload, handout.layout),
        **handout.settings,
        **run.row,
        **choice_values(handout),
        "device": handout.environment.device_name,
        "is_predicted": handout.figures is None,
        "attention": "a fused attention kernel" if fused else "attention that writes its scores",
        "padded_to": PADDED_TO,
        "has_experts": run.task.n_experts > 1,
        "has_prediction": handout.prediction is not None,
        "usage": launch.usage,
        "started": ", ".join(f"`{name}`" for name in sorted(launch.files)),
        **more,
    }
    return templates.text(name, values)
