"""Which launches of Megatron-LM are legal: rules of their arguments, and those of the layout."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.base.data import table_beside
from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron.argument_rules import (
    ARGUMENT_RULES,
    CHUNKED,
    ENDS,
    chunks_of,
    flag_name,
)
from autotune.engines.megatron.arguments import CARRIED, FLEX_BACKEND, KNOBS_OF
from autotune.engines.megatron.choices import (
    CP_KINDS,
    DISPATCHERS,
    FP8,
    FP8_RECIPES,
    FSDP,
    GRAPHS,
    LAYOUTS,
    MOMENTS,
    RECOMPUTED,
)
from autotune.engines.megatron.flags import flags
from autotune.engines.megatron.knobs import KNOBS
from autotune.engines.megatron.launched import MegatronLaunch
from autotune.engines.megatron.layout_task import SHARES_KV_HEADS, Columns, LayoutRows
from autotune.engines.megatron.model_arguments import pattern_of
from autotune.engines.megatron.rules import RULES
from autotune.engines.megatron.stages import StageWork, stages_of
from autotune.engines.releases import is_at_least
from autotune.space.rule import Rule, UnknownFactError, Violation, holds

_TABLE = table_beside(__file__, "launch_facts.json")
"""Arguments of words of the layouts' rules, of facts of a task, and of counts that may be none."""
_OF_PARSER_ALONE = frozenset(_TABLE["rules_of_the_parser_alone"])
"""Rules that only megatron/training/arguments.py holds, which recipes and settings pass by."""
_OF_DEVICES = ("fp8.device", "fp8.mxfp8", "fp4.device")
_NOT_ASKED = ("optimizer_offload.sharded", "adam_moments.sharded")
"""Rules of layouts that a rule of arguments here says more exactly."""
_LAYOUT_RULES = tuple(
    rule
    for rule in RULES
    if rule.name in _OF_DEVICES or not (rule.source.startswith("ours") or rule.name in _NOT_ASKED)
)
_OF_EXPERTS = ("ep.experts", "ep.ranks")
"""Rules of the grid of experts, which says nothing new where they are shared as all else is."""
_OF_RANKS = ("world", "dp", "grad_accum")
"""Facts of a layout that no launch has without a world."""
_EVERY_DEVICE = 2**31 - 1


def judge_launch(launch: MegatronLaunch, unknown_facts: set[str] | None = None) -> list[Violation]:
    """What is wrong with a launch: its words, its arguments, and the layout that they make.

    `unknown_facts` takes the arguments that rules asked for and that the launch does not tell, and
    `world` if that is one of them.
    """
    unknown_facts = set() if unknown_facts is None else unknown_facts
    found = [*launch.problems]
    of_counts, *others = ARGUMENT_RULES
    if refused := of_counts.violations(launch):
        return found + refused
    for rule in others:
        found += rule.violations(launch, unknown_facts)
    found += _layout_violations(launch, unknown_facts)
    if launch.is_overrides:
        return [_in_fields(violation, launch) for violation in _of_recipe(found, launch)]
    return found


def _of_recipe(found: Iterable[Violation], launch: MegatronLaunch) -> Iterator[Violation]:
    """Violations of what does not go through Megatron-LM's own parser."""
    for one in found:
        is_parsers = one.rule in _OF_PARSER_ALONE and not launch.prefix
        yield replace(one, consequence="may_raise") if is_parsers else one


_FLAG = re.compile(r"(?:\b(add|remove) )?--([a-z0-9-]+)")


def _in_fields(found: Violation, launch: MegatronLaunch) -> Violation:
    def put(flag: re.Match[str]) -> str:
        verb, argument = flag[1], flag[2].replace("-", "_")
        given = launch.given.get(argument)
        field = given.flag if given is not None else f"{launch.prefix}{argument}"
        return f"set {field} to true" if verb == "add" else f"{verb} {field}" if verb else field

    message, fix = (_FLAG.sub(put, text) for text in (found.message, found.fix))
    return replace(found, message=message, fix=fix)


def _layout_violations(launch: MegatronLaunch, unknown_facts: set[str]) -> list[Violation]:
    rows = rows_of(launch)
    facts: set[str] = set()
    violations = [
        _in_flags(found, launch)
        for rule in _LAYOUT_RULES
        if _is_asked(rule, rows)
        for found in rule.violations(rows, facts)
    ]
    lacking = {name for lacked in facts for name in lacked.split(", ")}
    for name, fact in (*_task_facts(launch), *_row_facts(launch)):
        try:
            if name in lacking and fact() is None and launch.world is None and name in _OF_RANKS:
                unknown_facts.add("world")
        except UnknownFactError as error:
            unknown_facts.add(str(error))
    return violations


