"""Which launches of Megatron-LM are legal: rules of their arguments, and those of the layout."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.cost.plans import Recompute
from autotune.engines.megatron.argument_rules import ARGUMENT_RULES
from autotune.engines.megatron.argument_rules.computed import ENDS, chunks_of
from autotune.engines.megatron.argument_rules.making import (
    CHUNKED,
    all_in_words,
    flag_name,
    is_before,
)
from autotune.engines.megatron.arguments import KNOBS_OF
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
from autotune.engines.megatron.launched import GivenArgument, MegatronLaunch
from autotune.engines.megatron.layout_task import Columns, LayoutRows, LayoutTask
from autotune.engines.megatron.rules import RULES
from autotune.engines.megatron.stages import StageWork, stages_of
from autotune.space.rule import Rule, UnknownFactError, Violation

_NOT_ASKED = frozenset(
    {
        *("sequence_parallel.tp", "overlap.gather_needs_reduce"),
        *("overlap.tp_needs_sequence_parallel", "optimizer_offload.sharded"),
        *("sequence.positions", "vp.pipeline", "uneven.ends"),
        *("fp8.gather", "fsdp.sharded", "overlap.p2p", "adam_moments.sharded", "fp4.fp8"),
    }
)
"""Rules of layouts that a rule of arguments here says more exactly."""
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
    found += _mended(_layout_violations(launch, unknown_facts), launch)
    if launch.is_overrides:
        return [_in_fields(violation, launch) for violation in found]
    return found


def _mended(refused: Sequence[Violation], launch: MegatronLaunch) -> list[Violation]:
    """Violations of layouts, of which those have a change that it makes silent."""
    # Some rules say which argument goes; of the others the nearest number is asked for.
    if all(violation.changes for violation in refused):
        return list(refused)
    changes, left = _nearest(launch)
    words = all_in_words(changes)
    return [
        violation
        if violation.rule in left or violation.changes or not changes
        else replace(
            violation,
            changes=changes,
            fix=words,
            at=(*_named_first(changes, violation.message), *violation.at),
        )
        for violation in refused
    ]


def _named_first(arguments: Iterable[str], message: str) -> tuple[str, ...]:
    """The arguments that a message names, in its order."""

    def place(argument: str) -> int:
        return max(message.find(spelling) for spelling in (flag_name(argument), argument))

    return tuple(sorted((one for one in arguments if place(one) >= 0), key=place))


_FLAG = re.compile(r"(?:\b(add|remove) )?--([a-z0-9-]+)")


def _in_fields(found: Violation, launch: MegatronLaunch) -> Violation:
    """A violation in the words of overrides, which have fields and no flags."""

    def put(flag: re.Match[str]) -> str:
        verb, argument = flag[1], flag[2].replace("-", "_")
        given = launch.given.get(argument)
        field = given.flag if given is not None else argument
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


_OF_RANKS = ("world", "dp", "grad_accum")
"""Facts of a layout that no launch has without a world."""


def _broken(launches: Sequence[MegatronLaunch]) -> list[frozenset[str]]:
    """The rules of layouts that launches of one training break; quick for many at once."""
    found: list[set[str]] = [set() for _ in launches]
    alike: dict[tuple[Any, ...], list[tuple[int, LayoutRows]]] = {}
    for number, launch in enumerate(launches):
        rows = rows_of(launch)
        group = getattr(rows.task, "vp_group", None)
        kind = (*rows.columns, _spreads_experts(rows), group)
        alike.setdefault(kind, []).append((number, rows))
    for those in alike.values():
        first = those[0][1]
        columns = {
            name: np.concatenate([rows.columns[name] for _, rows in those])
            for name in first.columns
        }
        together = LayoutRows(task=first.task, columns=columns)
        for rule in _LAYOUT_RULES:
            try:
                holds = rule.holds(together) if rule.holds and _is_asked(rule, first) else None
            except UnknownFactError:
                continue
            if holds is not None:
                for at in np.flatnonzero(~holds):
                    found[those[at][0]].add(rule.name)
    return [frozenset(names) for names in found]


_LAYOUT_RULES = tuple(
    rule for rule in RULES if rule.name not in _NOT_ASKED and not rule.source.startswith("ours")
)
_OF_EXPERTS = ("ep.experts", "ep.ranks")
"""Rules of the grid of experts, which says nothing new where they are shared as all else is."""


def _is_asked(rule: Rule[LayoutRows], rows: LayoutRows) -> bool:
    if rule.name in _OF_EXPERTS:
        return _spreads_experts(rows)
    return rule.name != "tp.kv_heads" or _has_groups(rows)


def _has_groups(rows: LayoutRows) -> bool:
    """True if keys and values have heads of their own number; else `tp.heads` says it."""
    facts = vars(rows.task)
    return facts.get("n_kv_heads") != facts.get("n_heads")


def _spreads_experts(rows: LayoutRows) -> bool:
    has_experts = getattr(rows.task, "n_experts", 1) > 0
    degrees = (rows.columns.get(name, np.ones(1)) for name in ("ep", "etp"))
    ep, etp = (int(values[0]) for values in degrees)
    return has_experts and (ep > 1 or etp > 0)


_ARGUMENT_OF = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
    "vp": "num_virtual_stages_per_pipeline_rank",
    "vp_group": "microbatch_group_size_per_vp_stage",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_query_groups",
    "n_layers": "num_layers",
    "n_experts": "num_experts",
    "seq_len": "seq_length",
    "micro_batch": "micro_batch_size",
    "global_batch": "global_batch_size",
    "first_stage_layers": "decoder_first_pipeline_num_layers",
    "last_stage_layers": "decoder_last_pipeline_num_layers",
    "activation_offload": "cpu_offloading_num_layers",
    "fp8_recipe": "fp8_recipe",
    "recompute": "recompute_granularity",
    "recompute_modules": "recompute_modules",
    "dispatcher": "moe_token_dispatcher_type",
    "cuda_graphs": "cuda_graph_impl",
    "adam_moments": "exp_avg_dtype",
    "cp_kind": "cp_comm_type",
    "stages=balanced": "pipeline_model_parallel_layout",
    "n_mtp_layers": "mtp_num_layers",
}
"""Word of a layout's rule -> the argument that a launch gives."""
_SWITCHES_OF = {
    "sequence_parallel": ("sequence_parallel",),
    "ends_as_layers": ENDS,
    "optimizer_offload": ("optimizer_cpu_offload",),
    "offload_modules": ("fine_grained_activation_offloading",),
    "fp8_param_gather": ("fp8_param_gather",),
    "fsdp_double_buffer": ("fsdp_double_buffer",),
    "fp4": ("fp4",),
    "overlap_experts": ("overlap_moe_expert_parallel_comm",),
    "delay_weight_grads": ("delay_wgrad_compute",),
    "overlap_shared_experts": ("moe_shared_expert_overlap",),
    "fused_experts": ("use_transformer_engine_op_fuser",),
}
"""The same for a switch, of which a launch may have several."""
_WORD = re.compile(rf"(?<![\w-])({'|'.join(_ARGUMENT_OF)})\b(=none|=?)")
_SWITCH_WORD = re.compile(rf"(?<![\w-])({'|'.join(_SWITCHES_OF)})(=true|=false)?\b")


