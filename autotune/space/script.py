"""The workload of a user's own command: unchanged, and reached from outside."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from autotune.base.data import table_beside
from autotune.base.errors import JobError
from autotune.contract import Workload
from autotune.job.job import Job
from autotune.job.observed import Observed
from autotune.space.candidate import Candidate
from autotune.space.workload import Reach, Way, WorkloadPlugin
from autotune.trial.guest.frameworks import FACTORY_ATTENTION, RECOMPUTE_NAMES

IMPLEMENTATION = "optimizer.implementation"
"""The knob that says whose Adam updates."""
IMPLEMENTATIONS: Mapping[str, str] = {"adamw_torch": "torch", "adamw_torch_fused": "torch_fused"}
"""Trainer's `optim` -> whose Adam it is, where the configuration has no optimizer."""
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
        script = _observed(job)
        if candidate.layers is not None:
            raise JobError.of("space.command_not_reduced")
        return Workload(
            name="script",
            model=job.model.source,
            # Tokens of a sample, which may be several rows.
            seq_len=job.seq_len * (script.rows_per_sample or 1),
            precision=candidate.precision(job.precision),
            seed=job.seed,
            command=script.filled({**candidate.values, "grad_accum": candidate.grad_accum}),
            folder=script.folder,
            digest=script.digest(),
        )


_ROWS: Sequence[Mapping[str, Any]] = table_beside(__file__, "reach.json")
"""By which `way` some knobs reach a command, or `why` not; of a knob's rows the first counts
whose facts all hold (`when`)."""


def reach_of(script: Observed) -> Reach:
    """Which knobs reach a command, by which way, and which do not, and why."""
    named, left_out = script.placeholders, dict(script.placeholders_left_alone)
    # What it splits its model by acts as it stands: no candidate has another value.
    ways: dict[str, Way] = dict.fromkeys(layout_of(script), "code")
    ways |= dict.fromkeys(named.keys() - {"grad_accum"}, "placeholders")
    facts = _facts(script)
    if facts["passes_differ"]:
        if "grad_accum" not in named:
            ways.pop("micro_batch", None)
    elif facts["leaves_accumulation"]:
        ways.pop("micro_batch", None)
        left_out.pop("micro_batch", None)
    # A word of the command that says the precision is one more place that has to.
    decided = {*ways, *({"micro_batch"} & left_out.keys())} - {"precision"}
    for row in _ROWS:
        terms = row.get("when", "").split()
        if all(facts[term.removeprefix("!")] != term.startswith("!") for term in terms):
            for name in (name for name in row["knobs"] if name not in decided):
                decided.add(name)
                if "way" in row:
                    ways[name] = row["way"]
                else:
                    left_out.setdefault(name, row["why"])
    for name, words in (("BATCH", _batch_words(script)), ("FRAMEWORK", script.framework)):
        left_out = {knob: why.replace(name, words) for knob, why in left_out.items()}
    return Reach(ways=ways, left_out={k: v for k, v in left_out.items() if k not in ways})


def _facts(script: Observed) -> dict[str, bool]:
    description, by_config = script.description, script.batches_by_file
    by_config |= bool(description.get("gives_data") or description.get("asks_micro_batch"))
    return {
        "is_trainer": script.is_trainer,
        "is_deepspeed": script.framework == "deepspeed",
        "is_axolotl": script.framework == "axolotl",
        "is_partitioned": bool(description.get("is_partitioned")),
        "takes_attention": bool(description.get("takes_attention")),
        "has_attention": bool(attention_of(script)),
        "passes_differ": script.passes_differ,
        "leaves_accumulation": "grad_accum" in script.placeholders_left_alone,
        "batches_by_config": by_config or description.get("engine") == "PipelineEngine",
        "varies": script.varies,
        "switches_recompute": script.switches_recompute,
        "has_optimizer": bool(script.config.get("optimizer")),
        "has_implementation": bool(implementation_of(script)),
        "is_cpu_adam": description.get("client_optimizer") == "DeepSpeedCPUAdam",
    }


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


def _observed(job: Job) -> Observed:
    if job.script is None:
        raise JobError.of("space.no_command")
    return job.script
