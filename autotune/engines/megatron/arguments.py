"""The arguments of a layout, as Megatron-LM's pretrain scripts take them: the one list of them.

A trial's own training script reads them, an export writes them as flags, and `check` compares a
user's with them. Names are those of the flags, without dashes before them and with underscores
between words; `True` stands for a flag that takes no value.

Source: NVIDIA/Megatron-LM, megatron/training/arguments.py (Megatron Core 0.14 to 0.16), and from
0.16 on the fields of its configuration classes, which keep the names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from autotune.base.data import table_beside
from autotune.devices.hardware import Environment
from autotune.engines.megatron.choices import BALANCED, LAYOUTS
from autotune.engines.megatron.knobs import KNOBS, value_of
from autotune.engines.megatron.layout_rule import holds
from autotune.engines.megatron.model_arguments import Arguments, model_arguments
from autotune.engines.megatron.stages import (
    balanced_layers,
    layers_in,
    stages_of,
    work_of,
    written,
)
from autotune.engines.releases import is_at_least
from autotune.job.job import Job
from autotune.job.model import Model
from autotune.job.model_shape import ModelShape

KERNELS: Mapping[str, Mapping[str, Any]] = table_beside(__file__, "kernels.json")
"""What has kernels -> the arguments of a run without it, and with it for mixtures of experts; and
what is said where it is missing."""
SCRIPT_ON_CPU: Arguments = {"num_workers": 0}
"""Arguments of a checkout's own script besides: processes that load data would take the cores of
the ranks."""
FLEX_BACKEND = "0.16"
"""Release from which `moe_flex_dispatcher_backend` names DeepEP, in place of a flag of its own."""
Row = Mapping[str, int]
"""A layout's columns, `n_experts` of its model, and whether the release has `flex_backend`."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """How an argument follows from a layout, by a row of arguments.json.

    An argument may have several rows, of which the first that holds counts.
    """

    knob: str
    """The knob that decides it; empty: it comes with another argument."""
    kind: Literal["number", "switch", "other"]
    """Whether it is the knob's number, or on where the knob is."""
    rows: Sequence[Mapping[str, Any]]
    """Entries: `number` names a column whose number it is, `word` a knob whose value it is, and
    `parts` one whose value is a list; `is` is a value, and `knob` and `switch` name a knob where
    it is that, or true. `when` is a condition (`layout_rule.holds`); without it the knob is off
    its default."""

    def value(self, row: Row) -> Any:
        """Its value in a layout; nothing, 0 or False: it is left out."""
        return next((_value(entries, row) for entries in self.rows if applies(entries, row)), None)


def _knob(entries: Mapping[str, Any]) -> str:
    kinds = ("knob", "number", "switch", "word", "parts")
    return str(next((entries[kind] for kind in kinds if kind in entries), ""))