def flags_of(column: str) -> str:
    """The flags that make a column of a layout, in words."""
    return " and ".join(
        map(flag_name, _SWITCHES_OF.get(column, (_ARGUMENT_OF.get(column, column),)))
    )


def _as_switches(word: re.Match[str]) -> str:
    names = flags_of(word[1])
    return f"no {names}" if word[2] == "=false" else names


def _in_flags(found: Violation, launch: MegatronLaunch) -> Violation:
    """A violation of a layout's rule in the words of a launch."""

    def put(word: re.Match[str]) -> str:
        name = flag_name(_ARGUMENT_OF[word[1]])
        if word[2] == "=none":
            return f"no {name}"
        return name + (" " if word[2] else "")

    def in_flags(text: str) -> str:
        text = _SWITCH_WORD.sub(_as_switches, text)
        return _WORD.sub(put, text)

    message = found.message
    if found.rule == "ep.ranks":
        names = ("pipeline_model", "expert_model", "expert_tensor")
        pp, ep, etp = (launch.get(f"{name}_parallel_size") for name in names)
        last = f"etp {etp}" if etp else f"tp {launch.get('tensor_model_parallel_size')}"
        message = f"world {launch.world} is no multiple of pp {pp} x ep {ep} x {last}"
    changes = _undone(found.changes, launch)
    return replace(
        found,
        message=in_flags(message),
        fix=all_in_words(changes) or in_flags(found.fix),
        changes=changes,
        at=(*changes, *_named_first(launch.given, in_flags(message))),
    )


def _undone(knobs: Iterable[str], launch: MegatronLaunch) -> dict[str, Any]:
    """The change of a launch that leaves knobs out, or a module of those that are recomputed."""
    changes: dict[str, Any] = {}
    for knob in knobs:
        knob, _, module = knob.partition(".")
        for argument in (name for name, other in KNOBS_OF.items() if other == knob):
            if argument in launch.given:
                parts = changes.get(argument, launch.get(argument)) if module else ()
                changes[argument] = [part for part in parts or () if part != module] or None
    return changes


