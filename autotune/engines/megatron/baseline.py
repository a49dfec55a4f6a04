"""A user's own launch of Megatron-LM as the baseline: its layout in knobs, and what has none.

The ladder that a search climbs for its baseline: what NVIDIA publishes as a rule of thumb.

Data parallelism with the distributed optimizer as far as memory allows, then experts spread over
the domain that is joined without the network, then tensor parallelism as far as both fit into it,
then pipelines, then more of it, a degree at a time; recomputation only where nothing else runs.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, on choosing a parallelism.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.base.errors import JobError
from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron.argument_rules import in_words
from autotune.engines.megatron.arguments import KNOBS_OF
from autotune.engines.megatron.choices import OFFLOADED
from autotune.engines.megatron.knobs import LATTICE_KNOBS, MORE_KNOBS, SHARE, knobs_of
from autotune.engines.megatron.launch_rules import flags_of, judge_launch, rows_of
from autotune.engines.megatron.launched import MegatronLaunch, read_launches
from autotune.engines.megatron.layout_task import LayoutTask
from autotune.engines.megatron.model_arguments import Arguments
from autotune.job.job import Job
from autotune.space.candidate import Candidate
from autotune.space.rule import UnknownFactError

Notes = Mapping[str, tuple[Any, Any]]
"""Argument -> what the user gave it, and what runs; None: nothing."""

_LAYOUT = (
    *("tp", "pp", "vp", "cp", "ep", "micro_batch"),
    *("ends_as_layers", "sequence_parallel", "distributed_optimizer"),
)
_WITHOUT_KNOB = (
    *("use_torch_fsdp2", "distribute_saved_activations", "main_params_dtype", "main_grads_dtype"),
)
"""Arguments that move speed or memory, and that no knob carries."""


def read_baseline(path: Path, job: Job, *, release: str) -> tuple[dict[str, KnobValue], Notes]:
    """The knobs of the one training that a file starts, and what of it does not run as given.

    Raises:
        RenderError: The file cannot be read.
        JobError: It starts no training of Megatron-LM or several, an illegal one, or another than
            the job's.
    """
    launches = read_launches(path, release=release)
    if len(launches) != 1:
        starts = f"starts {len(launches)}" if launches else "starts no"
        raise JobError.of("engines.megatron.not_one_training", path=path, starts=starts)
    launch = launches[0]
    if launch.is_passing_on:  # a plain run of the file passes on nothing
        launch = replace(launch, is_partial=False)
    _check_same_training(launch, job)
    wrong = [found for found in judge_launch(launch) if found.level == "error"]
    if wrong:
        raise JobError.of("engines.megatron.illegal_baseline", path=path, wrong=wrong)
    try:
        return _knobs(launch, job), dict(_notes(launch))
    except UnknownFactError as error:
        raise JobError.of(
            "engines.megatron.layout_untold", path=path, flags_of=flags_of(str(error))
        ) from error


def changes_in_words(
    path: Path, before: Arguments, after: Arguments, *, release: str
) -> Iterator[str]:
    """What is changed in a launch so that it runs another layout, an argument a line."""
    given = {name for launch in read_launches(path, release=release) for name in launch.given}
    for name in before.keys() - after.keys():
        written = next(
            (spelling for spelling in _SPELLINGS.get(name, ()) if spelling in given), name
        )
        yield in_words(written, None)
    for name, value in after.items():
        if before.get(name) != value:
            for other in _SPELLINGS.get(name, ()):
                if other in given:
                    yield in_words(other, None)
            yield in_words(name, value)


_SPELLINGS = {
    "recompute_granularity": ("recompute_activations",),
    "num_virtual_stages_per_pipeline_rank": ("num_layers_per_virtual_pipeline_stage",),
    "moe_enable_deepep": ("moe_flex_dispatcher_backend",),
    "moe_flex_dispatcher_backend": ("moe_enable_deepep",),
}
"""Argument -> other ways to say it, which clash with it."""


def _knobs(launch: MegatronLaunch, job: Job) -> dict[str, KnobValue]:
    """The layout in knobs; raises UnknownFactError where the file does not tell."""
    columns = rows_of(launch).columns
    for name in _LAYOUT:
        if name not in columns:
            raise UnknownFactError(name)
    row = {**dict.fromkeys(MORE_KNOBS, 0), **{name: int(c[0]) for name, c in columns.items()}}
    row["sequence_parallel"] &= row["tp"] > 1  # as Megatron does
    if row["optimizer_offload"]:
        row["optimizer_offload"] = round(SHARE * launch.get("optimizer_offload_fraction"))
    chunk = (job.model.shape.n_layers + 2 * row["ends_as_layers"]) // (row["pp"] * row["vp"])
    n_layers = int(launch.get("recompute_num_layers") or 1)
    if row["recompute"] == Recompute.FULL and launch.get("recompute_method") == "block":
        row["recompute_layers"] = n_layers if n_layers < chunk else 0
    found = knobs_of(row)
    if "offload_modules" in found:
        found["offload_modules"] = _offloaded(launch) or OFFLOADED[0]
    return {name: value for name, value in found.items() if value != "none" or name == "recompute"}


def _offloaded(launch: MegatronLaunch) -> str | None:
    """The value of `offload_modules`, whatever their order; None: it has no such value."""
    modules = set(launch.get("offload_modules") or ())
    return next((choice for choice in OFFLOADED if set(choice.split("+")) == modules), None)


def _notes(launch: MegatronLaunch) -> Iterator[tuple[str, tuple[Any, Any]]]:
    for name in _WITHOUT_KNOB:
        if name in launch.given:
            yield launch.given[name].flag, (launch.given[name].value, None)
    carried = rows_of(launch).columns
    for name, knob in KNOBS_OF.items():
        if name in launch.given and knob in MORE_KNOBS and knob not in carried:
            yield launch.given[name].flag, (launch.given[name].value, None)
    if launch.get("fine_grained_activation_offloading") and _offloaded(launch) is None:
        yield "--offload-modules", (launch.get("offload_modules"), None)
    if launch.get("recompute_method") == "uniform" and launch.get("recompute_num_layers") != 1:
        yield "--recompute-num-layers", (launch.get("recompute_num_layers"), 1)


def _check_same_training(launch: MegatronLaunch, job: Job) -> None:
    """See that a launch trains what the job does, as far as it says.

    Raises:
        JobError: It does not.
    """
    shape = job.model.shape
    of_job = {
        "global_batch_size": job.global_batch,
        "seq_length": job.seq_len,
        "num_layers": shape.n_layers,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.n_heads,
    }
    for name, value in of_job.items():
        given = launch.given.get(name)
        if given is not None and given.value != value:
            raise JobError.of(
                "engines.megatron.other_training", launch=launch, given=given, value=value
            )
    if launch.world is not None and launch.world != job.world:
        raise JobError.of("engines.megatron.other_world", launch=launch, job=job)
    precision = next((name for name in ("bf16", "fp16") if name in launch.given), "fp32")
    if not launch.is_partial and precision != job.precision:
        raise JobError.of(
            "engines.megatron.other_precision", launch=launch, precision=precision, job=job
        )


def ladder(task: LayoutTask) -> Iterator[list[Candidate]]:
    """Candidates, legal or not: a rung for each way to split the model, by its micro-batches."""
    for recompute in ("none", "full"):
        for split in _splits(task):
            replicas = task.world // (split["tp"] * split["pp"])
            share, rest = divmod(task.global_batch, replicas)
            sizes = [] if rest else [2**k for k in range(share.bit_length()) if share % 2**k == 0]
            yield [_rung(task, split, recompute, size) for size in sizes]


def _splits(task: LayoutTask) -> list[dict[str, int]]:
    """Degrees `tp`, `pp` and `ep`, those that split least first."""
    powers = [2**k for k in range(task.world.bit_length()) if task.world % 2**k == 0]
    within = [degree for degree in powers if degree <= task.domain]
    spread = [ep for ep in within if max(1, task.n_experts) % ep == 0]
    n_near = sum(tp * spread[-1] <= task.domain for tp in within)
    splits = [{"tp": 1, "pp": 1, "ep": ep} for ep in spread[:-1]]
    for degrees in filter(None, (within[:n_near], *([tp] for tp in within[n_near:]))):
        deep = (pp for pp in powers[1:] if degrees[-1] * pp <= powers[-1])
        pairs = [*((tp, 1) for tp in degrees), *((degrees[-1], pp) for pp in deep)]
        splits += [{"tp": tp, "pp": pp, "ep": spread[-1]} for tp, pp in pairs]
    return splits


def _rung(task: LayoutTask, split: dict[str, int], recompute: str, micro_batch: int) -> Candidate:
    has_tp = split["tp"] > 1
    chosen = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | {
        **split,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "sequence_parallel": has_tp and not task.has_torch_norms,
        "distributed_optimizer": split["tp"] * split["pp"] < task.world,
    }
    if task.n_layers % split["pp"]:
        chosen["stages"] = "balanced"
    if has_tp and split["ep"] > 1:
        chosen["etp"] = 1  # experts are spread, not split
    return Candidate.of(chosen, world=task.world, global_batch=task.global_batch)
