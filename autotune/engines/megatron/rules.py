"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, Signature, signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.plans import Recompute
from autotune.engines.megatron.choices import OFFLOADED, RECOMPUTED, has
from autotune.space.rule import Finding, Rule, UnknownFactError

Counts = NDArray[np.int64]
Columns = Mapping[str, Counts]
"""Column name -> a whole number per layout; switches are 0 and 1."""
Truth = NDArray[np.bool_]


_NAMED_VALUE = re.compile(r"\b(\w+) \{\1\}")
_VALUE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, kw_only=True)
class LayoutTask:
    """The model and the devices that are laid out: all that the rules look at."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_hidden: int
    """Width of one MLP, or of one expert."""
    n_experts: int
    """0 for a dense model."""
    seq_len: int
    max_seq_len: int
    """Longest sequence that position embeddings allow; 0: there is no limit."""
    global_batch: int
    world: int
    domain: int
    """Devices that reach each other without the network."""
    fused_attention: bool
    """Whether a fused attention kernel runs on the device at the job's precision."""
    vp_group: int = 0
    """Micro-batches of a group of interleaved chunks; 0: as many as the pipeline has stages."""
    shares_kv_heads: bool = True
    """Whether several tensor parallel ranks may have the same key and value head."""
    on_cpu: bool = False
    """Whether the ranks have no GPU."""
    without_te: bool = False
    """Whether the ranks have a GPU, and no Transformer Engine is installed for it."""
    has_torch_norms: bool = False
    """Whether the norms on a GPU are torch's, which know no sequence parallelism: those of
    Transformer Engine do, and Apex's LayerNorm."""
    in_fp32: bool = False
    """Whether the job trains in 32 bits."""
    has_fp8: bool = True
    """Whether the device computes products in fp8."""
    lacking: frozenset[str] = frozenset()
    """Knobs whose flag the release of Megatron Core lacks."""
    release: str = ""
    """That release."""

    @staticmethod
    def may_share_kv_heads(release: str) -> bool:
        """The same for a release of Megatron Core: 0.16 is the first that does.

        Source: megatron/core/transformer/transformer_config.py of 0.15 and 0.16.
        """
        return not release.startswith(("0.14", "0.15"))


@dataclass(frozen=True, kw_only=True, eq=False)
class LayoutRows:
    """Layouts in columns, with what they lay out."""

    task: LayoutTask
    columns: Columns

    def row(self, index: int) -> dict[str, int]:
        """The columns of one layout."""
        return {name: int(column[index]) for name, column in self.columns.items()}


def chunk_layers(task: LayoutTask, rows: Columns) -> Counts:
    """Layers of one model chunk of a pipeline rank, with embedding and loss where they count."""
    return (task.n_layers + 2 * rows["ends_as_layers"]) // (rows["pp"] * rows["vp"])


def middle_layers(
    n_layers: int, pp: Counts, first_stage_layers: Counts, last_stage_layers: Counts
) -> tuple[Counts, Counts]:
    """Layers that stages share evenly, since nobody set theirs, and how many such stages."""
    stages = pp - (first_stage_layers > 0) - (last_stage_layers > 0)
    return n_layers - first_stage_layers - last_stage_layers, stages


