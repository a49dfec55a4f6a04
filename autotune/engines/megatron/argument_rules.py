"""Rules of arguments of Megatron-LM beside one another: what a layout's knobs come with.

Each names the function of NVIDIA/Megatron-LM that checks it (the main branch at Megatron Core
0.20, unless it says more). The rest of its checks a checkout answers itself, where one is named
(`autotune.engines.megatron.pretrain_gpt.check_arguments`).
"""

import contextlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from autotune.base.data import table_beside
from autotune.base.terms import filled
from autotune.engines.launches.devices import misfits
from autotune.engines.launches.line import visible_devices
from autotune.engines.megatron.flags import flags, is_flag_of_any, newest_release
from autotune.engines.megatron.launched import GONE, PROGRAMS_OF_FIELDS, MegatronLaunch
from autotune.engines.megatron.layout_rule import ARGUMENTS
from autotune.engines.megatron.stages import stages_of
from autotune.engines.releases import is_at_least
from autotune.space.rule import Consequence, Finding, Rule, UnknownFactError, holds

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
CHUNKED = ("num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank")
"""The two ways to say how a pipeline is interleaved."""
_LAYOUT = "pipeline_model_parallel_layout"
ENDS = tuple(f"account_for_{end}_in_pipeline_split" for end in ("embedding", "loss"))
"""Switches by which embedding and loss count as layers."""
_END_SIZES = tuple(f"decoder_{end}_pipeline_num_layers" for end in ("first", "last"))
_FLAG = re.compile(r"--([a-z0-9-]+)")
_VALUE = re.compile(r" \{([\w.]+)\}")
_LARGEST_COUNT = 2**31 - 1
_FACTS = table_beside(__file__, "launch_facts.json")
_COUNTS: tuple[str, ...] = tuple(_FACTS["divisors"])
"""Arguments by which others are divided."""
_SIZES = (*_COUNTS, *_FACTS["other_sizes"])
_WORDS: Mapping[str, Sequence[str]] = table_beside(__file__, "argument_words.json")
Answer = tuple[str, str] | tuple[str, str, Consequence | None] | None
"""What is wrong, the change that mends it, and what comes of it where that is not as usual."""


def flag_name(argument: str) -> str:
    """An argument as it is written on a command line."""
    spelled = f"--{argument.replace('_', '-')}"
    return spelled if is_flag_of_any(spelled) else _flag_of_argument().get(argument, spelled)


@cache
def _flag_of_argument() -> dict[str, str]:
    return {flag.argument: flag.name for flag in reversed([*flags(newest_release()).values()])}


def in_words(name: str, value: Any) -> str:
    """A change of one argument, in words."""
    if value is None:
        return f"remove {flag_name(name)}"
    word = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    return f"add {flag_name(name)}" if value is True else f"set {flag_name(name)} to {word}"


def _objection(row: str, **facts: Any) -> tuple[str, str]:
    message, fix = filled(_WORDS[row], facts.__getitem__)
    return message, fix


def argument_rule(
    name: str, source: str, consequence: Consequence = "raised", says: str = ""
) -> Callable[[Callable[[MegatronLaunch], Answer]], Rule[MegatronLaunch]]:
    """A rule of a function that gives what is wrong, or nothing for a legal launch."""

    def of(asked: Callable[[MegatronLaunch], Answer]) -> Rule[MegatronLaunch]:
        def check(launch: MegatronLaunch) -> Finding | None:
            if (answer := asked(launch)) is None:
                return None
            message, advice, *other = answer
            named = (flag.replace("-", "_") for flag in _FLAG.findall(f"{message} {advice}"))
            at = tuple(argument for argument in named if argument in launch.given)
            return Finding(
                message=message, advice=advice, at=at, consequence=other[0] if other else None
            )

        subject = says or " ".join((asked.__doc__ or "").split())
        subject = f"{subject} {_FACTS['fixes'].get(name, '')}".rstrip()
        return Rule(name=name, check=check, source=source, says=subject, consequence=consequence)

    return of


def clash(
    name: str,
    when: str,
    message: str,
    fix: str,
    source: str = ARGUMENTS,
    *,
    since: str = "",
    consequence: Consequence = "raised",
) -> Rule[MegatronLaunch]:
    """Arguments that do not go together.

    Args:
        name: The rule's name; several rows of one subject may share it.
        when: A condition of arguments and of `world`, as `holds` takes it.
        message: What is wrong; ` {name}` stands for a value.
        fix: What mends it; values stand in it, too.
        source: The function of Megatron's that checks it.
        since: The first release that checks it; empty: all do.
        consequence: What Megatron does with it.
    """

    def asked(launch: MegatronLaunch) -> Answer:
        fact = partial(_fact, launch)
        is_broken = (not since or is_at_least(launch.release, since)) and holds(when, fact)
        return (filled(message, fact), filled(fix, fact)) if is_broken else None

    source = f"{source}: {when.split()[0]}"
    says = _VALUE.sub("", f"{message}. Fix: {fix}.")
    return argument_rule(name, source, consequence, says)(asked)


