"""Knobs of a Megatron layout, and candidates as rows of columns and back.

The knobs of the lattice stand in every candidate. The others act off their default alone: there
they are in a candidate, and what the lattice lays out has none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from autotune.contract import KnobValue
from autotune.cost.plans import Recompute
from autotune.engines.megatron.choices import (
    CP_KINDS,
    DISPATCHERS,
    FP8,
    FP8_RECIPES,
    FSDP,
    GRADIENTS,
    GRAPHS,
    LAYOUTS,
    MODULES,
    MOMENTS,
    OFFLOADED,
    ORDERS,
    RECOMPUTED,
    Values,
)
from autotune.engines.megatron.layout_task import Counts, LayoutRows, LayoutTask
from autotune.engines.megatron.stages import (
    balanced_layers,
    even_layers,
    layers_in,
    stages_of,
    work_of,
)
from autotune.space.candidate import Candidate
from autotune.space.knob import Catalogue, Context, Knob, Knobs
from autotune.space.rows import CandidateRows
from autotune.space.table import Table, table_of

RECOMPUTE = {"none": Recompute.NONE, "selective": Recompute.SELECTIVE, "full": Recompute.FULL}
_BLOCK = "block_"
_HIGHEST = 2**31 - 1
SHARE = 1_000_000
"""A share stands in a column of whole numbers in millionths."""
_PARALLEL = "megatron/core/model_parallel_config.py"
_TRANSFORMER = "megatron/core/transformer/transformer_config.py"
_DATA = "megatron/core/distributed/distributed_data_parallel_config.py"
_OPTIMIZER = "megatron/core/optimizer/optimizer_config.py"
_ARGUMENTS = "megatron/training/arguments.py"


def _degree(name: str, text: str, *, is_always_shown: bool = False) -> Knob:
    return Knob(
        name=name,
        group="layout",
        default=1,
        minimum=1,
        maximum=_HIGHEST,
        is_always_shown=is_always_shown,
        help=text,
        source=_PARALLEL,
    )


_LATTICE = (
    _degree("tp", "tensor parallel degree", is_always_shown=True),
    _degree("pp", "pipeline parallel degree", is_always_shown=True),
    _degree("vp", "interleaved model chunks of a pipeline rank"),
    Knob(
        name="ends_as_layers",
        group="layout",
        default=False,
        help="whether embedding and loss count as a layer each where stages are cut",
        source=f"{_TRANSFORMER}: account_for_embedding_in_pipeline_split",
    ),
    _degree("cp", "context parallel degree"),
    _degree("ep", "expert parallel degree"),
    Knob(
        name="sequence_parallel",
        group="layout",
        default=False,
        help="whether norms are split over the tensor parallel ranks",
        source=f"{_PARALLEL}: sequence_parallel",
    ),
    Knob(
        name="micro_batch",
        group="layout",
        default=1,
        minimum=1,
        maximum=_HIGHEST,
        is_always_shown=True,
        help="samples per rank and forward pass",
        source="megatron/core/num_microbatches_calculator.py",
    ),
    Knob(
        name="distributed_optimizer",
        group="sharding",
        default=False,
        help="whether optimizer states are sharded",
        source="megatron/core/optimizer/distrib_optimizer.py",
    ),
    Knob(
        name="recompute",
        group="memory",
        default="none",
        choices=tuple(RECOMPUTE),
        pattern=r"block_[1-9]\d{0,8}",
        pattern_words="block_N",
        help="none, selective, full, or block_N: N layers of each chunk",
        source=f"{_TRANSFORMER}: recompute_granularity",
    ),
)


Acts = Callable[[Knobs, Context], bool]


def _more(
    name: str,
    group: str,
    values: KnobValue | tuple[KnobValue, ...],
    text: str,
    source: str,
    *,
    acts: Acts | None = None,
    on_gpu_alone: bool = False,
    **others: Any,
) -> Knob:
    """A knob that acts off its default alone, and where `acts` says so.

    `values` are its choices, the default first, or else its default; `others` are of `Knob`.
    """
    choices = values if isinstance(values, tuple) else ()
    default = choices[0] if choices else values
    assert not isinstance(default, tuple)

    def is_off(values: Knobs, context: Context) -> bool:
        return values[name] != default and (acts is None or acts(values, context))

    if on_gpu_alone:
        others["needs_cuda"] = choices[1:] or (type(default)(1),)
    return Knob(
        name=name,
        group=group,
        default=default,
        choices=choices,
        help=text,
        source=source,
        acts=is_off,
        **others,
    )


def _has_stages_and_replicas(values: Knobs, context: Context) -> bool:
    pp = int(values["pp"])
    return pp > 1 and context.world > pp * int(values["tp"]) * int(values["cp"])


def _in_fp8(values: Knobs, _: Context) -> bool:
    return values.get("fp8", FP8[0]) != FP8[0]


def _has_experts(_: Knobs, at: Context) -> bool:
    return at.model.n_experts > 1


def _same_stages(value: KnobValue, values: Knobs, at: Context) -> KnobValue:
    """A written layout by its name, where it is that of a name."""
    stages = stages_of(str(value)) if value not in ("even", "balanced") else None
    pp, vp, n_mtp_layers = int(values["pp"]), int(values["vp"]), at.model.n_mtp_layers
    if stages is None or len(stages) != pp * vp:
        return value
    if "".join(stages)[-n_mtp_layers - 1 :] != f"{'m' * n_mtp_layers}L":
        return value
    counts, n_layers = layers_in(stages), at.model.n_layers
    if n_layers % (pp * vp) == 0 and counts == even_layers(n_layers, pp, vp):
        return "even"
    is_balanced = counts == balanced_layers(work_of(at.model, at.seq_len), pp, vp)
    return "balanced" if is_balanced else value


def _in_order(value: KnobValue, _: Knobs, __: Context) -> KnobValue:
    return in_order(value)


def in_order(modules: KnobValue) -> str:
    """Modules that are joined by `+`, each once, in the order of the alphabet."""
    return "+".join(sorted({*str(modules).split("+")}))


def _stage(end: str) -> Knob:
    return _more(
        f"{end}_stage_layers",
        "layout",
        0,
        f"layers of the {end} pipeline stage; 0: as many as the others have",
        f"{_TRANSFORMER}: num_layers_in_{end}_pipeline_stage",
        acts=lambda values, _: int(values["pp"]) > 1,
        maximum=10_000,
        scope="with pp above 1",
    )


_MORE = (
    _more(
        "stages",
        "layout",
        ("even", "balanced"),
        "which layers a pipeline stage has: as many as the others; so many that all have as "
        "much work, the head and layers that predict further tokens counted; or a layout",
        f"{_TRANSFORMER}: pipeline_model_parallel_layout",
        acts=lambda values, _: int(values["pp"]) > 1,
        pattern=r"E[EtmL|()*0-9, ]*L",
        pattern_words="a layout such as Et|(tt|)*30mL",
        scope="with pp above 1",
        fold=_same_stages,
    ),
    _stage("first"),
    _stage("last"),
    _more(
        "etp",
        "layout",
        0,
        "tensor parallel degree of the experts; 0: as tp",
        f"{_PARALLEL}: expert_tensor_parallel_size",
        acts=lambda values, at: at.model.n_experts > 1 and values["etp"] != values["tp"],
        maximum=_HIGHEST,
        scope="for a mixture of experts, off tp",
    ),
    _more(
        "dispatcher",
        "layout",
        DISPATCHERS,
        "how tokens reach their experts: alltoall sends a row for each expert; deepep and "
        "hybridep, which are packages of their own, send a token once to each rank or node; "
        "allgather sends all tokens to all",
        f"{_TRANSFORMER}: moe_token_dispatcher_type, moe_flex_dispatcher_backend",
        needs_cuda=("deepep", "hybridep"),
        acts=_has_experts,
        scope="for a mixture of experts, off alltoall",
    ),
    _more(
        "cp_kind",
        "layout",
        CP_KINDS,
        "how context parallel ranks exchange keys and values: from rank to rank beside the "
        "attention; heads for tokens; or all gathered before it",
        f"{_TRANSFORMER}: cp_comm_type",
        on_gpu_alone=True,
        acts=lambda values, _: int(values["cp"]) > 1,
        scope="with cp above 1",
    ),
    _more(
        "order",
        "layout",
        ORDERS,
        "axes of the ranks, the nearest first: by default a stage's replicas are nearer to "
        "one another than the stages of a pipeline",
        "megatron/core/parallel_state.py: order; --use-tp-pp-dp-mapping",
        acts=_has_stages_and_replicas,
        scope="with pp and dp above 1",
    ),
    _more(
        "fsdp",
        "sharding",
        FSDP,
        "what Megatron's FSDP shards: optimizer states, gradients as well, parameters as well",
        f"{_DATA}: data_parallel_sharding_strategy; {_ARGUMENTS}: use_megatron_fsdp",
        on_gpu_alone=True,
        scope="with distributed_optimizer",
    ),
    _more(
        "fsdp_double_buffer",
        "sharding",
        False,
        "whether FSDP gathers into two buffers that stay, in place of new memory for each layer",
        f"{_DATA}: fsdp_double_buffer",
        on_gpu_alone=True,
        acts=lambda values, _: "fsdp" in values,
        scope="with fsdp",
    ),
    _more(
        "adam_moments",
        "precision",
        MOMENTS,
        "precision of Adam's moments: the precision-aware optimizer",
        f"{_OPTIMIZER}: use_precision_aware_optimizer, exp_avg_dtype, exp_avg_sq_dtype",
        on_gpu_alone=True,
        scope="with distributed_optimizer",
        changes_training="Adam's moments are rounded to 16 bits",
    ),
    _more(
        "main_grads",
        "precision",
        GRADIENTS,
        "precision in which gradients are summed over micro-batches and reduced",
        f"{_ARGUMENTS}: grad_reduce_in_bf16",
        scope="for a job in bf16",
        changes_training="sums of gradients are rounded to 16 bits",
    ),
    _more(
        "optimizer_offload",
        "memory",
        0.0,
        "share of the optimizer's states that lie on the host, where they are updated",
        f"{_OPTIMIZER}: optimizer_cpu_offload, optimizer_offload_fraction",
        on_gpu_alone=True,
        maximum=1.0,
        scope="with distributed_optimizer",
    ),
    _more(
        "optimizer_offload_overlap",
        "memory",
        False,
        "whether gradients and parameters go to the host and back while it updates",
        f"{_OPTIMIZER}: overlap_cpu_optimizer_d2h_h2d",
        on_gpu_alone=True,
        acts=lambda values, _: "optimizer_offload" in values,
        scope="with optimizer_offload",
    ),
    _more(
        "activation_offload",
        "memory",
        0,
        "layers whose kept activations go to the host",
        f"{_TRANSFORMER}: cpu_offloading_num_layers",
        maximum=10_000,
        scope="without recompute and pipelines, on GPUs",
    ),
    _more(
        "offload_modules",
        "memory",
        OFFLOADED,
        "modules of each layer whose inputs go to the host; joined by +",
        f"{_TRANSFORMER}: fine_grained_activation_offloading, offload_modules",
        on_gpu_alone=True,
    ),
    _more(
        "recompute_modules",
        "memory",
        MODULES,
        "modules that are computed again; joined by +",
        f"{_TRANSFORMER}: recompute_modules",
        needs_cuda=("moe_act",),
        acts=lambda values, _: values["recompute"] == "selective",
        pattern="({0})(\\+({0}))*".format("|".join(MODULES)),
        pattern_words="several joined by +",
        scope="with recompute=selective",
        fold=_in_order,
    ),
    _more(
        "overlap_grad_reduce",
        "overlap",
        True,
        "whether gradients are reduced while the backward pass runs",
        f"{_DATA}: overlap_grad_reduce",
    ),
    _more(
        "overlap_param_gather",
        "overlap",
        True,
        "whether updated parameters are gathered while the forward pass runs",
        f"{_DATA}: overlap_param_gather",
        acts=lambda values, _: values["distributed_optimizer"] is True,
        scope="with distributed_optimizer",
    ),
    _more(
        "overlap_p2p",
        "overlap",
        True,
        "whether pipeline stages send while they compute",
        f"{_PARALLEL}: overlap_p2p_comm",
        acts=lambda values, _: int(values["vp"]) > 1,
        scope="with vp above 1",
    ),
    _more(
        "overlap_experts",
        "overlap",
        False,
        "whether tokens go to experts and back while layers of another micro-batch compute",
        f"{_PARALLEL}: overlap_moe_expert_parallel_comm",
        acts=_has_experts,
        scope="with ep above 1, and vp above 1 in a pipeline",
    ),
    _more(
        "delay_weight_grads",
        "overlap",
        False,
        "whether gradients of weights are computed apart, beside what experts send",
        f"{_PARALLEL}: delay_wgrad_compute",
        on_gpu_alone=True,
        acts=_has_experts,
        scope="with overlap_experts",
    ),
    _more(
        "overlap_shared_experts",
        "overlap",
        False,
        "whether shared experts compute while tokens go to the others and back",
        f"{_TRANSFORMER}: moe_shared_expert_overlap",
        acts=_has_experts,
        scope="with shared experts and dispatcher=alltoall",
    ),
    _more(
        "nccl_ub",
        "overlap",
        False,
        "whether NCCL sends gradients and parameters from buffers that are registered with "
        "it, by fewer of the processors that layers compute on",
        f"{_DATA}: nccl_ub",
        on_gpu_alone=True,
    ),
    _more(
        "fused_experts",
        "compute",
        False,
        "whether an expert's products, its activation and the casts to fp8 are one kernel, "
        "of Transformer Engine 2.14 on Blackwell",
        f"{_TRANSFORMER}: use_transformer_engine_op_fuser",
        on_gpu_alone=True,
        acts=_has_experts,
        scope="for a mixture of experts, with fp8_recipe=mxfp8",
    ),
    _more(
        "tp_comm_overlap",
        "overlap",
        False,
        "whether tensor parallel communication runs beside the products it belongs to",
        f"{_PARALLEL}: tp_comm_overlap",
        on_gpu_alone=True,
        scope="with sequence_parallel",
    ),
    _more(
        "cuda_graphs",
        "overlap",
        GRAPHS,
        "parts of a layer whose kernels are started at once, by CUDA graphs of Transformer Engine",
        f"{_TRANSFORMER}: cuda_graph_impl, cuda_graph_scope",
        on_gpu_alone=True,
        asks="samples of one length",
    ),
    _more(
        "fp4",
        "precision",
        False,
        "whether inputs of products are in nvfp4",
        f"{_TRANSFORMER}: fp4, fp4_recipe",
        on_gpu_alone=True,
        changes_training="layers compute their products in fp4",
    ),
    _more(
        "fp8",
        "precision",
        FP8,
        "format of the products' inputs; hybrid: gradients in e5m2",
        f"{_TRANSFORMER}: fp8",
        on_gpu_alone=True,
        changes_training="layers compute their products in fp8",
        asks="Transformer Engine",
    ),
    _more(
        "fp8_recipe",
        "precision",
        FP8_RECIPES,
        "how the scales of fp8 are chosen",
        f"{_TRANSFORMER}: fp8_recipe",
        on_gpu_alone=True,
        acts=_in_fp8,
        scope="with fp8",
        changes_training="layers compute their products in fp8",
        asks="Transformer Engine",
    ),
    _more(
        "fp8_param_gather",
        "precision",
        False,
        "whether parameters are kept and gathered in fp8",
        f"{_TRANSFORMER}: fp8_param",
        on_gpu_alone=True,
        acts=_in_fp8,
        scope="with fp8 and distributed_optimizer",
        changes_training="parameters are rounded to fp8",
    ),
)
KNOBS: Catalogue = {knob.name: knob for knob in (*_LATTICE, *_MORE)}
"""Knobs in the order in which they are shown."""
LATTICE_KNOBS: Catalogue = {knob.name: knob for knob in _LATTICE}
"""Those whose values the lattice lays out."""
MORE_KNOBS: Catalogue = {knob.name: knob for knob in _MORE}
"""Those that a space names."""
_PLAIN = tuple(name for name in LATTICE_KNOBS if name != "recompute")


def knobs_of(row: Mapping[str, int]) -> dict[str, KnobValue]:
    """The candidate of a row of columns."""
    found: dict[str, KnobValue] = {
        name: bool(row[name]) if KNOBS[name].kind == "bool" else row[name] for name in _PLAIN
    }
    found["recompute"] = next(name for name, kind in RECOMPUTE.items() if kind == row["recompute"])
    if row["recompute_layers"]:
        found["recompute"] = f"{_BLOCK}{row['recompute_layers']}"
    more = {name: value_of(knob, row[name]) for name, knob in MORE_KNOBS.items() if row[name]}
    return {**found, **more}


_VALUES = {"stages": LAYOUTS, "recompute_modules": Values(*RECOMPUTED)}
"""Knob -> the numbers of its values, where they are too many to list."""


def code_of(knob: Knob, value: KnobValue) -> int:
    """Number of a value in its knob's column; 0: the default."""
    if (values := _VALUES.get(knob.name)) is not None:
        return values.number(in_order(value) if values is not LAYOUTS else str(value))
    if knob.choices:
        return knob.choices.index(value)
    if knob.kind == "bool":
        return int(value != knob.default)
    return round(SHARE * float(value)) if knob.kind == "float" else int(value)