def applies(entries: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether the conditions of a table's row hold of a layout."""
    return all(holds(term, row) for term in entries.get("when", _knob(entries)).split())


def _value(entries: Mapping[str, Any], row: Row) -> Any:
    if "number" in entries:
        return row[entries["number"]]
    if "word" in entries:
        return value_of(KNOBS[entries["word"]], row[entries["word"]])
    if "parts" in entries:
        return str(value_of(KNOBS[entries["parts"]], row[entries["parts"]])).split("+")
    return entries.get("is", True)


def _carried(row: Any) -> Carried:
    rows = row if isinstance(row, list) else [row]
    kind: Any = next(
        (name for name in ("number", "switch") if _knob(rows[0]) == rows[0].get(name)), "other"
    )
    return Carried(knob=_knob(rows[0]), kind=kind, rows=rows)


CARRIED: Mapping[str, Carried] = {
    argument: _carried(row) for argument, row in table_beside(__file__, "arguments.json").items()
}
"""Argument -> how it follows from a layout, in the order in which they are written; a layout of
stages follows from the model besides."""
KNOBS_OF = {
    "pipeline_model_parallel_layout": "stages",
    **{argument: carried.knob for argument, carried in CARRIED.items() if carried.knob},
}
"""Argument -> the knob that it follows from."""
DECIDED = frozenset({*KNOBS_OF, *table_beside(__file__, "decided.json")})
"""Arguments that no user adds: those of the knobs, of the job, and of how a trial measures."""

_TORCH_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
"""Defaults of torch.optim.AdamW, which a job's optimizer leaves out."""
CLIP_GRAD = 1.0


def expert_kernels(environment: Environment, model: Model) -> Arguments:
    """What a mixture of experts is told where Transformer Engine has kernels for it."""
    has_te = environment.accelerator != "cpu" and environment.has_transformer_engine
    is_told = has_te and model.shape.n_experts > 1
    return dict(KERNELS["transformer_engine"]["with_experts"]) if is_told else {}


def kernel_arguments(environment: Environment) -> Arguments:
    """What Megatron is told where kernels that it asks for by default are not there."""
    on_gpu = environment.accelerator != "cpu"
    has = {
        "transformer_engine": on_gpu and environment.has_transformer_engine,
        "apex": on_gpu and environment.has_apex,
        "gpu": on_gpu,
    }
    lacking = [KERNELS[name]["without"] for name, is_there in has.items() if not is_there]
    return {name: value for arguments in lacking for name, value in arguments.items()}


def arguments_of(
    row: Mapping[str, int], job: Job, *, layers: int | None = None, release: str = ""
) -> Arguments:
    """The arguments of a layout for a job.

    Args:
        row: The layout's columns (`autotune.engines.megatron.layouts.Layouts.row`).
        job: What is trained.
        layers: Layers of the model; None: all of them.
        release: Megatron Core's; empty: not known, and they are what every release takes.

    Raises:
        JobError: Megatron's GPT model cannot be the job's model.
    """
    return {
        **model_arguments(job.model_with(layers), job.seq_len),
        **layout_arguments(row, job, layers=layers, release=release),
        **optimizer_arguments(job),
        **seed_arguments(job),
    }


def layout_arguments(
    row: Mapping[str, int], job: Job, *, layers: int | None = None, release: str = ""
) -> Arguments:
    """How the ranks share the work, the batch, the precision, recomputation and overlap.

    Arguments as of `arguments_of`.
    """
    shape = job.model_with(layers).shape
    has_backend = bool(release) and is_at_least(release, FLEX_BACKEND)
    of_model = {**row, "n_experts": shape.n_experts, "flex_backend": int(has_backend)}
    values = {argument: carried.value(of_model) for argument, carried in CARRIED.items()}
    found: Arguments = {argument: values.pop(argument) for argument in _DEGREES}
    found |= {"global_batch_size": job.global_batch, "seq_length": job.seq_len}
    if row["stages"]:
        found["pipeline_model_parallel_layout"] = _placement(row, shape, job.seq_len)
    found |= {argument: value for argument, value in values.items() if value}
    if job.precision != "fp32":
        found[job.precision] = True
    return found


_DEGREES = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "micro_batch_size"),
)
"""Arguments that are written before those of the job."""


def _placement(row: Mapping[str, int], shape: ModelShape, seq_len: int) -> str:
    """Which layers a stage has, in Megatron's words; a reduced model's are balanced."""
    text = LAYOUTS.text(row["stages"])
    stages = stages_of(text) if row["stages"] != BALANCED else None
    if stages is not None and sum(layers_in(stages)) == shape.n_layers:
        return text
    counts = balanced_layers(work_of(shape, seq_len), row["pp"], row["vp"])
    return written(counts, shape.n_mtp_layers)


def optimizer_arguments(job: Job) -> Arguments:
    """Adam with the job's settings, at one learning rate."""
    params = {**_TORCH_ADAM, **job.optimizer.get("params", {})}
    beta_1, beta_2 = params["betas"]
    return {
        "optimizer": "adam",
        "lr": params["lr"],
        "lr_decay_style": "constant",
        "weight_decay": params["weight_decay"],
        "adam_beta1": beta_1,
        "adam_beta2": beta_2,
        "adam_eps": params["eps"],
        "clip_grad": CLIP_GRAD,
    }


def seed_arguments(job: Job) -> Arguments:
    """The seed of weights and data."""
    return {"seed": job.seed or 1}  # Megatron wants one above 0
