"""Knobs of a Megatron layout, and candidates as rows of columns and back.

The knobs of the lattice stand in every candidate. The others act off their default alone: there
they are in a candidate, and what the lattice lays out has none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
_SHARE = 1_000_000
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


def _off(
    name: str, acts: Callable[[Knobs, Context], bool] | None = None
) -> Callable[[Knobs, Context], bool]:
    """Acting off the default alone, and where `acts` says so."""

    def answer(values: Knobs, context: Context) -> bool:
        is_off = values[name] != KNOBS[name].default
        return is_off and (acts is None or acts(values, context))

    return answer


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
    name = f"{end}_stage_layers"
    return Knob(
        name=name,
        group="layout",
        default=0,
        maximum=10_000,
        scope="with pp above 1",
        acts=_off(name, lambda values, _: int(values["pp"]) > 1),
        help=f"layers of the {end} pipeline stage; 0: as many as the others have",
        source=f"{_TRANSFORMER}: num_layers_in_{end}_pipeline_stage",
    )


def _overlap(name: str, text: str, scope: str, source: str, **where: KnobValue) -> Knob:
    def acts(values: Knobs, _: Context) -> bool:
        return all(values[other] == value for other, value in where.items())

    return Knob(
        name=name,
        group="overlap",
        default=True,
        scope=scope,
        acts=_off(name, acts),
        help=text,
        source=source,
    )


_MORE = (
    Knob(
        name="stages",
        group="layout",
        default="even",
        choices=("even", "balanced"),
        pattern=r"E[EtmL|()*0-9, ]*L",
        pattern_words="a layout such as Et|(tt|)*30mL",
        scope="with pp above 1",
        acts=_off("stages", lambda values, _: int(values["pp"]) > 1),
        fold=_same_stages,
        help="which layers a pipeline stage has: as many as the others; so many that all have as "
        "much work, the head and layers that predict further tokens counted; or a layout",
        source=f"{_TRANSFORMER}: pipeline_model_parallel_layout",
    ),
    _stage("first"),
    _stage("last"),
    Knob(
        name="etp",
        group="layout",
        default=0,
        maximum=_HIGHEST,
        scope="for a mixture of experts, off tp",
        acts=_off(
            "etp", lambda values, at: at.model.n_experts > 1 and values["etp"] != values["tp"]
        ),
        help="tensor parallel degree of the experts; 0: as tp",
        source=f"{_PARALLEL}: expert_tensor_parallel_size",
    ),
    Knob(
        name="dispatcher",
        group="layout",
        default=DISPATCHERS[0],
        choices=DISPATCHERS,
        needs_cuda=("deepep", "hybridep"),
        scope="for a mixture of experts, off alltoall",
        acts=_off("dispatcher", _has_experts),
        help="how tokens reach their experts: alltoall sends a row for each expert; deepep and "
        "hybridep, which are packages of their own, send a token once to each rank or node; "
        "allgather sends all tokens to all",
        source=f"{_TRANSFORMER}: moe_token_dispatcher_type, moe_flex_dispatcher_backend",
    ),
    Knob(
        name="cp_kind",
        group="layout",
        default=CP_KINDS[0],
        choices=CP_KINDS,
        needs_cuda=CP_KINDS[1:],
        scope="with cp above 1",
        acts=_off("cp_kind", lambda values, _: int(values["cp"]) > 1),
        help="how context parallel ranks exchange keys and values: from rank to rank beside the "
        "attention; heads for tokens; or all gathered before it",
        source=f"{_TRANSFORMER}: cp_comm_type",
    ),
    Knob(
        name="order",
        group="layout",
        default=ORDERS[0],
        choices=ORDERS,
        scope="with pp and dp above 1",
        acts=_off("order", _has_stages_and_replicas),
        help="axes of the ranks, the nearest first: by default a stage's replicas are nearer to "
        "one another than the stages of a pipeline",
        source="megatron/core/parallel_state.py: order; --use-tp-pp-dp-mapping",
    ),
    Knob(
        name="fsdp",
        group="sharding",
        default=FSDP[0],
        choices=FSDP,
        needs_cuda=FSDP[1:],
        scope="with distributed_optimizer",
        acts=_off("fsdp"),
        help="what Megatron's FSDP shards: optimizer states, gradients as well, parameters as "
        "well",
        source=f"{_DATA}: data_parallel_sharding_strategy; {_ARGUMENTS}: use_megatron_fsdp",
    ),
    Knob(
        name="fsdp_double_buffer",
        group="sharding",
        default=False,
        needs_cuda=(True,),
        scope="with fsdp",
        acts=_off("fsdp_double_buffer", lambda values, _: "fsdp" in values),
        help="whether FSDP gathers into two buffers that stay, in place of new memory for each "
        "layer",
        source=f"{_DATA}: fsdp_double_buffer",
    ),
    Knob(
        name="adam_moments",
        group="precision",
        default=MOMENTS[0],
        choices=MOMENTS,
        needs_cuda=MOMENTS[1:],
        scope="with distributed_optimizer",
        acts=_off("adam_moments"),
        changes_training="Adam's moments are rounded to 16 bits",
        help="precision of Adam's moments: the precision-aware optimizer",
        source=f"{_OPTIMIZER}: use_precision_aware_optimizer, exp_avg_dtype, exp_avg_sq_dtype",
    ),
    Knob(
        name="main_grads",
        group="precision",
        default=GRADIENTS[0],
        choices=GRADIENTS,
        scope="for a job in bf16",
        acts=_off("main_grads"),
        changes_training="sums of gradients are rounded to 16 bits",
        help="precision in which gradients are summed over micro-batches and reduced",
        source=f"{_ARGUMENTS}: grad_reduce_in_bf16",
    ),
    Knob(
        name="optimizer_offload",
        group="memory",
        default=0.0,
        maximum=1.0,
        needs_cuda=(1.0,),
        scope="with distributed_optimizer",
        acts=_off("optimizer_offload"),
        help="share of the optimizer's states that lie on the host, where they are updated",
        source=f"{_OPTIMIZER}: optimizer_cpu_offload, optimizer_offload_fraction",
    ),
    Knob(
        name="optimizer_offload_overlap",
        group="memory",
        default=False,
        needs_cuda=(True,),
        scope="with optimizer_offload",
        acts=_off("optimizer_offload_overlap", lambda values, _: "optimizer_offload" in values),
        help="whether gradients and parameters go to the host and back while it updates",
        source=f"{_OPTIMIZER}: overlap_cpu_optimizer_d2h_h2d",
    ),
    Knob(
        name="activation_offload",
        group="memory",
        default=0,
        maximum=10_000,
        scope="without recompute and pipelines, on GPUs",
        acts=_off("activation_offload"),
        help="layers whose kept activations go to the host",
        source=f"{_TRANSFORMER}: cpu_offloading_num_layers",
    ),
    Knob(
        name="offload_modules",
        group="memory",
        default=OFFLOADED[0],
        choices=OFFLOADED,
        needs_cuda=OFFLOADED[1:],
        acts=_off("offload_modules"),
        help="modules of each layer whose inputs go to the host; joined by +",
        source=f"{_TRANSFORMER}: fine_grained_activation_offloading, offload_modules",
    ),
    Knob(
        name="recompute_modules",
        group="memory",
        default=MODULES[0],
        choices=MODULES,
        pattern="({0})(\\+({0}))*".format("|".join(MODULES)),
        pattern_words="several joined by +",
        needs_cuda=("moe_act",),
        scope="with recompute=selective",
        acts=_off("recompute_modules", lambda values, _: values["recompute"] == "selective"),
        fold=_in_order,
        help="modules that are computed again; joined by +",
        source=f"{_TRANSFORMER}: recompute_modules",
    ),
    _overlap(
        "overlap_grad_reduce",
        "whether gradients are reduced while the backward pass runs",
        "always",
        f"{_DATA}: overlap_grad_reduce",
    ),
    _overlap(
        "overlap_param_gather",
        "whether updated parameters are gathered while the forward pass runs",
        "with distributed_optimizer",
        f"{_DATA}: overlap_param_gather",
        distributed_optimizer=True,
    ),
    Knob(
        name="overlap_p2p",
        group="overlap",
        default=True,
        scope="with vp above 1",
        acts=_off("overlap_p2p", lambda values, _: int(values["vp"]) > 1),
        help="whether pipeline stages send while they compute",
        source=f"{_PARALLEL}: overlap_p2p_comm",
    ),
    Knob(
        name="overlap_experts",
        group="overlap",
        default=False,
        scope="with ep above 1, and vp above 1 in a pipeline",
        acts=_off("overlap_experts", _has_experts),
        help="whether tokens go to experts and back while layers of another micro-batch compute",
        source=f"{_PARALLEL}: overlap_moe_expert_parallel_comm",
    ),
    Knob(
        name="delay_weight_grads",
        group="overlap",
        default=False,
        needs_cuda=(True,),
        scope="with overlap_experts",
        acts=_off("delay_weight_grads", _has_experts),
        help="whether gradients of weights are computed apart, beside what experts send",
        source=f"{_PARALLEL}: delay_wgrad_compute",
    ),
    Knob(
        name="overlap_shared_experts",
        group="overlap",
        default=False,
        scope="with shared experts and dispatcher=alltoall",
        acts=_off("overlap_shared_experts", _has_experts),
        help="whether shared experts compute while tokens go to the others and back",
        source=f"{_TRANSFORMER}: moe_shared_expert_overlap",
    ),
    Knob(
        name="nccl_ub",
        group="overlap",
        default=False,
        needs_cuda=(True,),
        acts=_off("nccl_ub"),
        help="whether NCCL sends gradients and parameters from buffers that are registered with "
        "it, by fewer of the processors that layers compute on",
        source=f"{_DATA}: nccl_ub",
    ),
    Knob(
        name="fused_experts",
        group="compute",
        default=False,
        needs_cuda=(True,),
        scope="for a mixture of experts, with fp8_recipe=mxfp8",
        acts=_off("fused_experts", _has_experts),
        help="whether an expert's products, its activation and the casts to fp8 are one kernel, "
        "of Transformer Engine 2.14 on Blackwell",
        source=f"{_TRANSFORMER}: use_transformer_engine_op_fuser",
    ),
    Knob(
        name="tp_comm_overlap",
        group="overlap",
        default=False,
        needs_cuda=(True,),
        scope="with sequence_parallel",
        acts=_off("tp_comm_overlap"),
        help="whether tensor parallel communication runs beside the products it belongs to",
        source=f"{_PARALLEL}: tp_comm_overlap",
    ),
    Knob(
        name="cuda_graphs",
        group="overlap",
        default=GRAPHS[0],
        choices=GRAPHS,
        needs_cuda=GRAPHS[1:],
        acts=_off("cuda_graphs"),
        asks="samples of one length",
        help="parts of a layer whose kernels are started at once, by CUDA graphs of Transformer "
        "Engine",
        source=f"{_TRANSFORMER}: cuda_graph_impl, cuda_graph_scope",
    ),
    Knob(
        name="fp4",
        group="precision",
        default=False,
        needs_cuda=(True,),
        acts=_off("fp4"),
        changes_training="layers compute their products in fp4",
        help="whether inputs of products are in nvfp4",
        source=f"{_TRANSFORMER}: fp4, fp4_recipe",
    ),
    Knob(
        name="fp8",
        group="precision",
        default=FP8[0],
        choices=FP8,
        needs_cuda=FP8[1:],
        acts=_off("fp8"),
        changes_training="layers compute their products in fp8",
        asks="Transformer Engine",
        help="format of the products' inputs; hybrid: gradients in e5m2",
        source=f"{_TRANSFORMER}: fp8",
    ),
    Knob(
        name="fp8_recipe",
        group="precision",
        default=FP8_RECIPES[0],
        choices=FP8_RECIPES,
        needs_cuda=FP8_RECIPES[1:],
        scope="with fp8",
        acts=_off("fp8_recipe", _in_fp8),
        changes_training="layers compute their products in fp8",
        asks="Transformer Engine",
        help="how the scales of fp8 are chosen",
        source=f"{_TRANSFORMER}: fp8_recipe",
    ),
    Knob(
        name="fp8_param_gather",
        group="precision",
        default=False,
        needs_cuda=(True,),
        scope="with fp8 and distributed_optimizer",
        acts=_off("fp8_param_gather", _in_fp8),
        changes_training="parameters are rounded to fp8",
        help="whether parameters are kept and gathered in fp8",
        source=f"{_TRANSFORMER}: fp8_param",
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
    return round(_SHARE * float(value)) if knob.kind == "float" else int(value)


def value_of(knob: Knob, code: int) -> KnobValue:
    """The value of a number in its knob's column."""
    if (values := _VALUES.get(knob.name)) is not None:
        return values.text(code)
    if knob.choices:
        return knob.choices[code]
    if knob.kind == "bool":
        return bool(knob.default) != bool(code)
    return code / _SHARE if knob.kind == "float" else code


def columns_of(task: LayoutTask, candidates: Sequence[Candidate]) -> dict[str, Counts]:
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
    return LayoutRows(task=task, columns=columns_of(task, candidates))


def at_default(count: int) -> dict[str, Counts]:
    """Columns of so many layouts in which none of `MORE_KNOBS` is off its default."""
    zeros = np.broadcast_to(np.int64(0), (count,))
    return dict.fromkeys(MORE_KNOBS, zeros)