def _nearest(launch: MegatronLaunch) -> tuple[dict[str, Any], frozenset[str]]:
    """The one change after which the fewest rules of layouts are broken, and which those are.

    The layout is what the user chose: what keeps the parallel degrees comes before what changes
    them, then the nearest. Of the arguments that are given, numbers alone change.
    """
    # What the shell may add to a launch is taken for nothing: a change must fit what is there.
    launch = replace(launch, is_partial=False)
    (now,) = _broken([launch])
    refused, known = _refused_arguments(launch), rows_of(launch).columns.keys()
    # What follows from the ranks is judged once they fit.
    hidden = {"dp", "grad_accum"} - known
    later = {rule.name for rule in _LAYOUT_RULES if not hidden.isdisjoint(rule.reads)}
    fewest, best = now, dict[str, Any]()
    for parts in (_KEEPING, _DEGREES):
        steps = sorted((step for part in parts for step in _steps(launch, part)), key=_distance)
        ends = [changed(launch, changes) for _, changes in steps]
        for (_, changes), end, broken in zip(steps, ends, _broken(ends), strict=True):
            left = broken - later
            # A rule that only lost sight of a value is not mended.
            if (
                left < now
                and len(left) < len(fewest)
                and known <= rows_of(end).columns.keys()
                and _refused_arguments(end) <= refused
            ):
                fewest, best = left, changes
        if not fewest:
            break
    return best, fewest


def _refused_arguments(launch: MegatronLaunch) -> set[str]:
    return {violation.rule for rule in ARGUMENT_RULES for violation in rule.violations(launch)}


_KEEPING = (
    *("ends", "microbatch_group_size_per_vp_stage", "micro_batch_size", "global_batch_size"),
    *CHUNKED,
)
"""Parts of a layout that change and keep its degrees."""
_DEGREES = (
    *("expert_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size"),
    "tensor_model_parallel_size",
)
_OTHER_BATCH = 1.0
"""Distance of any other global batch, which trains something else: that of twice or half the
micro-batch."""
_MOST_TRIED = 1024
"""Values of an argument that are asked about, at most."""


def _steps(launch: MegatronLaunch, part: str) -> list[tuple[float, dict[str, Any]]]:
    """Other values of a part, each with its distance from the present one."""
    if part == "ends":
        return [(0, dict.fromkeys(ENDS, True))]
    now = _number_or_none(launch, part) if part in launch.given else None
    if now is None:
        return []
    is_batch = part == "global_batch_size"
    others = _batches(launch, now) if is_batch else range(1, min(2 * now + 8, _MOST_TRIED))
    return [
        (abs(math.log2(value / now)) + _OTHER_BATCH * is_batch, {part: value})
        for value in others
        if value != now
    ]


def _distance(step: tuple[float, dict[str, Any]]) -> float:
    return step[0]


def _batches(launch: MegatronLaunch, now: int) -> set[int]:
    """The global batches around the present one that some degrees and chunks can share."""
    size = _number_or_none(launch, "micro_batch_size") or 1
    world = min(launch.world or 1, _MOST_TRIED)
    wholes = [size * n for n in range(1, world + 1) if world % n == 0]
    stages = _number_or_none(launch, "pipeline_model_parallel_size") or 1
    wholes = [whole * n for whole in wholes for n in (1, stages)]
    return {
        value for whole in wholes for value in (now - now % whole, now - now % -whole) if value
    }


def _number_or_none(launch: MegatronLaunch, name: str) -> int | None:
    """A whole number from 1 on that a launch gives, or Megatron's default; None: there is none."""
    try:
        value = launch.get(name)
    except UnknownFactError:
        return None
    return value if type(value) is int and value >= 1 else None


