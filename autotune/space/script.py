"""The workload of a user's own command: unchanged, and reached from outside."""

from collections.abc import Mapping
from typing import ClassVar

from packaging.version import Version

from autotune.base.errors import JobError
from autotune.contract import KnobValue, Workload
from autotune.job.job import Job
from autotune.job.observed import Observed, filled_in, placeholders_of
from autotune.space.candidate import Candidate
from autotune.space.workload import Reach, Way, WorkloadPlugin
from autotune.trial.guest.frameworks import RECOMPUTE_NAMES

_ZENFLOW_TRANSPOSES = Version("0.19")
"""First release line whose `runtime/zenflow/zenflow_utils.py` flattens matrices transposed and
views them as they are; tried with 0.19.8, 0.18.9 reads them back alike."""

LAYOUT = ("tp", "pp", "sp", "ep")
"""Knobs that say what a rank does among the others: the script's own decision."""


class Script(WorkloadPlugin):
    """A trial runs the user's command with the candidate's edits of what it hands to DeepSpeed."""

    applies: ClassVar[Mapping[str, Way]] = {}  # which they are depends on the command
    dialect = "command"

    def reach(self, job: Job) -> Reach:
        """See `WorkloadPlugin.reach`: what can be changed of this command from outside."""
        return reach_of(_observed(job))

    def workload(self, job: Job, candidate: Candidate) -> Workload:
        """See `WorkloadPlugin.workload`."""
        script = _observed(job)
        if candidate.layers is not None:
            raise JobError(
                "fidelity: a command of your own builds its model itself",
                "leave fidelity out",
            )
        return Workload(
            name="script",
            model=job.model.source,
            seq_len=job.seq_len,
            precision=job.precision,
            seed=job.seed,
            command=filled_in(script.command, _values(candidate)),
            folder=script.folder,
            digest=script.digest(),
        )


def reach_of(script: Observed) -> Reach:
    """Which knobs reach a command, by which way, and which do not, and why."""
    ways: dict[str, Way] = {"host_allocator": "environment", "allocator": "environment"}
    left_out = {
        **dict.fromkeys(LAYOUT, "the script lays its ranks and its data out itself"),
        "loss_chunk_tokens": "the script computes its loss itself",
        "attention": "the script builds its model itself",
        "core_binding": "the command starts its ranks itself",
    }
    # What it splits its model by acts as it stands: no candidate has another value.
    ways |= dict.fromkeys(layout_of(script), "code")
    named = placeholders_of(script.command)
    ways |= dict.fromkeys(named.keys() - {"grad_accum"}, "placeholders")
    if script.accumulates_by_hand:
        left_out["micro_batch"] = "the script accumulates gradients by hand"
    elif "micro_batch" not in ways:
        way = _way_of_micro_batch(script)
        if way is None:
            left_out["micro_batch"] = (
                "the script makes its batches itself: write {micro_batch=N} where your command "
                "says how large they are"
            )
        else:
            ways["micro_batch"] = way
    for name in ("recompute", "compile"):
        if name in ways:
            continue
        if script.is_trainer:
            ways[name] = "arguments"
        else:
            left_out[name] = "only Trainer's arguments switch it from outside"
    if Version(script.measured.versions.get("deepspeed", "0")) >= _ZENFLOW_TRANSPOSES:
        left_out["zenflow"] = (
            "from this release on DeepSpeed begins ZenFlow with other weights: a pretrained model "
            "would be lost"
        )
    if not script.config.get("optimizer"):
        left_out["optimizer.implementation"] = "the script brings its optimizer"
    return Reach(ways=ways, left_out={k: v for k, v in left_out.items() if k not in ways})


def layout_of(script: Observed) -> dict[str, int]:
    """How a command splits its model over its ranks, as was read back, if at all."""
    said = script.measured.read_back
    return {name: int(said[name]) for name in LAYOUT if said.get(name, 1) > 1}


def recompute_name(script: Observed) -> str:
    """What the user's version calls recomputation among its arguments."""
    return next((n for n in RECOMPUTE_NAMES if n in script.arguments), RECOMPUTE_NAMES[-1])


def _way_of_micro_batch(script: Observed) -> Way | None:
    if script.is_trainer:
        return "arguments"
    said = script.description
    if (
        said.get("gives_data")
        or said.get("asks_micro_batch")
        or said.get("engine") == ("PipelineEngine")
    ):
        return "configuration"
    return None


def _values(candidate: Candidate) -> dict[str, KnobValue]:
    return {**candidate.values, "grad_accum": candidate.grad_accum}


def _observed(job: Job) -> Observed:
    if job.script is None:
        raise JobError(
            "workload script: the job names no command",
            "give one after --: python -m autotune search -- torchrun train.py",
        )
    return job.script