def _fact(launch: MegatronLaunch, name: str) -> Any:
    """An argument, or what rows ask besides; experts share tensors as all else does by default."""
    if name == "connections":
        value = launch.variables.get(CONNECTIONS, "")
        return None if "$" in value or launch.is_overrides else value
    if name in PROGRAMS_OF_FIELDS:
        return launch.program == name and bool(launch.fields)
    if name in ("asked", "is_megatrons"):
        return getattr(launch, name)
    if name.startswith("ranks."):
        return getattr(launch.ranks, name.removeprefix("ranks."))
    if "." in name or name == "model_engine":
        return launch.of_program(name)
    if name == "asks_for_connections":
        return asks_for_connections(launch)
    if name == "expert_tensor_parallel_size" and launch.get(name) is None:
        name = "tensor_model_parallel_size"
    if name == "world" and launch.world is None:
        raise UnknownFactError(name)
    return launch.world if name == "world" else launch.get(name)


@argument_rule("sizes.count", f"{ARGUMENTS}: world_size, by what divides it")
def _counts(launch: MegatronLaunch) -> Answer:
    """A degree or a size of the model that is below 1, or larger than any there is."""
    for name in _SIZES:
        value = launch.given[name].value if name in launch.given else None
        if value is None:
            continue
        if value < 1 and name in _COUNTS:
            return f"{flag_name(name)} {value}: is below 1", "give a number from 1 on"
        if abs(value) > _LARGEST_COUNT:
            return _objection("too_many", flag=flag_name(name), value=value)
    return None


def asks_for_connections(launch: MegatronLaunch) -> bool:
    """True if Megatron asks for CUDA_DEVICE_MAX_CONNECTIONS=1 on GPUs before Blackwell."""
    others = ("use_megatron_fsdp", "use_torch_fsdp2", "overlap_moe_expert_parallel_comm")
    try:
        splits = ("tensor_model_parallel_size", "context_parallel_size")
        is_split = any(launch.get(name) > 1 for name in splits)
        return is_split and not any(map(launch.get, others))
    except UnknownFactError:
        return False


def _of_nodes(name: str, consequence: Consequence, says: str) -> Rule[MegatronLaunch]:
    def asked(launch: MegatronLaunch) -> Answer:
        found = misfits(launch.ranks, visible_devices(launch.variables))
        return next((one[1:] for one in found if one.rule == name), None)

    source = "megatron/training/initialize.py: set_device"
    return argument_rule(f"environment.{name}", source, consequence, says)(asked)


@argument_rule("vp.one_chunk", f"{ARGUMENTS}: virtual_pipeline_model_parallel_size", "ignored")
def _one_chunk(launch: MegatronLaunch) -> Answer:
    """One chunk a stage: Megatron runs the pipeline as if nobody had asked to interleave it."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    if len(given) != 1 or launch.get(_LAYOUT) is not None or chunks_of(launch) != 1:
        return None
    smaller = "a smaller number" if given[0] == CHUNKED[0] else "2 or more"
    facts = {"flag": flag_name(given[0]), "value": launch.get(given[0]), "smaller": smaller}
    return _objection("one_chunk", **facts)


@argument_rule("vp.chunk_layers", f"{ARGUMENTS}: num_layers_per_virtual_pipeline_stage")
def _chunk_layers(launch: MegatronLaunch) -> Answer:
    """--num-layers-per-virtual-pipeline-stage does not divide a stage, or stages differ."""
    size, total = launch.get(CHUNKED[0]), launch.get("num_layers")
    pp = launch.get("pipeline_model_parallel_size")
    if size is None or not total or pp < 2:
        return None
    if any(launch.get(name) is not None for name in _END_SIZES):
        return _objection("own_stages", flag=flag_name(CHUNKED[0]), other=flag_name(CHUNKED[1]))
    total += sum(bool(launch.get(end)) for end in ENDS)
    if total % pp:  # `pp.split` knows no number of chunks then
        return _objection("uneven_stages", total=total, pp=pp)
    if (total // pp) % size == 0:
        return None
    facts = {"flag": flag_name(CHUNKED[0]), "size": size, "layers": total // pp}
    return _objection("chunk_layers", total=total, pp=pp, **facts)


@argument_rule("pp.layout", f"{ARGUMENTS}: pipeline_model_parallel_layout")
def _layout_alone(launch: MegatronLaunch) -> Answer:
    """A layout beside another number of chunks. Flags say none; a field says the layout's own."""
    given = [name for name in CHUNKED if launch.get(name) is not None]
    if launch.get(_LAYOUT) is None or not given:
        return None
    is_field = launch.given[given[-1]].flag.endswith("virtual_pipeline_model_parallel_size")
    # ms-swift takes Megatron Core's own field from the layout, and a recipe takes the layout's own
    # number (megatron/core/transformer/transformer_config.py, __post_init__: detected_vpp_size).
    takes_same = launch.is_overrides or is_field
    if takes_same and (launch.prefix or chunks_of(launch) in (None, launch.get(CHUNKED[1]))):
        return None
    message = f"{flag_name(_LAYOUT)} says all chunks: no other number of them is taken"
    return message, f"remove {' and '.join(map(flag_name, given))}"