def changed(launch: MegatronLaunch, changes: Mapping[str, Any]) -> MegatronLaunch:
    """A launch with other arguments; None takes one away. Places in the text stay as they are."""
    given = {name: word for name, word in launch.given.items() if changes.get(name, 0) is not None}
    for name, value in changes.items():
        if value is not None:
            old = given.get(name) or GivenArgument(value=value, flag=flag_name(name), start=0)
            given[name] = replace(old, value=value)
    return replace(launch, given=given)


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
    yield "n_layers", lambda: get("num_layers")
    yield "n_heads", lambda: get("num_attention_heads")
    yield "n_kv_heads", lambda: _kv_heads(launch)
    yield "ffn_hidden", lambda: _expert_width(launch)
    yield "n_experts", lambda: get("num_experts") or 0
    yield "dense_ffn_hidden", lambda: get("ffn_hidden_size") if _dense_layers(launch) else 0
    yield "n_dense_layers", lambda: _dense_layers(launch)
    yield (
        "shared_expert_hidden",
        lambda: int(bool(get("num_experts")) and (get(_SHARED) or 0)),
    )
    yield (
        "latent_kv_rank",
        lambda: int((get("multi_latent_attention") and (get("kv_lora_rank") or 1)) or 0),
    )
    yield "n_mtp_layers", lambda: get("mtp_num_layers") or 0
    yield "groups_experts", lambda: bool(get("moe_grouped_gemm"))
    yield "in_fp32", lambda: not (get("bf16") or get("fp16"))
    yield "in_bf16", lambda: bool(get("bf16"))
    yield "tracks_aux_loss", lambda: _tracks_aux_loss(launch)
    yield "work", lambda: _WORK_UNKNOWN
    yield "seq_len", lambda: get("seq_length")
    yield "max_seq_len", lambda: get("max_position_embeddings") or 0
    yield "global_batch", lambda: get("global_batch_size")
    yield "world", lambda: launch.world
    yield "vp_group", lambda: get("microbatch_group_size_per_vp_stage") or 0
    yield "domain", lambda: _EVERY_DEVICE
    yield "fused_attention", lambda: True
    yield "shares_kv_heads", lambda: LayoutTask.may_share_kv_heads(launch.release)


_SHARED = "moe_shared_expert_intermediate_size"
_WORK_UNKNOWN = StageWork(n_layers=0)
"""Work in a launch, which writes its layouts itself: none follows from it."""


def _expert_width(launch: MegatronLaunch) -> int | None:
    """Width of an expert, or of the one MLP of a dense model."""
    width_of_experts = launch.get("moe_ffn_hidden_size") if launch.get("num_experts") else None
    width: int | None = width_of_experts or launch.get("ffn_hidden_size")
    return width


def _dense_layers(launch: MegatronLaunch) -> int | None:
    """First layers of a mixture that have no experts; None: the launch says it in another way."""
    often = launch.get("moe_layer_freq")
    if not launch.get("num_experts"):
        return 0
    if isinstance(often, int):
        # Of every so many layers the first has experts.
        return 0 if often == 1 else None
    listed = _layers_listed(often)
    if listed is None or 1 not in listed or 0 in listed[listed.index(1) :]:
        return None
    return listed.index(1)


_RUN = re.compile(r"\[([01](?:,[01])*)\](?:\*(\d{1,5}))?")


def _layers_listed(often: object) -> list[int] | None:
    """Whether each layer has experts, as `--moe-layer-freq` lists it; None: it lists none.

    `([0]*3+[1]*58)`, as Megatron evaluates it: megatron/training/arguments.py, moe_freq_type.
    """
    if isinstance(often, list):
        return [int(flag) for flag in often]
    text = str(often).replace(" ", "").removeprefix("(").removesuffix(")")
    parts = [_RUN.fullmatch(part) for part in text.split("+")]
    if "[" not in text or None in parts:
        return None
    return [
        int(flag)
        for part in parts
        if part is not None
        for flag in part[1].split(",") * int(part[2] or 1)
    ]


def _tracks_aux_loss(launch: MegatronLaunch) -> bool:
    """True if losses of load balancing are summed over a pipeline in trackers of two sizes."""
    is_balanced = launch.get("moe_router_load_balancing_type") not in ("none", ["none"])
    coefficient = launch.get("moe_aux_loss_coeff")
    has_loss = any(coefficient) if isinstance(coefficient, list) else bool(coefficient)
    return is_balanced and has_loss and is_before(launch.release, "0.17")


def _kv_heads(launch: MegatronLaunch) -> int | None:
    groups: int | None = launch.get("num_query_groups")
    heads: int | None = launch.get("num_attention_heads")
    return groups if launch.get("group_query_attention") and groups else heads