def _is_asked(rule: Rule[LayoutRows], rows: LayoutRows) -> bool:
    facts = vars(rows.task)
    if rule.name in _OF_EXPERTS:
        degrees = (rows.columns.get(name, np.ones(1)) for name in ("ep", "etp"))
        ep, etp = (int(values[0]) for values in degrees)
        return facts.get("n_experts", 1) > 0 and (ep > 1 or etp > 0)
    # With as many heads of keys as of queries `tp.heads` says it.
    return rule.name != "tp.kv_heads" or facts.get("n_kv_heads") != facts.get("n_heads")


_ARGUMENT_OF = {
    **{knob: argument for argument, knob in KNOBS_OF.items() if knob not in ("stages", "order")},
    **_TABLE["words"],
}
"""Word of a layout's rule -> the argument that a launch gives."""
_WORD = re.compile(
    rf"(?<![\w-])({'|'.join(sorted(_ARGUMENT_OF, key=len, reverse=True))})\b(=\w+)?"
)


def flags_of(column: str) -> str:
    """The flags that make a column of a layout, in words."""
    if column == "ends_as_layers":
        return " and ".join(map(flag_name, ENDS))
    return flag_name(_ARGUMENT_OF.get(column, column))


def _as_flags(word: re.Match[str]) -> str:
    """A knob of a rule, with the value that stands behind it, as words of a launch."""
    names, value = flags_of(word[1]), (word[2] or "").removeprefix("=")
    if value in ("true", "false", "none"):
        is_off = value == ("true" if "--no-" in names else "false") or value == "none"
        return f"no {names}" if is_off else names
    if value.isdecimal() and word[1] in KNOBS and int(value) == KNOBS[word[1]].default:
        return f"no {names}"
    return f"{names} {value}".rstrip()


_ONE_CHUNK = re.compile(r" x vp(?: 1)?\b")
_CHUNKS = re.compile(r"\ba vp above 1|\bvp \d+(?=:)")


def _of_chunks(text: str, launch: MegatronLaunch) -> str:
    """Words on chunks of a rank by the argument that makes them, where no number of them does."""
    if "pipeline_model_parallel_layout" in launch.given:
        flag = flag_name("pipeline_model_parallel_layout")
        many, one = f"more than one stage a rank in {flag}", f"one stage a rank in {flag}"
    elif CHUNKED[0] in launch.given and CHUNKED[1] not in launch.given:
        many, one = flag_name(CHUNKED[0]), f"no {flag_name(CHUNKED[0])}"
    else:
        return text if CHUNKED[1] in launch.given else _ONE_CHUNK.sub("", text)
    return _CHUNKS.sub(many, text).replace("vp=1", one)


def _in_flags(found: Violation, launch: MegatronLaunch) -> Violation:
    message = found.message
    if found.rule == "ep.ranks":
        names = ("pipeline_model", "expert_model", "expert_tensor")
        pp, ep, etp = (launch.get(f"{name}_parallel_size") for name in names)
        last = f"etp {etp}" if etp else f"tp {launch.get('tensor_model_parallel_size')}"
        message = f"world {launch.world} is no multiple of pp {pp} x ep {ep} x {last}"
    message, fix = (
        _WORD.sub(_as_flags, _of_chunks(text, launch)) for text in (message, found.fix)
    )
    text = f"{fix}; {message}"
    given = sorted((text.find(flag_name(name)), name) for name in launch.given)
    at = tuple(name for place, name in given if place >= 0)
    return replace(found, message=message, fix=fix, at=at)


def rows_of(launch: MegatronLaunch) -> LayoutRows:
    """The layout that a launch makes; what it does not tell is in neither task nor columns."""
    task = SimpleNamespace(**dict(_known(_task_facts(launch))))
    row = dict(_known(_row_facts(launch)))
    columns: Columns = {name: np.array([value], dtype=np.int64) for name, value in row.items()}
    of_layout: Any = task  # a part of the task, as far as the launch tells
    return LayoutRows(task=of_layout, columns=columns)


Fact = Callable[[], Any]


def _known(facts: Iterable[tuple[str, Fact]]) -> Iterator[tuple[str, Any]]:
    for name, fact in facts:
        try:
            value = fact()
        except UnknownFactError:
            continue
        if value is not None:
            yield name, value