def stage_layers(task: LayoutTask, row: Mapping[str, int]) -> list[int]:
    """Layers of each pipeline stage of a legal layout that `ends_as_layers` does not shift."""
    first, last = row["first_stage_layers"], row["last_stage_layers"]
    rest, stages = task.n_layers - first - last, row["pp"] - (first > 0) - (last > 0)
    middle = [rest // stages] * stages if stages else []
    return [*filter(None, [first]), *middle, *filter(None, [last])]


def _rule(
    name: str, holds: Callable[..., Any], message: str, fix: str, source: str
) -> Rule[LayoutRows]:
    """A rule on whole columns.

    `holds` says which layouts are allowed; its parameters name the fields of the task and the
    columns that it gets. In `message` (which values clash) and `fix` (the nearest change that
    makes it legal), `{tp}` stands for a value of the layout or of the task.
    """
    wanted = tuple(signature(holds).parameters)

    def answer(rows: LayoutRows) -> Truth:
        known = {**vars(rows.task), **rows.columns}
        if unknown := set(wanted) - known.keys():
            raise UnknownFactError(", ".join(sorted(unknown)))
        found: Truth = holds(*(known[each] for each in wanted))
        return found

    def check(rows: LayoutRows) -> Finding | None:
        if answer(rows)[0]:
            return None
        said = {**vars(rows.task), **rows.row(0)}
        return Finding(message=message.format_map(said), advice=fix.format_map(said))

    reads = tuple(each for each in wanted if each not in LayoutTask.__dataclass_fields__)
    return Rule(
        name=name,
        check=check,
        witnesses=(),
        source=source,
        says=_in_general(f"{message}. Fix: {fix}."),
        reads=reads,
        holds=answer,
    )


def _in_general(text: str) -> str:
    """A message without a layout's values: `tp {tp}` is `tp`, `{tp} ranks` is `tp ranks`."""
    return _VALUE.sub(r"\1", _NAMED_VALUE.sub(r"\1", text))


_ARGUMENTS = "megatron/training/arguments.py, validate_args"
_CONFIG = "megatron/core/transformer/transformer_config.py, __post_init__"
ON_GPU_ALONE = (
    *("fsdp", "optimizer_offload", "activation_offload", "offload_modules"),
    *("tp_comm_overlap", "fp8"),
)
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE = {
    "optimizer_offload": "megatron/core/optimizer/__init__.py: bias_correction, which "
    "torch's Adam does not take",
    "activation_offload": "megatron/core/transformer/transformer_block.py: "
    "get_cpu_offload_context",
    "offload_modules": "megatron/core/pipeline_parallel/fine_grained_activation_offload.py",
    "tp_comm_overlap": "megatron/training/initialize.py: _initialize_tp_communicators",
    "fp8": "megatron/core/fp8_utils.py: HAVE_TE",
}
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
_INSTALL_TE = ", or install transformer-engine for your GPUs"
OF_SOME_RELEASES = ("activation_offload", "offload_modules")
"""Knobs whose flag not every release has that is known."""


def _splits_unevenly(n_layers: int, pp: Counts, vp: Counts, first: Counts, last: Counts) -> Truth:
    rest, stages = middle_layers(n_layers, pp, first, last)
    is_even = (first == 0) & (last == 0)
    chunks = np.maximum(1, stages * vp)
    middle = np.where(stages > 0, (rest > 0) & (rest % chunks == 0), rest == 0)
    split: Truth = is_even | (pp == 1) | middle & (first % vp == 0) & (last % vp == 0)
    return split


def _fills_groups(grad_accum: Counts, group: int, pp: Counts) -> Truth:
    rest = grad_accum % max(1, group)
    fills: Truth = (pp <= group) & (group <= grad_accum) & ((rest == 0) | (rest >= pp))
    return fills


def _is_default_unless(knob: str, fact: str) -> Callable[..., Truth]:
    """The knob is at its default where the fact of the task holds."""
    return _with_parameters(
        lambda code, holds: (code == 0) | np.full(code.shape, not holds), knob, fact
    )


def _recomputes_no_norm_unless(fact: str) -> Callable[..., Truth]:
    """No norm is computed again where the fact of the task holds."""
    return _with_parameters(
        lambda recompute, modules, holds: (
            (recompute != Recompute.SELECTIVE)
            | ~has("layernorm", RECOMPUTED, modules)
            | (not holds)
        ),
        *("recompute", "recompute_modules", fact),
    )


def _is_default_where_lacking(knob: str) -> Callable[..., Truth]:
    return _with_parameters(
        lambda code, lacking: (code == 0) | np.full(code.shape, knob not in lacking),
        knob,
        "lacking",
    )


def _with_parameters(holds: Callable[..., Truth], *names: str) -> Callable[..., Truth]:
    """A function under other names of its parameters, by which a rule finds its values."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    named = [Parameter(name, kind) for name in names]
    holds.__signature__ = Signature(named)  # type: ignore[attr-defined]
    return holds


RULES: tuple[Rule[LayoutRows], ...] = (
    _rule(
        "sequence.positions",
        lambda tp, seq_len, max_seq_len: np.full(
            tp.shape, not max_seq_len or seq_len <= max_seq_len
        ),
        "seq_len {seq_len} is above the model's {max_seq_len} positions",
        "take a seq_len of at most {max_seq_len}",
        "megatron/training/arguments.py, validate_args: max_position_embeddings",
    ),
    _rule(
        "tp.heads",
        lambda n_heads, tp: n_heads % tp == 0,
        "n_heads {n_heads} is no multiple of tp {tp}",
        "take a tp that divides {n_heads}",
        "megatron/core/transformer/transformer_config.py: num_attention_heads",
    ),
    _rule(
        "tp.kv_heads",
        lambda n_kv_heads, tp, shares_kv_heads: (
            (n_kv_heads % tp == 0) | (shares_kv_heads & (tp % n_kv_heads == 0))
        ),
        "n_kv_heads {n_kv_heads} is no multiple of tp {tp}, and no divisor of it, which counts "
        "from Megatron Core 0.16 on",
        "take a tp that divides {n_kv_heads}, or from 0.16 on a multiple of it",
        "megatron/core/transformer/transformer_config.py: num_query_groups",
    ),
    _rule(
        "tp.ffn",
        lambda ffn_hidden, tp: ffn_hidden % tp == 0,
        "the MLP's width {ffn_hidden} is no multiple of tp {tp}",
        "take a tp that divides {ffn_hidden}",
        "megatron/core/tensor_parallel/layers.py, ColumnParallelLinear: divide",
    ),
    _rule(
        "tp.domain",
        lambda tp, domain: tp <= domain,
        "tp {tp} reaches beyond the {domain} devices that are joined without the network",
        "take a tp of at most {domain}",
        "ours: what NVIDIA recommends in megatron/core/transformer/moe/README.md",
    ),
    _rule(
        "pp.layers",
        lambda pp, n_layers: pp <= n_layers,
        "pp {pp} is more than the model's {n_layers} layers",
        "take a pp of at most {n_layers}",
        "ours: every stage has a layer",
    ),
    _rule(
        "world.product",
        lambda world, tp, pp, cp: world % (tp * pp * cp) == 0,
        "world {world} is no multiple of tp {tp} x pp {pp} x cp {cp}",
        "take degrees whose product divides {world}",
        "megatron/training/arguments.py, validate_args: total_model_size",
    ),
    _rule(
        "cp.sequence",
        lambda cp, seq_len: (cp == 1) | (seq_len % (2 * cp) == 0),
        "seq_len {seq_len} is no multiple of 2 x cp {cp}",
        "take a cp of which twice divides {seq_len}",
        "megatron/training/arguments.py, validate_args: seq_length",
    ),
    _rule(
        "cp.fused_attention",
        lambda cp, fused_attention: (cp == 1) | fused_attention,
        "cp {cp} needs a fused attention kernel, which this device and precision lack",
        "take cp=1, or bf16 on a newer device",
        "megatron/core/transformer/dot_product_attention.py: context_parallel_size",
    ),
    _rule(
        "ep.experts",
        lambda ep, n_experts: (ep == 1) | (max(1, n_experts) % ep == 0),
        "n_experts {n_experts} is no multiple of ep {ep}",
        "take an ep that divides the number of experts; 1 for a dense model",
        "megatron/training/arguments.py, validate_args: expert_model_parallel_size",
    ),
    _rule(
        "ep.ranks",
        lambda world, tp, etp, pp, ep: world % (np.where(etp > 0, etp, tp) * pp * ep) == 0,
        "world {world} is no multiple of pp {pp} x ep {ep} x the experts' tensor parallel degree "
        "(etp {etp}, or where that is 0 tp {tp})",
        "take an ep that divides dp x cp, or a smaller etp",
        "megatron/core/parallel_state.py, initialize_model_parallel: the expert grid",
    ),
    _rule(
        "sequence_parallel.tp",
        lambda tp, sequence_parallel: (sequence_parallel == 0) | (tp > 1),
        "sequence_parallel splits over the tensor parallel ranks, and tp is 1",
        "take sequence_parallel=false, or a tp above 1",
        "megatron/core/model_parallel_config.py: sequence_parallel",
    ),
    _rule(
        "sequence_parallel.sequence",
        lambda seq_len, tp, cp, sequence_parallel: (
            (sequence_parallel == 0) | (seq_len // cp % tp == 0)
        ),
        "a rank's sequence, {seq_len} / cp {cp}, is no multiple of tp {tp}",
        "take sequence_parallel=false, or a tp that divides it",
        "megatron/core/tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    _rule(
        "sequence_parallel.experts",
        lambda n_experts, tp, sequence_parallel: (
            (sequence_parallel == 1) | (tp == 1) | (n_experts < 2)
        ),
        "a mixture of experts with tp {tp} trains only with sequence_parallel",
        "take sequence_parallel=true, or tp=1",
        "megatron/core/transformer/moe/moe_layer.py, MoELayer.forward",
    ),
    _rule(
        "vp.pipeline",
        lambda pp, vp: (vp == 1) | (pp > 1),
        "vp {vp} interleaves chunks of a pipeline, and pp is 1",
        "take vp=1, or a pp above 1",
        "megatron/training/arguments.py, validate_args: overlap_p2p_comm",
    ),
    _rule(
        "vp.layers",
        lambda pp, vp, n_layers: pp * vp <= n_layers,
        "pp {pp} x vp {vp} is more than the model's {n_layers} layers",
        "take a vp x pp of at most {n_layers}",
        "ours: every chunk has a layer",
    ),
    _rule(
        "pp.split",
        lambda n_layers, pp, vp, ends_as_layers, first_stage_layers, last_stage_layers: (
            ((n_layers + 2 * ends_as_layers) % (pp * vp) == 0)
            | (first_stage_layers > 0)
            | (last_stage_layers > 0)
        ),
        "{n_layers} layers, with ends_as_layers 2 more, do not split evenly into pp {pp} "
        "x vp {vp} chunks",
        "take a pp x vp that divides {n_layers}, or {n_layers} + 2 with ends_as_layers=true",
        "megatron/core/transformer/transformer_config.py: num_layers, "
        "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split",
    ),
    _rule(
        "pp.ends",
        lambda n_layers, pp, vp, ends_as_layers: (
            (ends_as_layers == 0) | (n_layers % (pp * vp) != 0)
        ),
        "{n_layers} layers split evenly into pp {pp} x vp {vp} chunks as they are",
        "take ends_as_layers=false",
        "ours: where both splits exist they are the same one",
    ),
    _rule(
        "batch.product",
        lambda global_batch, dp, micro_batch: global_batch % (micro_batch * dp) == 0,
        "global_batch {global_batch} is no multiple of micro_batch {micro_batch} x dp {dp}",
        "take a micro_batch and degrees that make micro_batch x dp divide {global_batch}",
        "megatron/core/num_microbatches_calculator.py: global_batch_size",
    ),
    _rule(
        "vp.micro_batches",
        lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | (grad_accum % pp == 0) | np.full(pp.shape, vp_group > 0)
        ),
        "interleaved chunks need a multiple of pp {pp} micro-batches, and there are {grad_accum}",
        "take vp=1, or a smaller micro_batch",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: microbatch_group_size_per_vp_stage, "
        "which is pp where nobody sets it",
    ),
    _rule(
        "vp.groups",
        lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | np.full(pp.shape, vp_group < 1) | _fills_groups(grad_accum, vp_group, pp)
        ),
        "interleaved chunks take groups of pp {pp} to {grad_accum} micro-batches, the last one "
        "too, and vp_group {vp_group} makes others of {grad_accum}",
        "take a group that divides {grad_accum}",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: final_microbatch_group_size",
    ),
    _rule(
        "distributed_optimizer.ranks",
        lambda dp, cp, distributed_optimizer: (distributed_optimizer == 0) | (dp * cp > 1),
        "distributed_optimizer shards over dp x cp ranks, and there is one",
        "take distributed_optimizer=false",
        "ours: the same run as without",
    ),
    _rule(
        "recompute.selective",
        lambda recompute, recompute_modules, fused_attention: (
            (recompute != Recompute.SELECTIVE) | (recompute_modules > 0) | (not fused_attention)
        ),
        "selective drops attention's scores, which the fused kernel never keeps",
        "take recompute=none, or full to save memory",
        "ours: slower than none, and no smaller. Korthikanti et al. (arXiv:2205.05198), "
        "section 5, for what it drops",
    ),
    _rule(
        "recompute.block",
        lambda n_layers, pp, vp, ends_as_layers, recompute, recompute_layers: (
            (recompute_layers == 0)
            | (recompute_layers > 0)
            & (recompute_layers < (n_layers + 2 * ends_as_layers) // (pp * vp))
            & (recompute == Recompute.FULL)
        ),
        "block_{recompute_layers} recomputes as many layers as a chunk has, or more",
        "take recompute=full, or fewer layers than one of the pp {pp} x vp {vp} chunks has",
        "megatron/core/recompute.py: recompute_num_layers, counted in each chunk",
    ),
    _rule(
        "uneven.pipeline",
        lambda pp, first_stage_layers, last_stage_layers: (
            (pp > 1) | ((first_stage_layers == 0) & (last_stage_layers == 0))
        ),
        "a stage of its own size needs a pipeline, and pp is 1",
        "leave first_stage_layers and last_stage_layers out",
        f"{_CONFIG}: num_layers_in_first_pipeline_stage",
    ),
    _rule(
        "uneven.split",
        lambda n_layers, pp, vp, first_stage_layers, last_stage_layers: _splits_unevenly(
            n_layers, pp, vp, first_stage_layers, last_stage_layers
        ),
        "{n_layers} layers less {first_stage_layers} of the first and {last_stage_layers} of the "
        "last stage do not split evenly over the other stages of pp {pp} x vp {vp} chunks",
        "take other numbers of layers, so that every chunk has as many as its neighbours",
        f"{_CONFIG}: num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage",
    ),
    _rule(
        "uneven.same",
        lambda n_layers, pp, first_stage_layers, last_stage_layers: (
            ((first_stage_layers == 0) & (last_stage_layers == 0))
            | (n_layers % pp != 0)
            | ((first_stage_layers != n_layers // pp) & (first_stage_layers > 0))
            | ((last_stage_layers != n_layers // pp) & (last_stage_layers > 0))
        ),
        "first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers} are "
        "what {n_layers} layers over pp {pp} have anyway",
        "leave them out",
        "ours: the same run as without",
    ),
    _rule(
        "uneven.ends",
        lambda ends_as_layers, first_stage_layers, last_stage_layers: (
            (ends_as_layers == 0) | ((first_stage_layers == 0) & (last_stage_layers == 0))
        ),
        "ends_as_layers beside a first or a last stage of its own size: Megatron takes one of the "
        "two ways to split",
        "take ends_as_layers=false",
        f"{_CONFIG}: account_for_embedding_in_pipeline_split",
    ),
    _rule(
        "uneven.block",
        lambda recompute_layers, first_stage_layers, last_stage_layers: (
            (recompute_layers == 0) | ((first_stage_layers == 0) & (last_stage_layers == 0))
        ),
        "block_{recompute_layers} counts in each chunk, and the stages have different sizes",
        "take recompute=full or none",
        "ours: a share of the layers of every stage",
    ),
    _rule(
        "etp.experts",
        lambda etp, n_experts, ffn_hidden: (
            (etp == 0) | ((n_experts > 1) & (ffn_hidden % np.maximum(1, etp) == 0))
        ),
        "etp {etp} splits the experts' width {ffn_hidden}, of {n_experts} experts",
        "take an etp that divides the width; 0 for a dense model",
        "megatron/core/transformer/moe/experts.py; tensor_parallel/layers.py: divide",
    ),
    _rule(
        "etp.replicas",
        lambda etp, ep: (etp == 0) | (ep > 1),
        "etp {etp} with ep {ep}: Megatron reduces gradients of experts over the replicas of the "
        "other layers unless ep is above 1, and these are other ranks",
        "take an ep above 1, or etp=0",
        "megatron/core/tensor_parallel/layers.py: expert_parallel, allreduce",
    ),
    _rule(
        "order.experts",
        lambda order, world, tp, pp, cp, ep, etp: (
            (order == 0) | (pp == 1) | (np.where(etp > 0, etp, tp) * ep == tp * cp)
        ),
        "with pipelines as the nearer axis, experts need as many replicas as the other layers",
        "take the default order, or an ep x etp of tp x cp",
        "megatron/core/parallel_state.py, initialize_model_parallel: pp-last rank ordering",
    ),
    _rule(
        "fsdp.sharded",
        lambda fsdp, distributed_optimizer: (fsdp == 0) | (distributed_optimizer == 1),
        "fsdp turns the distributed optimizer on",
        "take distributed_optimizer=true",
        f"{_ARGUMENTS}: use_megatron_fsdp",
    ),
    _rule(
        "fsdp.pipeline_chunks",
        lambda fsdp, vp: (fsdp == 0) | (vp == 1),
        "fsdp with vp {vp}: it gathers a layer at a time, and chunks interleave them",
        "take vp=1",
        "ours: Megatron's documentation shows fsdp with plain pipelines alone",
    ),
    _rule(
        "overlap.gather_needs_reduce",
        lambda distributed_optimizer, overlap_grad_reduce, overlap_param_gather: (
            (distributed_optimizer == 0) | (overlap_grad_reduce == 0) | (overlap_param_gather == 1)
        ),
        "overlap_param_gather needs overlap_grad_reduce",
        "take overlap_param_gather=false as well",
        f"{_ARGUMENTS}: overlap_param_gather",
    ),
    _rule(
        "overlap.p2p",
        lambda overlap_p2p, pp, vp: (overlap_p2p == 0) | (vp == 1) | (pp > 2),
        "without overlap_p2p, pp {pp} has two sends between the same ranks at a time",
        "take overlap_p2p=true, or a pp above 2",
        f"{_ARGUMENTS}: overlap_p2p_comm",
    ),
    _rule(
        "overlap.tp_needs_sequence_parallel",
        lambda tp_comm_overlap, sequence_parallel: (
            (tp_comm_overlap == 0) | (sequence_parallel == 1)
        ),
        "tp_comm_overlap overlaps what sequence_parallel sends",
        "take sequence_parallel=true",
        f"{_ARGUMENTS}: tp_comm_overlap",
    ),
    _rule(
        "optimizer_offload.sharded",
        lambda optimizer_offload, distributed_optimizer: (
            (optimizer_offload == 0) | (distributed_optimizer == 1)
        ),
        "optimizer_offload needs the precision-aware optimizer, which is a distributed one",
        "take distributed_optimizer=true",
        "megatron/core/optimizer/optimizer_config.py: use_precision_aware_optimizer",
    ),
    _rule(
        "optimizer_offload.fsdp",
        lambda optimizer_offload, fsdp: (optimizer_offload == 0) | (fsdp == 0),
        "optimizer_offload beside fsdp: the hybrid optimizer takes its states from the buffers of "
        "the distributed optimizer",
        "take fsdp=none",
        "ours: megatron/core/optimizer/cpu_offloading knows no shards of FSDP's",
    ),
    _rule(
        "optimizer_offload.fp8",
        lambda optimizer_offload, fp8_param_gather, fp8_recipe: (
            (optimizer_offload == 0) | (fp8_param_gather == 0) | (fp8_recipe == 0)
        ),
        "optimizer_offload with fp8_param_gather takes the delayed recipe alone",
        "take fp8_recipe=delayed",
        f"{_ARGUMENTS}: optimizer_cpu_offload",
    ),
    _rule(
        "activation_offload.layers",
        lambda activation_offload, n_layers: activation_offload < n_layers,
        "activation_offload {activation_offload} is no less than the model's {n_layers} layers",
        "take less than {n_layers}",
        f"{_CONFIG}: cpu_offloading_num_layers",
    ),
    _rule(
        "activation_offload.pipeline",
        lambda activation_offload, pp: (activation_offload == 0) | (pp == 1),
        "activation_offload with pp {pp}: Megatron offloads no pipeline's",
        "take pp=1, or activation_offload=0",
        f"{_CONFIG}: cpu_offloading",
    ),
    _rule(
        "activation_offload.recompute",
        lambda activation_offload, recompute: (
            (activation_offload == 0) | (recompute == Recompute.NONE)
        ),
        "activation_offload beside recomputation: Megatron takes one of the two",
        "take recompute=none, or activation_offload=0",
        f"{_CONFIG}: cpu_offloading",
    ),
    _rule(
        "offload_modules.layers",
        lambda offload_modules, activation_offload: (
            (offload_modules == 0) | (activation_offload == 0)
        ),
        "offload_modules beside activation_offload: Megatron takes one of the two",
        "take activation_offload=0",
        f"{_CONFIG}: fine_grained_activation_offloading",
    ),
    _rule(
        "offload_modules.recompute",
        lambda offload_modules, recompute, recompute_modules: (
            (offload_modules == 0)
            | (recompute != Recompute.FULL)
            & (
                (recompute != Recompute.SELECTIVE)
                | ~(
                    has("core_attn", OFFLOADED, offload_modules)
                    & has("core_attn", RECOMPUTED, recompute_modules)
                )
            )
        ),
        "offload_modules names what is computed again, and so not kept",
        "take recompute=none, or other modules",
        "ours: there is nothing to offload",
    ),
    _rule(
        "recompute_modules.experts",
        lambda n_experts, recompute, recompute_modules: (
            (recompute != Recompute.SELECTIVE)
            | (~has("moe", RECOMPUTED, recompute_modules) | (n_experts > 1))
            & (~has("mlp", RECOMPUTED, recompute_modules) | (n_experts < 2))
        ),
        "recompute_modules: moe is a mixture's layer and mlp a dense one's, and the model has "
        "{n_experts} experts",
        "take mlp for a dense model, moe for a mixture",
        "ours: the other module is not there. megatron/core/transformer/transformer_layer.py",
    ),
    _rule(
        "recompute_modules.scores",
        lambda recompute, recompute_modules, fused_attention: (
            (recompute != Recompute.SELECTIVE)
            | (recompute_modules == 0)
            | ~has("core_attn", RECOMPUTED, recompute_modules)
            | (not fused_attention)
        ),
        "core_attn drops attention's scores, which the fused kernel never keeps",
        "leave core_attn out of recompute_modules",
        "ours: slower, and no smaller",
    ),
    _rule(
        "recompute_modules.fp8",
        lambda recompute, recompute_modules, fp8, fp8_recipe: (
            (recompute != Recompute.SELECTIVE)
            | (fp8 == 0)
            | (fp8_recipe > 0)
            | ~has("layernorm", RECOMPUTED, recompute_modules)
        ),
        "the delayed recipe of fp8 recomputes no layernorm",
        "take another fp8_recipe, or leave layernorm out of recompute_modules",
        f"{_CONFIG}: recompute_modules",
    ),
    _rule(
        "fp8.precision",
        lambda fp8, in_fp32: (fp8 == 0) | (not in_fp32),
        "fp8 computes the products of a model in 16 bits, and the job trains in fp32",
        "take precision bf16 for the job, or fp8=none",
        "ours: Transformer Engine's recipes are for models in bf16 or fp16",
    ),
    _rule(
        "fp8.device",
        lambda fp8, has_fp8: (fp8 == 0) | has_fp8,
        "the device computes no products in fp8",
        "take fp8=none",
        "ours: the table of accelerators",
    ),
    _rule(
        "fp8.gather",
        lambda fp8_param_gather, distributed_optimizer: (
            (fp8_param_gather == 0) | (distributed_optimizer == 1)
        ),
        "fp8_param_gather gathers what the distributed optimizer or FSDP shards",
        "take distributed_optimizer=true",
        f"{_ARGUMENTS}: fp8_param_gather",
    ),
    *(
        _rule(
            f"recompute_modules.{name}",
            _recomputes_no_norm_unless(fact),
            f"recompute_modules with layernorm needs Transformer Engine, {why}",
            f"leave layernorm out of recompute_modules{fix}",
            "megatron/core/tensor_parallel/random.py, CheckpointWithoutOutput: "
            "FP8GlobalStateManager",
        )
        for name, fact, why, fix in (
            ("gpu", "on_cpu", "and so a GPU", ""),
            ("transformer_engine", "without_te", "which is not installed", _INSTALL_TE),
        )
    ),
    *(
        _rule(
            f"{knob}.gpu",
            _is_default_unless(knob, "on_cpu"),
            f"{knob} needs a GPU",
            f"leave {knob} out",
            "ours: what runs on no CPU rank",
        )
        for knob in ON_GPU_ALONE
    ),
    _rule(
        "sequence_parallel.transformer_engine",
        _is_default_unless("sequence_parallel", "has_torch_norms"),
        "sequence_parallel needs Transformer Engine, or for LayerNorm Apex, which is not there",
        f"leave sequence_parallel out{_INSTALL_TE}",
        "megatron/core/transformer/torch_norm.py: sequence_parallel; models/backends.py: LNImpl",
    ),
    *(
        _rule(
            f"{knob}.transformer_engine",
            _is_default_unless(knob, "without_te"),
            f"{knob} needs Transformer Engine, which is not installed",
            f"leave {knob} out{_INSTALL_TE}",
            source,
        )
        for knob, source in OF_TRANSFORMER_ENGINE.items()
    ),
    *(
        _rule(
            f"{knob}.release",
            _is_default_where_lacking(knob),
            f"{knob}: Megatron Core {{release}} has no such flag",
            f"leave {knob} out, or use a release that has it",
            "ours: the table of the releases' flags",
        )
        for knob in OF_SOME_RELEASES
    ),
)