def _row_facts(launch: MegatronLaunch) -> Iterator[tuple[str, Fact]]:
    get = launch.get
    yield "tp", lambda: get("tensor_model_parallel_size")
    yield "pp", lambda: get("pipeline_model_parallel_size")
    yield "cp", lambda: get("context_parallel_size")
    yield "ep", lambda: get("expert_model_parallel_size")
    yield "vp", lambda: chunks_of(launch)
    yield "ends_as_layers", lambda: _ends(launch)
    yield "sequence_parallel", lambda: int(bool(get("sequence_parallel")))
    yield "micro_batch", lambda: get("micro_batch_size") or None
    yield "distributed_optimizer", lambda: int(bool(get("use_distributed_optimizer")))
    yield "recompute", lambda: int(_recompute(launch))
    yield "recompute_layers", lambda: 0
    yield "order", lambda: int(bool(get("use_tp_pp_dp_mapping")))
    yield "fsdp", lambda: _fsdp(launch)
    yield "optimizer_offload", lambda: int(bool(get("optimizer_cpu_offload")))
    yield "offload_modules", lambda: int(bool(get("fine_grained_activation_offloading")))
    yield "stages", lambda: _stages(launch)
    yield "cp_kind", lambda: _cp_kind(launch)
    yield "cuda_graphs", lambda: _graphs(launch)
    yield "adam_moments", lambda: _moments(launch)
    yield "main_grads", lambda: int(bool(get("grad_reduce_in_bf16")))
    # Without fp8 it is another kernel, which no knob carries.
    yield "fused_experts", lambda: None if get("use_transformer_engine_op_fuser") else 0
    yield "fp4", lambda: int(bool(get("fp4")))
    yield "dispatcher", lambda: _dispatcher(launch)
    yield "recompute_modules", lambda: _place(RECOMPUTED, get("recompute_modules"))
    yield "fp8", lambda: _place(FP8, [get("fp8") or FP8[0]])
    yield "fp8_recipe", lambda: _place(FP8_RECIPES, [get("fp8_recipe")])
    for knob, argument in _SAME_NUMBER.items():
        yield knob, partial(_number, launch, argument)
    for knob, (argument, at_default) in _SWITCHES.items():
        yield knob, partial(_switch, launch, argument, at_default)
    yield "dp", lambda: _replicas(launch)
    yield "grad_accum", lambda: _micro_batches(launch)


_SAME_NUMBER = {
    "first_stage_layers": "decoder_first_pipeline_num_layers",
    "last_stage_layers": "decoder_last_pipeline_num_layers",
    "etp": "expert_tensor_parallel_size",
    "activation_offload": "cpu_offloading_num_layers",
}
"""Knob -> the argument with the same number."""
_SWITCHES = {
    "overlap_grad_reduce": ("overlap_grad_reduce", True),
    "overlap_param_gather": ("overlap_param_gather", True),
    "optimizer_offload_overlap": ("overlap_cpu_optimizer_d2h_h2d", False),
    "overlap_p2p": ("overlap_p2p_comm", True),
    "tp_comm_overlap": ("tp_comm_overlap", False),
    "fsdp_double_buffer": ("fsdp_double_buffer", False),
    "overlap_experts": ("overlap_moe_expert_parallel_comm", False),
    "delay_weight_grads": ("delay_wgrad_compute", False),
    "overlap_shared_experts": ("moe_shared_expert_overlap", False),
    "fp8_param_gather": ("fp8_param_gather", False),
    "nccl_ub": ("nccl_ub", False),
}
"""Knob -> its argument, and the knob's default."""


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
    backend = launch.get("moe_flex_dispatcher_backend") if launch.release not in _OLDER else None
    return DISPATCHERS.index(backend or "deepep") if backend != "ncclep" else None


def _cp_kind(launch: MegatronLaunch) -> int | None:
    kinds = launch.get("cp_comm_type") or CP_KINDS[:1]
    kind = kinds if isinstance(kinds, str) else kinds[0] if len(set(kinds)) == 1 else ""
    return CP_KINDS.index(kind) if kind in CP_KINDS else None


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


def _moments(launch: MegatronLaunch) -> int | None:
    kinds = {launch.get(name) or "fp32" for name in ("exp_avg_dtype", "exp_avg_sq_dtype")}
    kind = kinds.pop() if len(kinds) == 1 else ""
    return MOMENTS.index(kind) if kind in MOMENTS else None


_OLDER = ("0.14", "0.15")
"""Releases whose flex dispatcher has one backend."""


def _number(launch: MegatronLaunch, argument: str) -> int:
    if argument == "expert_tensor_parallel_size" and not launch.get("num_experts"):
        return 0  # a dense model has no experts to split
    return int(launch.get(argument) or 0)


def _switch(launch: MegatronLaunch, argument: str, at_default: bool) -> int:
    return int(bool(launch.get(argument)) is not at_default)


def _fsdp(launch: MegatronLaunch) -> int | None:
    if not launch.get("use_megatron_fsdp"):
        return 0
    strategy = launch.get("data_parallel_sharding_strategy")
    return FSDP.index(strategy) if strategy in FSDP else None


def _place(choices: Sequence[str], parts: Sequence[str] | None) -> int | None:
    """Place of some parts in a knob's choices; None: they are none of them."""
    chosen = "+".join(sorted(parts or choices[:1]))
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