def _task_facts(launch: MegatronLaunch) -> Iterator[tuple[str, Fact]]:
    get = launch.get
    for name, argument in {**_TABLE["facts"], **_TABLE["counts"]}.items():
        yield name, partial(_fact, launch, argument, 0 if name in _TABLE["counts"] else None)
    for name, when in _TABLE["conditions_of_task"].items():
        yield name, partial(holds, when, get)
    yield "n_kv_heads", partial(_either, launch, _GROUPED, "num_attention_heads")
    yield "ffn_hidden", partial(_either, launch, _OF_EXPERT, "ffn_hidden_size")
    yield "dense_ffn_hidden", lambda: get("ffn_hidden_size") if _dense_layers(launch) else 0
    yield "n_dense_layers", lambda: _dense_layers(launch)
    yield ("shared_expert_hidden", lambda: int(bool(get("num_experts")) and (get(_SHARED) or 0)))
    yield (
        "latent_kv_rank",
        lambda: int((get("multi_latent_attention") and (get("kv_lora_rank") or 1)) or 0),
    )
    yield "has_fp8", lambda: "fp8" in launch.gpu_precisions if launch.gpu else None
    yield "has_fp4", lambda: "fp4" in launch.gpu_precisions if launch.gpu else None
    yield "tracks_aux_loss", lambda: _tracks_aux_loss(launch)
    yield "work", lambda: _WORK_UNKNOWN
    yield "world", lambda: launch.world
    yield "domain", lambda: _EVERY_DEVICE
    yield "fused_attention", lambda: True
    yield "from_0_17", lambda: is_at_least(launch.release, "0.17")
    yield "shares_kv_heads", lambda: is_at_least(launch.release, SHARES_KV_HEADS)


def _fact(launch: MegatronLaunch, argument: str, none: int | None) -> Any:
    value = launch.get(argument)
    return none if value is None else value


_SHARED = "moe_shared_expert_intermediate_size"
_WORK_UNKNOWN = StageWork(n_layers=0)
"""Work in a launch, which writes its layouts itself: none follows from it."""


_GROUPED = ("group_query_attention", "num_query_groups")
_OF_EXPERT = ("num_experts", "moe_ffn_hidden_size")
_MOMENTS = ("exp_avg_dtype", "exp_avg_sq_dtype")


def _either(launch: MegatronLaunch, pair: tuple[str, str], other: str) -> Any:
    """The second argument of a pair where the first one is on and it says one; else another."""
    return (launch.get(pair[0]) and launch.get(pair[1])) or launch.get(other)


def _dense_layers(launch: MegatronLaunch) -> int | None:
    """First layers of a mixture that have no experts; None: the launch says it in another way."""
    often = launch.get("moe_layer_freq")
    if not launch.get("num_experts") or often == 1:
        return 0
    has_experts = often if isinstance(often, list) else pattern_of(str(often).replace(" ", ""))
    n_dense = has_experts.index(1) if 1 in has_experts else 0
    return n_dense if has_experts and 0 not in has_experts[n_dense:] else None


def _tracks_aux_loss(launch: MegatronLaunch) -> bool:
    """True if losses of load balancing are summed over a pipeline in trackers of two sizes."""
    is_balanced = launch.get("moe_router_load_balancing_type") not in ("none", ["none"])
    coefficient = launch.get("moe_aux_loss_coeff")
    has_loss = any(coefficient) if isinstance(coefficient, list) else bool(coefficient)
    return is_balanced and has_loss and not is_at_least(launch.release, "0.17")


def _row_facts(launch: MegatronLaunch) -> Iterator[tuple[str, Fact]]:
    get = launch.get
    for name, when in _TABLE["conditions_of_row"].items():
        yield name, partial(holds, when, get)
    yield "vp", lambda: chunks_of(launch)
    yield "ends_as_layers", lambda: _ends(launch)
    yield "micro_batch", lambda: get("micro_batch_size") or None
    yield "recompute", lambda: int(_recompute(launch))
    yield "recompute_layers", lambda: 0
    strategy = "data_parallel_sharding_strategy"
    yield "fsdp", lambda: _place(FSDP, get(strategy)) if get("use_megatron_fsdp") else 0
    yield "stages", lambda: _stages(launch)
    yield "cp_kind", lambda: _place(CP_KINDS, get("cp_comm_type"))
    yield "cuda_graphs", lambda: _graphs(launch)
    yield "adam_moments", lambda: _place(MOMENTS, {get(one) or MOMENTS[0] for one in _MOMENTS})
    # Without fp8 it is another kernel, which no knob carries.
    yield "fused_experts", lambda: None if get("use_transformer_engine_op_fuser") else 0
    yield "dispatcher", lambda: _dispatcher(launch)
    yield "recompute_modules", lambda: _place(RECOMPUTED, get("recompute_modules"))
    yield "fp8", lambda: _place(FP8, get("fp8"))
    yield "fp8_recipe", lambda: _place(FP8_RECIPES, get("fp8_recipe"))
    for argument, carried in CARRIED.items():
        if carried.knob in ("micro_batch", "distributed_optimizer"):
            continue
        if carried.kind == "number":
            yield carried.knob, partial(_number, launch, argument)
        elif carried.kind == "switch":
            yield carried.knob, partial(_switch, launch, argument, KNOBS[carried.knob].default)
    yield "dp", lambda: _replicas(launch)
    yield "grad_accum", lambda: _micro_batches(launch)


