"""Which launches of Megatron-LM are legal: its own checks of arguments, and the rules of layouts.

Each rule names the function of NVIDIA/Megatron-LM that checks it (the main branch at Megatron Core
0.20, unless it says more), and the change that makes it legal.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

from autotune.cost.plans import Recompute
from autotune.engines.megatron.choices import FP8, FP8_RECIPES, FSDP, RECOMPUTED
from autotune.engines.megatron.launched import GivenArgument, MegatronLaunch
from autotune.engines.megatron.rules import RULES, Columns, LayoutRows, LayoutTask
from autotune.space.rule import Consequence, Finding, Patch, Rule, UnknownFactError, Violation

_ARGUMENTS = "megatron/training/arguments.py, validate_args"
_CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
_NOT_ASKED = frozenset(
    {
        *("sequence_parallel.tp", "overlap.gather_needs_reduce"),
        *("overlap.tp_needs_sequence_parallel", "optimizer_offload.sharded"),
    }
)
"""Rules of layouts that a rule of arguments here says more exactly."""
_FLAG = re.compile(r"--([a-z0-9-]+)")
_EVERY_DEVICE = 2**31 - 1
WORD_RULES = {
    "flags.unknown": "A flag that the release's parser does not have.",
    "flags.value": "A value that its parser does not take.",
    "flags.stray_word": "A word that is neither a flag nor a flag's value.",
}
"""What is said of the words of a command line, by the name of the rule."""


def _rule(
    name: str, source: str, consequence: Consequence = "raised"
) -> Callable[[Callable[[MegatronLaunch], tuple[str, Patch] | None]], Rule[MegatronLaunch]]:
    """A rule of a function that gives a message and the change, or nothing for a legal launch."""

    def of(asked: Callable[[MegatronLaunch], tuple[str, Patch] | None]) -> Rule[MegatronLaunch]:
        def check(launch: MegatronLaunch) -> Finding | None:
            answer = asked(launch)
            if answer is None:
                return None
            message, changes = answer
            words = " and ".join(_in_words(name, value) for name, value in changes.items())
            named = (flag.replace("-", "_") for flag in _FLAG.findall(message))
            at = tuple(each for each in (*named, *changes) if each in launch.given)
            return Finding(
                message=message, changes=changes, words=words, at=at, consequence=consequence
            )

        return Rule(
            name=name,
            check=check,
            witnesses=(),
            source=source,
            says=" ".join((asked.__doc__ or "").split()),
        )

    return of


def _in_words(name: str, value: Any) -> str:
    flag = f"--{name.replace('_', '-')}"
    if value is None:
        return f"remove {flag}"
    return f"add {flag}" if value is True else f"set {flag} to {value}"


@_rule("precision.one", f"{_ARGUMENTS}: args.fp16, args.bf16")
def _one_precision(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--fp16 and --bf16 are both given."""
    if launch.get("fp16") and launch.get("bf16"):
        return "--fp16 and --bf16: a run has one precision", {"fp16": None}
    return None


