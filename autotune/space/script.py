"""The workload of a user's own command: unchanged, and reached from outside."""

import re
from collections.abc import Mapping
from typing import ClassVar

from autotune.base.errors import JobError
from autotune.contract import KnobValue, Workload
from autotune.job.job import Job
from autotune.job.observed import Observed
from autotune.space.candidate import Candidate
from autotune.space.workload import Reach, Way, WorkloadPlugin
from autotune.trial.guest.frameworks import FACTORY_ATTENTION, RECOMPUTE_NAMES

IMPLEMENTATION = "optimizer.implementation"
"""The knob that says whose Adam updates."""
IMPLEMENTATIONS: Mapping[str, str] = {"adamw_torch": "torch", "adamw_torch_fused": "torch_fused"}
"""Trainer's `optim` -> whose Adam it is, where the configuration has no optimizer."""
_FLAGS = {
    "recompute": ": for a flag --gradient_checkpointing of its own write "
    "{recompute=none:--gradient_checkpointing} in the command"
}
"""How a command names a flag that switches a knob."""
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
            # Tokens of a sample, which may be several rows.
            seq_len=job.seq_len * (script.rows_per_sample or 1),
            precision=candidate.precision(job.precision),
            seed=job.seed,
            command=script.filled(_values(candidate)),
            folder=script.folder,
            digest=script.digest(),
        )


def reach_of(script: Observed) -> Reach:
    """Which knobs reach a command, by which way, and which do not, and why."""
    ways: dict[str, Way] = {"host_allocator": "environment", "allocator": "environment"}
    left_out = {
        **dict.fromkeys(LAYOUT, "the script lays its ranks and its data out itself"),
        "loss_chunk_tokens": "the script computes its loss itself",
        "mlp_chunk_tokens": "the script builds its model itself",
        "offload.activations": "the script runs forward and backward itself",
        "core_binding": "the command starts its ranks itself",
    }
    if script.description.get("is_partitioned"):
        left_out["zero.stage"] = "the script builds its model under zero.Init, for stage 3 alone"
    # What it splits its model by acts as it stands: no candidate has another value.
    ways |= dict.fromkeys(layout_of(script), "code")
    named = script.placeholders
    ways |= dict.fromkeys(named.keys() - {"grad_accum"}, "placeholders")
    left_out |= script.placeholders_left_alone
    if "attention" not in ways:
        if (
            script.is_trainer
            and script.description.get("takes_attention")
            and attention_of(script)
        ):
            ways["attention"] = "arguments"
        else:
            left_out["attention"] = _why_no_attention(script)
    if script.accumulates_by_hand:
        if "grad_accum" not in named:
            ways.pop("micro_batch", None)
        left_out.setdefault("micro_batch", "the script accumulates gradients by hand")
    elif script.varies and "micro_batch" not in named:
        left_out["micro_batch"] = "the script's batches differ in size"
    elif "grad_accum" in left_out:
        ways.pop("micro_batch", None)
        left_out["micro_batch"] = "the global batch would change with it"
    elif "micro_batch" not in {*ways, *left_out}:
        way = _way_of_micro_batch(script)
        if way is None:
            left_out["micro_batch"] = (
                f"the script makes its batches itself: write {_batch_words(script)}"
            )
        else:
            ways["micro_batch"] = way
    switched = {"recompute": script.switches_recompute, "compile": script.is_trainer}
    for name, is_argument in switched.items():
        if name in ways:
            continue
        if is_argument:
            ways[name] = "arguments"
        else:
            left_out.setdefault(name, f"the script switches it itself{_FLAGS.get(name, '')}")
    if script.is_trainer:
        ways["precision"] = "arguments"
    elif script.framework == "deepspeed":
        ways["precision"] = "configuration"
    else:
        left_out["precision"] = f"{script.framework} has it where the command sets it"
    if not script.config.get("optimizer"):
        if implementation_of(script):
            ways[IMPLEMENTATION] = "arguments"
        elif script.description.get("client_optimizer") == "DeepSpeedCPUAdam":
            left_out[IMPLEMENTATION] = "its states are on the host: it is DeepSpeed's"
        else:
            left_out[IMPLEMENTATION] = "the script brings its optimizer"
    return Reach(ways=ways, left_out={k: v for k, v in left_out.items() if k not in ways})


def layout_of(script: Observed) -> dict[str, int]:
    """How a command splits its model over its ranks, as was read back, if at all."""
    read_back = script.measured.read_back
    return {name: int(read_back[name]) for name in LAYOUT if read_back.get(name, 1) > 1}


def attention_of(script: Observed) -> str:
    """The attention implementation that was read back; empty: none that the knob has."""
    attention = script.measured.read_back.get("attention")
    return str(attention) if attention in FACTORY_ATTENTION else ""


def implementation_of(script: Observed) -> str:
    """Whose Adam Trainer made by its argument `optim`; empty: the optimizer is another's."""
    description = script.description
    if not script.is_trainer or script.config.get("optimizer"):
        return ""
    # Of another class where states are offloaded: accelerate puts DeepSpeed's in its place.
    if (
        not description.get("optimizer_by_arguments")
        or description.get("client_optimizer") != "AdamW"
    ):
        return ""
    return IMPLEMENTATIONS.get(str(script.arguments.get("optim")), "")


def recompute_name(script: Observed) -> str:
    """What the user's version calls recomputation among its arguments."""
    return next((n for n in RECOMPUTE_NAMES if n in script.arguments), RECOMPUTE_NAMES[-1])


def _why_no_attention(script: Observed) -> str:
    if not attention_of(script):
        return "the script builds its model itself"
    if script.framework == "axolotl":
        return "write attn_implementation into axolotl's file"
    who = "Trainer has no argument for it" if script.is_trainer else "the script chooses it"
    return f"{who}: write {{attention=sdpa}} where your command says it"


def _batch_words(script: Observed) -> str:
    """How to name the micro-batch in the command, by the flag that seems to say it."""
    size, words = str(script.micro_batch), script.command
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        is_batch = (equals or flag.startswith("-")) and _BATCH_FLAG.search(flag.lower())
        if is_batch and (value if equals else following) == size:
            return f"{flag}{equals or ' '}{{micro_batch={size}}} in the command"
    return f"{{micro_batch={size}}} in the command, once the script takes it as an argument"


_BATCH_FLAG = re.compile(r"batch|([-_.]|^)m?bsz?$|^-b$")
"""Names of flags, and of words with a value, that say how many samples a batch has, as scripts
call them."""


def _way_of_micro_batch(script: Observed) -> Way | None:
    if script.is_trainer:
        return "arguments"
    description = script.description
    if (
        description.get("gives_data")
        or description.get("asks_micro_batch")
        or script.batches_by_file
        or description.get("engine") == ("PipelineEngine")
    ):
        return "configuration"
    return None


def _values(candidate: Candidate) -> dict[str, KnobValue]:
    return {**candidate.values, "grad_accum": candidate.grad_accum}


def _observed(job: Job) -> Observed:
    if job.script is None:
        raise JobError(
            "workload script: the job names no command",
            "give one after --: autotune search -- torchrun train.py",
        )
    return job.script