def value_of(knob: Knob, code: int) -> KnobValue:
    """The value of a number in its knob's column."""
    if (values := _VALUES.get(knob.name)) is not None:
        return values.text(code)
    if knob.choices:
        return knob.choices[code]
    if knob.kind == "bool":
        return bool(knob.default) != bool(code)
    return code / SHARE if knob.kind == "float" else code


def columns_of(candidates: Sequence[Candidate]) -> dict[str, Counts]:
    """Candidates, legal or not, as columns, in their order."""
    if isinstance(candidates, CandidateRows):
        table = candidates.table
        world = np.full(len(candidates), candidates.world, np.int64)
        batch = np.full(len(candidates), candidates.global_batch, np.int64)
    else:
        table = table_of([candidate.values for candidate in candidates])
        world = np.array([candidate.world for candidate in candidates], np.int64)
        batch = np.array([candidate.global_batch for candidate in candidates], np.int64)
    columns = {name: _column(table, KNOBS[name], int) for name in _PLAIN}
    recompute = KNOBS["recompute"]
    columns["recompute"] = _column(table, recompute, _recompute_kind)
    columns["recompute_layers"] = _column(table, recompute, _recompute_layers)
    for name, knob in MORE_KNOBS.items():
        columns[name] = _column(table, knob, partial(code_of, knob))
    columns["dp"] = np.maximum(1, world // (columns["tp"] * columns["pp"] * columns["cp"]))
    per_step = columns["micro_batch"] * columns["dp"]
    columns["grad_accum"] = np.maximum(1, batch // per_step)
    return columns


def _column(table: Table, knob: Knob, number: Callable[[KnobValue], int]) -> Counts:
    """A number per row of a knob's value; where it does not act, that of its default."""
    levels, codes = table.levels.get(knob.name, (None,)), table.codes.get(knob.name)
    numbers = np.array([number(knob.default if v is None else v) for v in levels], np.int64)
    found: Counts = np.full(table.n, numbers[0]) if codes is None else numbers[codes]
    return found


def _recompute_kind(value: KnobValue) -> int:
    return int(RECOMPUTE.get(str(value), Recompute.FULL))


def _recompute_layers(value: KnobValue) -> int:
    text = str(value)
    return int(text.removeprefix(_BLOCK)) if text.startswith(_BLOCK) else 0


def rows_of(task: LayoutTask, candidates: Sequence[Candidate]) -> LayoutRows:
    """Candidates, legal or not, as rows that rules judge, in their order."""
    return LayoutRows(task=task, columns=columns_of(candidates))


def at_default(count: int) -> dict[str, Counts]:
    """Columns of so many layouts in which none of `MORE_KNOBS` is off its default."""
    zeros = np.broadcast_to(np.int64(0), (count,))
    return dict.fromkeys(MORE_KNOBS, zeros)