def _stages(launch: MegatronLaunch) -> int | None:
    """The layout's number; None: it is written in another way than as text."""
    layout = launch.get("pipeline_model_parallel_layout")
    if layout is None:
        return 0
    return LAYOUTS.number(str(layout)) if stages_of(str(layout)) is not None else None


def _dispatcher(launch: MegatronLaunch) -> int | None:
    """The dispatcher's number; None: no knob carries it."""
    kind = launch.get("moe_token_dispatcher_type")
    if not launch.get("num_experts"):
        return 0
    if kind != "flex":
        return DISPATCHERS.index(kind) if kind in DISPATCHERS else None
    has_choice = is_at_least(launch.release, FLEX_BACKEND) and not launch.get("moe_enable_deepep")
    backend = launch.get("moe_flex_dispatcher_backend") if has_choice else None
    return DISPATCHERS.index(backend or "deepep") if backend != "ncclep" else None


def _graphs(launch: MegatronLaunch) -> int | None:
    """The number of what graphs capture; None: no knob carries it."""
    kind = launch.get("cuda_graph_impl") or "none"
    if any(launch.get(name) for name in ("enable_cuda_graph", "external_cuda_graph")):
        return None
    if kind == "none":
        return 0
    names = ("cuda_graph_scope", "cuda_graph_modules", "cuda_graph_scope_deprecated")
    parts = next((launch.get(name) for name in names if name in launch.given), None)
    text = "+".join(sorted(parts.split(",") if isinstance(parts, str) else parts or ()))
    chosen = {"+".join(sorted(graph.split("+"))): number for number, graph in enumerate(GRAPHS)}
    return chosen.get(text) if kind == "transformer_engine" else None


def _number(launch: MegatronLaunch, argument: str) -> int:
    if argument == "expert_tensor_parallel_size":
        is_shared = int(launch.get("expert_model_parallel_size") or 1) > 1
        if not is_shared and not launch.get("num_experts"):
            return 0  # a dense model has no experts to split
    return int(launch.get(argument) or 0)


def _switch(launch: MegatronLaunch, argument: str, at_default: KnobValue) -> int:
    flag = flags(launch.release).get(f"--{argument.replace('_', '-')}")
    is_on = flag is not None and launch.get(flag.argument) == flag.sets
    # Its flag turns off what overlaps by default.
    return int(is_on != (at_default is True and not argument.startswith("no_")))


def _place(choices: Sequence[str], parts: str | Iterable[str] | None) -> int | None:
    """Place of some parts in a knob's choices; None: they are none of them."""
    parts = [parts] if isinstance(parts, str) else parts
    chosen = "+".join(sorted({*(parts or choices[:1])}))
    return choices.index(chosen) if chosen in choices else None


def _ends(launch: MegatronLaunch) -> int | None:
    """True if embedding and loss count as layers; None where one of them alone does."""
    first, last = (bool(launch.get(name)) for name in ENDS)
    return int(first) if first == last else None


def _recompute(launch: MegatronLaunch) -> Recompute:
    kind = launch.get("recompute_granularity")
    if launch.get("recompute_activations"):
        kind = "selective"
    return {None: Recompute.NONE, "selective": Recompute.SELECTIVE}.get(kind, Recompute.FULL)


def _replicas(launch: MegatronLaunch) -> int | None:
    # With these the batch need not be whole from the first step on.
    if launch.world is None or any(
        launch.get(name) for name in ("decrease_batch_size_if_needed", "rampup_batch_size")
    ):
        return None
    names = [f"{degree}_model_parallel_size" for degree in ("tensor", "pipeline")]
    split = math.prod(int(launch.get(name)) for name in names)
    if split != launch.world:  # else one rank is left, and it splits no context
        split *= launch.get("context_parallel_size")
    return launch.world // split if launch.world % split == 0 else None


def _micro_batches(launch: MegatronLaunch) -> int | None:
    replicas = _replicas(launch)
    total, size = launch.get("global_batch_size"), launch.get("micro_batch_size")
    if not replicas or not total or not size or total % (replicas * size):
        return None
    return int(total // (replicas * size))