@_rule("overlap.needs_sharding", f"{_ARGUMENTS}: overlap_param_gather")
def _gather_needs_sharding(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--overlap-param-gather without the distributed optimizer or Megatron's FSDP."""
    sharded = launch.get("use_distributed_optimizer") or launch.get("use_megatron_fsdp")
    if launch.get("overlap_param_gather") and not sharded:
        return (
            "--overlap-param-gather: without --use-distributed-optimizer no parameters are "
            "gathered",
            {"use_distributed_optimizer": True},
        )
    return None


@_rule("overlap.gather_needs_reduce", f"{_ARGUMENTS}: overlap_param_gather")
def _gather_needs_reduce(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--overlap-param-gather without --overlap-grad-reduce."""
    if launch.get("overlap_param_gather") and not launch.get("overlap_grad_reduce"):
        return (
            "--overlap-param-gather: needs --overlap-grad-reduce",
            {"overlap_grad_reduce": True},
        )
    return None


@_rule("overlap.with_optimizer_step", f"{_ARGUMENTS}: overlap_param_gather_with_optimizer_step")
def _gather_with_step(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--overlap-param-gather-with-optimizer-step without --overlap-param-gather."""
    asked = launch.get("overlap_param_gather_with_optimizer_step")
    if asked and not launch.get("overlap_param_gather"):
        return (
            "--overlap-param-gather-with-optimizer-step: needs --overlap-param-gather",
            {"overlap_param_gather_with_optimizer_step": None},
        )
    return None


@_rule("overlap.tp_needs_sequence_parallel", f"{_ARGUMENTS}: tp_comm_overlap")
def _tp_overlap(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--tp-comm-overlap without --sequence-parallel."""
    is_on = launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") > 1
    if launch.get("tp_comm_overlap") and not is_on:
        change: Patch = {"sequence_parallel": True}
        if launch.get("tensor_model_parallel_size") == 1:
            change = {"tp_comm_overlap": None}
        return "--tp-comm-overlap: overlaps what --sequence-parallel sends", change
    return None


@_rule("sequence_parallel.tp", f"{_ARGUMENTS}: sequence_parallel", "ignored")
def _sequence_parallel(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--sequence-parallel with one tensor parallel rank: Megatron turns it off."""
    if launch.get("sequence_parallel") and launch.get("tensor_model_parallel_size") == 1:
        return (
            "--sequence-parallel splits over the tensor parallel ranks, and "
            "--tensor-model-parallel-size is 1",
            {"sequence_parallel": None},
        )
    return None


@_rule("recompute.full_method", f"{_CONFIG}: recompute_method")
def _full_method(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--recompute-granularity full without a method or a number of layers."""
    if launch.get("recompute_granularity") != "full":
        return None
    missing = {
        name: value
        for name, value in (("recompute_method", "uniform"), ("recompute_num_layers", 1))
        if launch.get(name) is None
    }
    if not missing:
        return None
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
    return f"--recompute-granularity full: needs {flags}", missing


@_rule("recompute.selective_method", f"{_CONFIG}: recompute_granularity")
def _selective_method(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--recompute-granularity selective with a method or a number of layers."""
    is_selective = launch.get("recompute_granularity") == "selective"
    if not (is_selective or launch.get("recompute_activations")):
        return None
    names = ("recompute_method", "recompute_num_layers")
    given = [name for name in names if launch.get(name) is not None]
    if not given:
        return None
    flags = " and ".join(f"--{name.replace('_', '-')}" for name in given)
    return (
        f"--recompute-granularity selective: takes no {flags}, which say what full recomputes",
        dict.fromkeys(given),
    )


@_rule("recompute.saved_by_sequence", f"{_CONFIG}: distribute_saved_activations")
def _saved_activations(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--distribute-saved-activations with --sequence-parallel."""
    if launch.get("distribute_saved_activations") and launch.get("sequence_parallel"):
        return (
            "--distribute-saved-activations: --sequence-parallel splits them already",
            {"distribute_saved_activations": None},
        )
    return None


@_rule("vp.one_way", f"{_ARGUMENTS}: num_virtual_stages_per_pipeline_rank")
def _one_way_to_interleave(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """Both ways to say how a pipeline is interleaved."""
    by_layers = launch.get("num_layers_per_virtual_pipeline_stage")
    if by_layers is not None and launch.get("num_virtual_stages_per_pipeline_rank") is not None:
        return (
            "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank "
            "say the same in two ways, and Megatron takes one",
            {"num_layers_per_virtual_pipeline_stage": None},
        )
    return None


@_rule("optimizer_offload.precision_aware", f"{_ARGUMENTS}: optimizer_cpu_offload")
def _offload(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--optimizer-cpu-offload without --use-precision-aware-optimizer."""
    if launch.get("optimizer_cpu_offload") and not launch.get("use_precision_aware_optimizer"):
        return (
            "--optimizer-cpu-offload: needs --use-precision-aware-optimizer",
            {"use_precision_aware_optimizer": True},
        )
    return None


@_rule("experts.none", f"{_ARGUMENTS}: expert_model_parallel_size")
def _no_experts(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--expert-model-parallel-size above 1 for a model without experts."""
    if launch.get("expert_model_parallel_size") > 1 and launch.get("num_experts") is None:
        return (
            "--expert-model-parallel-size spreads experts, and --num-experts gives none",
            {"expert_model_parallel_size": None},
        )
    return None


@_rule("fsdp.pipeline", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_pipeline(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--use-torch-fsdp2 with a pipeline."""
    if launch.get("use_torch_fsdp2") and launch.get("pipeline_model_parallel_size") > 1:
        return (
            "--use-torch-fsdp2: shards no pipeline",
            {"pipeline_model_parallel_size": 1},
        )
    return None


@_rule("fsdp.optimizer", f"{_ARGUMENTS}: use_torch_fsdp2")
def _fsdp_optimizer(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """--use-torch-fsdp2 with the distributed optimizer."""
    if launch.get("use_torch_fsdp2") and launch.get("use_distributed_optimizer"):
        return (
            "--use-torch-fsdp2: shards the optimizer by itself, and refuses "
            "--use-distributed-optimizer",
            {"use_distributed_optimizer": None},
        )
    return None


@_rule("batch.micro", f"{_ARGUMENTS}: micro_batch_size")
def _micro_batch(launch: MegatronLaunch) -> tuple[str, Patch] | None:
    """No --micro-batch-size."""
    if launch.get("micro_batch_size") is None:
        return "--micro-batch-size is missing, and has no default", {"micro_batch_size": 1}
    return None


ARGUMENT_RULES: tuple[Rule[MegatronLaunch], ...] = tuple(
    each for each in dict(globals()).values() if isinstance(each, Rule)
)
"""Rules of arguments, in the order in which they are asked."""


def judge_launch(launch: MegatronLaunch) -> list[Violation]:
    """What is wrong with a launch: its words, its arguments, and the layout that they make."""
    found = [*launch.problems]
    for rule in ARGUMENT_RULES:
        found += rule.violations(launch)
    refused = _layout_violations(launch)
    if refused and (changes := nearest_legal(launch)):
        first, *rest = refused
        words = " and ".join(_in_words(name, value) for name, value in changes.items())
        refused = [replace(first, changes=changes, fix=words, at=tuple(changes)), *rest]
    return found + refused


def _layout_violations(launch: MegatronLaunch) -> list[Violation]:
    rows = rows_of(launch)
    return [
        found
        for rule in RULES
        if rule.name not in _NOT_ASKED and not rule.source.startswith("ours")
        for found in rule.violations(rows)
    ]


@dataclass(frozen=True, kw_only=True)
class _OtherValue:
    """A value of one argument, and how far it is from the present one."""

    argument: str
    value: int
    distance: float


def nearest_legal(launch: MegatronLaunch) -> dict[str, Any]:
    """The change of one argument after which the fewest rules of layouts are broken.

    Among those the nearest; empty: none breaks fewer than now.
    """
    fewest, best = len(_layout_violations(launch)), {}
    for change in sorted(_single_changes(launch), key=lambda each: each.distance):
        changes = {change.argument: change.value}
        n_left = len(_layout_violations(changed(launch, changes)))
        if n_left < fewest:
            fewest, best = n_left, changes
        if not fewest:
            break
    return best


_DEGREES = (
    *("micro_batch_size", "num_virtual_stages_per_pipeline_rank", "expert_model_parallel_size"),
    *("context_parallel_size", "pipeline_model_parallel_size", "tensor_model_parallel_size"),
)
"""Arguments that are changed to mend a layout, those first whose change moves least."""


def _single_changes(launch: MegatronLaunch) -> Iterator[_OtherValue]:
    for number, name in enumerate(_DEGREES):
        try:
            now = launch.get(name) or 1
        except UnknownFactError:
            continue
        if type(now) is not int or now < 1:
            continue
        limit = 2 * now + 8
        for value in range(1, limit):
            if value != now:
                distance = abs(float(np.log2(value / now))) + 0.01 * number
                yield _OtherValue(argument=name, value=value, distance=distance)


def changed(launch: MegatronLaunch, changes: Mapping[str, Any]) -> MegatronLaunch:
    """A launch with other arguments; None takes one away. Places in the text stay as they are."""
    given = {name: each for name, each in launch.given.items() if changes.get(name, 0) is not None}
    for name, value in changes.items():
        if value is not None:
            old = launch.given.get(name)
            place = (old.start, old.value_start, old.end) if old else (0, 0, 0)
            start, value_start, end = place
            flag = old.flag if old else f"--{name.replace('_', '-')}"
            given[name] = GivenArgument(
                value=value, flag=flag, start=start, value_start=value_start, end=end
            )
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
    yield "ffn_hidden", lambda: get("ffn_hidden_size")
    yield "n_experts", lambda: get("num_experts") or 0
    yield "seq_len", lambda: get("seq_length")
    yield "max_seq_len", lambda: get("max_position_embeddings") or 0
    yield "global_batch", lambda: get("global_batch_size")
    yield "world", lambda: launch.world
    yield "domain", lambda: _EVERY_DEVICE
    yield "fused_attention", lambda: True
    yield "shares_kv_heads", lambda: LayoutTask.may_share_kv_heads(launch.release)


def _kv_heads(launch: MegatronLaunch) -> int | None:
    groups: int | None = launch.get("num_query_groups")
    heads: int | None = launch.get("num_attention_heads")
    in_yaml = launch.is_yaml and "num_query_groups" in launch.given
    is_grouped = launch.get("group_query_attention") or in_yaml
    return groups if is_grouped and groups else heads


def _row_facts(launch: MegatronLaunch) -> Iterator[tuple[str, Fact]]:
    get = launch.get
    yield "tp", lambda: get("tensor_model_parallel_size")
    yield "pp", lambda: get("pipeline_model_parallel_size")
    yield "cp", lambda: get("context_parallel_size")
    yield "ep", lambda: get("expert_model_parallel_size")
    yield "vp", lambda: _chunks(launch)
    yield "ends_as_layers", lambda: _ends(launch)
    yield "sequence_parallel", lambda: int(bool(get("sequence_parallel")))
    yield "micro_batch", lambda: get("micro_batch_size")
    yield "distributed_optimizer", lambda: int(bool(get("use_distributed_optimizer")))
    yield "recompute", lambda: int(_recompute(launch))
    yield "recompute_layers", lambda: 0
    yield "order", lambda: int(bool(get("use_tp_pp_dp_mapping")))
    yield "fsdp", lambda: _fsdp(launch)
    yield "optimizer_offload", lambda: int(bool(get("optimizer_cpu_offload")))
    yield "offload_modules", lambda: int(bool(get("fine_grained_activation_offloading")))
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
    "fp8_param_gather": ("fp8_param_gather", False),
}
"""Knob -> its argument, and the knob's default."""


def _number(launch: MegatronLaunch, argument: str) -> int:
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


def _chunks(launch: MegatronLaunch) -> int | None:
    """Chunks of a pipeline rank; None where layers are placed by hand."""
    if launch.is_yaml:
        return (
            launch.given["virtual_pipeline_model_parallel_size"].value
            if ("virtual_pipeline_model_parallel_size" in launch.given)
            else 1
        )
    by_hand = ("pipeline_model_parallel_layout", "decoder_first_pipeline_num_layers")
    if any(launch.get(name) is not None for name in (*by_hand, _LAST_STAGE)):
        return None
    stages: int | None = launch.get("num_virtual_stages_per_pipeline_rank")
    if stages is not None:
        return stages
    layers: int | None = launch.get("num_layers_per_virtual_pipeline_stage")
    if layers is None:
        return 1
    total, pp = launch.get("num_layers"), launch.get("pipeline_model_parallel_size")
    if not total or total % (pp * layers):
        return None
    return int(total // (pp * layers))


_LAST_STAGE = "decoder_last_pipeline_num_layers"


def _ends(launch: MegatronLaunch) -> int | None:
    """Whether embedding and loss count as layers; None where one of them alone does."""
    first = bool(launch.get("account_for_embedding_in_pipeline_split"))
    last = bool(launch.get("account_for_loss_in_pipeline_split"))
    return int(first) if first == last else None


def _recompute(launch: MegatronLaunch) -> Recompute:
    kind = launch.get("recompute_granularity")
    if launch.get("recompute_activations"):
        kind = "selective"
    return {None: Recompute.NONE, "selective": Recompute.SELECTIVE}.get(kind, Recompute.FULL)


def _replicas(launch: MegatronLaunch) -> int | None:
    if launch.world is None:
        return None
    degrees = ("tensor", "pipeline", "context")
    names = [f"{each}_{'model_' if each != 'context' else ''}parallel_size" for each in degrees]
    split = int(np.prod([launch.get(name) for name in names]))
    return launch.world // split if launch.world % split == 0 else None


def _micro_batches(launch: MegatronLaunch) -> int | None:
    replicas = _replicas(launch)
    total, size = launch.get("global_batch_size"), launch.get("micro_batch_size")
    if not replicas or not total or not size or total % (replicas * size):
        return None
    return int(total // (replicas * size))