@argument_rule("batch.product", "megatron/core/num_microbatches_calculator.py: global_batch_size")
def _batch(launch: MegatronLaunch) -> Answer:
    """A global batch that no number of ranks makes a multiple of the micro-batch."""
    total, micro = launch.get("global_batch_size"), launch.get("micro_batch_size")
    changing = ("decrease_batch_size_if_needed", "rampup_batch_size")
    if not total or not micro or any(map(launch.get, changing)):
        return None
    named, unit = f"--micro-batch-size {micro}", micro
    with contextlib.suppress(UnknownFactError):
        ranks = math.prod(map(launch.get, _COUNTS[:3]))
        if launch.world is not None:
            return None  # the rule of layouts says it
        per_node = launch.ranks.per_node or 1
        groups = per_node // math.gcd(per_node, ranks)
        if groups > 1:
            named = f"{named} x dp of at least {groups}, and of its multiples"
            unit = micro * groups
    if total % unit == 0:
        return None
    return _objection("batch", total=total, named=named, unit=unit)


@argument_rule("world.product", f"{ARGUMENTS}: world_size, by what divides it")
def _ranks(launch: MegatronLaunch) -> Answer:
    """Degrees that no value of one that is not known brings into the world."""
    return _never_divides(launch, _COUNTS[:3])


@argument_rule("ep.ranks", "megatron/core/parallel_state.py, initialize_model_parallel: expert_dp")
def _expert_ranks(launch: MegatronLaunch) -> Answer:
    """The world is no multiple of pipeline x expert x expert tensor parallel degree."""
    ep, etp = "expert_model_parallel_size", "expert_tensor_parallel_size"
    if ep not in launch.given:
        return None
    if etp not in launch.unknown and etp not in launch.given and not launch.is_partial:
        etp = _COUNTS[0]  # its default
    return _never_divides(launch, ("pipeline_model_parallel_size", ep, etp))


def _never_divides(launch: MegatronLaunch, degrees: Sequence[str]) -> Answer:
    """The answer where known degrees do not divide the world, whatever the others are."""
    known: dict[str, int] = {}
    for name in degrees:
        with contextlib.suppress(UnknownFactError):
            known[name] = launch.get(name) or 1
    product = math.prod(known.values())
    if launch.world is None or len(known) == len(degrees) or launch.world % product == 0:
        return None
    named = " x ".join(f"{flag_name(name)} {value}" for name, value in known.items() if value > 1)
    return _objection("never_divides", world=launch.world, named=named)


def chunks_of(launch: MegatronLaunch) -> int | None:
    """Chunks of a pipeline rank; None where they are not even."""
    if (layout := launch.get(_LAYOUT)) is not None:
        stages = stages_of(str(layout))
        by_rank = len(stages or ()) / launch.get("pipeline_model_parallel_size")
        return int(by_rank) if by_rank >= 1 and by_rank.is_integer() else None
    by_layers, by_stages = (launch.get(name) for name in CHUNKED)
    if by_stages is not None or by_layers is None:
        return int(by_stages or 1)
    total, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    # Stages of their own size take no number of layers, which a rule of arguments says.
    if not total or any(launch.get(name) for name in _END_SIZES):
        return None
    counted = total + sum(bool(launch.get(end)) for end in ENDS)
    n_chunks, rest = divmod(counted, pp * by_layers)
    return None if rest else int(n_chunks)


ARGUMENT_RULES: tuple[Rule[MegatronLaunch], ...] = (
    _counts,
    _of_nodes("visible_devices", "raised", "A node has more ranks than devices that they see."),
    _of_nodes("tasks", "raised", "Several launchers start ranks of their own on a node."),
    _of_nodes("lone_nodes", "differs", "Nodes of a launch are not told of one another."),
    _of_nodes("idle_devices", "converted", "A job asks for more GPUs on a node than ranks."),
    _one_chunk,
    _chunk_layers,
    _layout_alone,
    _batch,
    _ranks,
    _expert_ranks,
    *(
        clash("flags.gone", old, *_objection("gone", old=old.replace("_", "-"), new=new))
        for old, new in GONE.items()
    ),
    *(clash(**row) for row in table_beside(__file__, "argument_rules.json")),
)
"""Rules of arguments, in the order in which they are asked. Where the first one refuses, no other
can be: they divide by what it asks about."""
