"""What the dialects of Megatron's family share: a layout with its arguments, in groups."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from autotune.base.errors import RenderError
from autotune.base.templates import Templates, canonical_json
from autotune.contract import SETTINGS_FILE, Layout, Measure, Workload, read_json
from autotune.devices.hardware import Environment
from autotune.engines.megatron import flags
from autotune.engines.megatron.arguments import (
    CARRIED,
    KNOBS_OF,
    SCRIPT_ON_CPU,
    expert_kernels,
    kernel_arguments,
    layout_arguments,
    optimizer_arguments,
    seed_arguments,
)
from autotune.engines.megatron.engine import PADDED_TO, task_of
from autotune.engines.megatron.flags import (
    known_release,
    newest_release,
    recorded_release,
    words_of,
)
from autotune.engines.megatron.knobs import rows_of
from autotune.engines.megatron.layout_task import LayoutTask
from autotune.engines.megatron.model_arguments import Arguments, balance_advice, model_arguments
from autotune.export.base import Dialect, Handout, Launch, Subject, reading_export, subject_of
from autotune.export.material import readme
from autotune.trial.engines.megatron import ARGUMENTS_FILE

_READ_BACK = ("tp", "pp", "vp", "cp", "ep", "micro_batch")
"""What the live engine says of itself of a layout, as far as an export's arguments tell."""


class MegatronDialect(Dialect):
    """A dialect of layouts."""

    engines = ("megatron",)
    only_launcher = "it starts scripts with a configuration of DeepSpeed"


@dataclass(frozen=True, kw_only=True)
class MegatronRun:
    """A layout to hand out, with its arguments in groups."""

    task: LayoutTask
    row: Mapping[str, int]
    layout: Arguments
    model: Arguments
    kernels: Arguments
    """What Megatron is told where kernels that it asks for by default are not there."""
    training: Arguments
    """The optimizer, and what has no other place."""
    vocab: int
    """Token ids, before any padding."""


def run_of(handout: Handout, release: str = "") -> MegatronRun:
    """A handout's layout and arguments, for a release of Megatron Core; empty: for any.

    Raises:
        JobError: Megatron's GPT model cannot be the job's model.
    """
    job, task = handout.job, task_of(handout.job, handout.environment)
    row = rows_of(task, [handout.candidate]).row(0)
    layout = layout_arguments(row, job, release=release) | expert_kernels(
        handout.environment, job.model
    )
    model = {
        name: value
        for name, value in model_arguments(job.model, job.seq_len).items()
        if name not in layout
    }
    vocab = int(str(model.pop("vocab_size")))
    kernels = kernel_arguments(handout.environment)
    if task.on_cpu:
        kernels |= SCRIPT_ON_CPU
    return MegatronRun(
        task=task,
        row=row,
        layout=layout,
        model=model,
        kernels=kernels,
        training={**optimizer_arguments(job), **seed_arguments(job)},
        vocab=vocab,
    )


Row = str | Mapping[str, Any]
"""Where a consumer has an argument: its place, or what stands at each of several, `=` for the
argument's own value."""


def at_places(row: Row, value: Any) -> dict[str, Any]:
    """An argument's value at the places of its row."""
    if isinstance(row, str):
        return {row: value}
    return {place: value if inner == "=" else inner for place, inner in row.items()}


def no_setting(to: str, argument: str, why: str) -> RenderError:
    """The error of an argument that a consumer cannot be told, by the knob that needs it."""
    knob = KNOBS_OF.get(argument)
    return RenderError(
        f"{to}: {knob or argument} cannot be said: {why}",
        "--to megatron writes the same run for Megatron-LM"
        + (f"; or choose a candidate without {knob}" if knob else ""),
    )


def release_of(handout: Handout) -> str:
    """The release of Megatron Core that a handout is written for.

    Where nobody names one, that is the release of the job's checkout, or else the one that the
    study's trials ran; the newest where there is no study, or its release is not known.

    Raises:
        JobError: Its flags are not known.
    """
    if handout.release:
        return known_release(handout.release, where="--to")
    if (checkout := handout.job.megatron_path) is not None:
        return known_release(flags.release_of(checkout), where=f"megatron_path: {checkout}")
    measured = handout.environment.megatron_core if handout.study is not None else ""
    return recorded_release(measured) or newest_release()


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
) -> dict[str, str]:
    """The README of an export, from the template `name` and what that needs besides."""
    fused = run.task.fused_attention
    values = {
        **run.row,
        "is_predicted": handout.figures is None,
        "attention": "a fused attention kernel" if fused else "attention that writes its scores",
        "padded_to": PADDED_TO,
        "has_experts": run.task.n_experts > 1,
        "balance": balance_advice(handout.job.model),
        "has_prediction": handout.prediction is not None,
        **more,
    }
    return readme(handout, launch, templates, name, values)


class MegatronRuns(MegatronDialect):
    """A dialect of whole runs, which are read back."""

    name: ClassVar[str]

    @abstractmethod
    def trained(
        self, settings: Mapping[str, Any], arguments: dict[str, Any], environment: Environment
    ) -> tuple[Workload, Layout]:
        """What an export trains, and how its ranks share the work; may complete the arguments.

        Raises:
            JobError: It needs what is not there.
        """

    def read(self, folder: Path, environment: Environment, *, measure: Measure) -> Subject:
        """A trial of the export's arguments, and of the settings that they do not say."""
        with reading_export(folder, self.name):
            settings = read_json(folder / SETTINGS_FILE)
            arguments = read_json(folder / ARGUMENTS_FILE)
            workload, layout = self.trained(settings, arguments, environment)
            return subject_of(
                folder,
                settings,
                {ARGUMENTS_FILE: canonical_json(arguments)},
                workload,
                layout,
                engine="megatron",
                expected=_expected(arguments, layout),
                environment=environment,
                measure=measure,
            )


def _expected(arguments: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """What a live Megatron must say of itself, as far as the files of an export tell."""
    found = {
        carried.knob: arguments.get(argument, 1)
        for argument, carried in CARRIED.items()
        if carried.knob in _READ_BACK
    }
    return {
        **found,
        "n_layers": arguments.get("num_layers", 1),
        "dp": layout.dp,
        "grad_accum": layout.grad_accum,
        "sequence_parallel": bool(arguments.get("sequence_parallel")),
        "distributed_optimizer": bool(arguments.get("use_distributed_optimizer")),
    }
