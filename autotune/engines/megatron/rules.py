"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.cost.plans import Recompute
from autotune.space.rule import Finding, Rule

Counts = NDArray[np.int64]
Columns = Mapping[str, Counts]
"""Column name -> a whole number per layout; switches are 0 and 1."""
Truth = NDArray[np.bool_]


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Layouts in columns, with what they lay out."""

    task: LayoutTask
    columns: Columns

    def row(self, index: int) -> dict[str, int]:
        """The columns of one layout."""
        return {name: int(column[index]) for name, column in self.columns.items()}


def chunk_layers(task: LayoutTask, rows: Columns) -> Counts:
    """Layers of one model chunk of a pipeline rank, with embedding and loss where they count."""
    return (task.n_layers + 2 * rows["ends_as_layers"]) // (rows["pp"] * rows["vp"])


def _stage_slots(task: LayoutTask, rows: Columns) -> Truth:
    slots = task.n_layers + 2 * rows["ends_as_layers"]
    found: Truth = slots % (rows["pp"] * rows["vp"]) == 0
    return found


def _ends_differ(task: LayoutTask, rows: Columns) -> Truth:
    even = task.n_layers % (rows["pp"] * rows["vp"]) == 0
    found: Truth = (rows["ends_as_layers"] == 0) | ~even
    return found


def _kv_heads(task: LayoutTask, rows: Columns) -> Truth:
    found: Truth = (task.n_kv_heads % rows["tp"] == 0) | (rows["tp"] % task.n_kv_heads == 0)
    return found


def _block(task: LayoutTask, rows: Columns) -> Truth:
    layers = rows["recompute_layers"]
    is_full = rows["recompute"] == Recompute.FULL
    in_chunk = (layers >= 0) & (layers < chunk_layers(task, rows))
    found: Truth = (layers == 0) | (is_full & in_chunk)
    return found


def _rule(
    *,
    name: str,
    reads: tuple[str, ...],
    holds: Callable[[LayoutTask, Columns], Truth],
    message: str,
    fix: str,
    source: str,
) -> Rule[Rows]:
    """A rule on whole columns.

    Args:
        name: As of every rule.
        reads: Columns that it looks at.
        holds: Which layouts it allows.
        message: Which values clash; `{tp}` stands for a value of the layout or of the task.
        fix: The nearest change that makes it legal, likewise.
        source: As of every rule.
    """

    def check(rows: Rows) -> Finding | None:
        if holds(rows.task, rows.columns)[0]:
            return None
        said = {**asdict(rows.task), **rows.row(0)}
        return Finding(message=message.format_map(said), advice=fix.format_map(said))

    return Rule(
        name=name,
        check=check,
        witnesses=(),
        source=source,
        reads=reads,
        holds=lambda rows: holds(rows.task, rows.columns),
    )


RULES: tuple[Rule[Rows], ...] = (
    _rule(
        name="sequence.positions",
        reads=("tp",),
        holds=lambda task, rows: np.full(
            rows["tp"].shape, not task.max_seq_len or task.seq_len <= task.max_seq_len
        ),
        message="seq_len {seq_len} is above the model's {max_seq_len} positions",
        fix="take a seq_len of at most {max_seq_len}",
        source="megatron/training/arguments.py, validate_args: max_position_embeddings",
    ),
    _rule(
        name="tp.heads",
        reads=("tp",),
        holds=lambda task, rows: task.n_heads % rows["tp"] == 0,
        message="n_heads {n_heads} is no multiple of tp {tp}",
        fix="take a tp that divides {n_heads}",
        source="megatron/core/transformer/transformer_config.py: num_attention_heads",
    ),
    _rule(
        name="tp.kv_heads",
        reads=("tp",),
        holds=_kv_heads,
        message="n_kv_heads {n_kv_heads} is neither a multiple nor a divisor of tp {tp}",
        fix="take a tp that divides {n_kv_heads}, or a multiple of it",
        source="megatron/core/transformer/transformer_config.py: num_query_groups",
    ),
    _rule(
        name="tp.ffn",
        reads=("tp",),
        holds=lambda task, rows: task.ffn_hidden % rows["tp"] == 0,
        message="the MLP's width {ffn_hidden} is no multiple of tp {tp}",
        fix="take a tp that divides {ffn_hidden}",
        source="megatron/core/tensor_parallel/layers.py, ColumnParallelLinear: divide",
    ),
    _rule(
        name="tp.domain",
        reads=("tp",),
        holds=lambda task, rows: rows["tp"] <= task.domain,
        message="tp {tp} reaches beyond the {domain} devices that are joined without the network",
        fix="take a tp of at most {domain}",
        source="ours: what NVIDIA recommends in megatron/core/transformer/moe/README.md",
    ),
    _rule(
        name="pp.layers",
        reads=("pp",),
        holds=lambda task, rows: rows["pp"] <= task.n_layers,
        message="pp {pp} is more than the model's {n_layers} layers",
        fix="take a pp of at most {n_layers}",
        source="ours: every stage has a layer",
    ),
    _rule(
        name="world.product",
        reads=("tp", "pp", "cp"),
        holds=lambda task, rows: task.world % (rows["tp"] * rows["pp"] * rows["cp"]) == 0,
        message="world {world} is no multiple of tp {tp} x pp {pp} x cp {cp}",
        fix="take degrees whose product divides {world}",
        source="megatron/training/arguments.py, validate_args: total_model_size",
    ),
    _rule(
        name="cp.sequence",
        reads=("cp",),
        holds=lambda task, rows: (rows["cp"] == 1) | (task.seq_len % (2 * rows["cp"]) == 0),
        message="seq_len {seq_len} is no multiple of 2 x cp {cp}",
        fix="take a cp of which twice divides {seq_len}",
        source="megatron/training/arguments.py, validate_args: seq_length",
    ),
    _rule(
        name="cp.fused_attention",
        reads=("cp",),
        holds=lambda task, rows: (rows["cp"] == 1) | task.fused_attention,
        message="cp {cp} needs a fused attention kernel, which this device and precision lack",
        fix="take cp=1, or bf16 on a newer device",
        source="megatron/core/transformer/dot_product_attention.py: context_parallel_size",
    ),
    _rule(
        name="ep.experts",
        reads=("ep",),
        holds=lambda task, rows: (rows["ep"] == 1) | (max(1, task.n_experts) % rows["ep"] == 0),
        message="n_experts {n_experts} is no multiple of ep {ep}",
        fix="take an ep that divides the number of experts; 1 for a dense model",
        source="megatron/training/arguments.py, validate_args: expert_model_parallel_size",
    ),
    _rule(
        name="ep.ranks",
        reads=("tp", "pp", "ep"),
        holds=lambda task, rows: task.world % (rows["tp"] * rows["pp"] * rows["ep"]) == 0,
        message="world {world} is no multiple of tp {tp} x pp {pp} x ep {ep}",
        fix="take an ep that divides dp x cp",
        source="megatron/core/parallel_state.py, initialize_model_parallel: the expert grid, "
        "with experts split by tp as the other layers are",
    ),
    _rule(
        name="sequence_parallel.tp",
        reads=("tp", "sequence_parallel"),
        holds=lambda task, rows: (rows["sequence_parallel"] == 0) | (rows["tp"] > 1),
        message="sequence_parallel splits over the tensor parallel ranks, and tp is 1",
        fix="take sequence_parallel=false, or a tp above 1",
        source="megatron/core/model_parallel_config.py: sequence_parallel",
    ),
    _rule(
        name="sequence_parallel.sequence",
        reads=("tp", "cp", "sequence_parallel"),
        holds=lambda task, rows: (
            (rows["sequence_parallel"] == 0) | (task.seq_len // rows["cp"] % rows["tp"] == 0)
        ),
        message="a rank's sequence, {seq_len} / cp {cp}, is no multiple of tp {tp}",
        fix="take sequence_parallel=false, or a tp that divides it",
        source="megatron/core/tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    _rule(
        name="sequence_parallel.experts",
        reads=("tp", "sequence_parallel"),
        holds=lambda task, rows: (
            (rows["sequence_parallel"] == 1) | (rows["tp"] == 1) | (task.n_experts < 2)
        ),
        message="a mixture of experts with tp {tp} trains only with sequence_parallel",
        fix="take sequence_parallel=true, or tp=1",
        source="megatron/core/transformer/moe/moe_layer.py, MoELayer.forward",
    ),
    _rule(
        name="vp.pipeline",
        reads=("pp", "vp"),
        holds=lambda task, rows: (rows["vp"] == 1) | (rows["pp"] > 1),
        message="vp {vp} interleaves chunks of a pipeline, and pp is 1",
        fix="take vp=1, or a pp above 1",
        source="megatron/training/arguments.py, validate_args: overlap_p2p_comm",
    ),
    _rule(
        name="vp.layers",
        reads=("pp", "vp"),
        holds=lambda task, rows: rows["pp"] * rows["vp"] <= task.n_layers,
        message="pp {pp} x vp {vp} is more than the model's {n_layers} layers",
        fix="take a vp x pp of at most {n_layers}",
        source="ours: every chunk has a layer",
    ),
    _rule(
        name="pp.split",
        reads=("pp", "vp", "ends_as_layers"),
        holds=_stage_slots,
        message="{n_layers} layers, with ends_as_layers 2 more, do not split evenly into pp {pp} "
        "x vp {vp} chunks",
        fix="take a pp x vp that divides {n_layers}, or {n_layers} + 2 with ends_as_layers=true",
        source="megatron/core/transformer/transformer_config.py: num_layers, "
        "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split",
    ),
    _rule(
        name="pp.ends",
        reads=("pp", "vp", "ends_as_layers"),
        holds=_ends_differ,
        message="{n_layers} layers split evenly into pp {pp} x vp {vp} chunks as they are",
        fix="take ends_as_layers=false",
        source="ours: where both splits exist they are the same one",
    ),
    _rule(
        name="batch.product",
        reads=("dp", "micro_batch"),
        holds=lambda task, rows: task.global_batch % (rows["micro_batch"] * rows["dp"]) == 0,
        message="global_batch {global_batch} is no multiple of micro_batch {micro_batch} x dp "
        "{dp}",
        fix="take a micro_batch and degrees that make micro_batch x dp divide {global_batch}",
        source="megatron/core/num_microbatches_calculator.py: global_batch_size",
    ),
    _rule(
        name="vp.micro_batches",
        reads=("pp", "vp", "grad_accum"),
        holds=lambda task, rows: (rows["vp"] == 1) | (rows["grad_accum"] % rows["pp"] == 0),
        message="interleaved chunks need a multiple of pp {pp} micro-batches, and there are "
        "{grad_accum}",
        fix="take vp=1, or a smaller micro_batch",
        source="megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: microbatch_group_size_per_vp_stage, "
        "which is pp where nobody sets it",
    ),
    _rule(
        name="distributed_optimizer.ranks",
        reads=("dp", "cp", "distributed_optimizer"),
        holds=lambda task, rows: (
            (rows["distributed_optimizer"] == 0) | (rows["dp"] * rows["cp"] > 1)
        ),
        message="distributed_optimizer shards over dp x cp ranks, and there is one",
        fix="take distributed_optimizer=false",
        source="ours: the same run as without",
    ),
    _rule(
        name="recompute.selective",
        reads=("recompute",),
        holds=lambda task, rows: (
            (rows["recompute"] != Recompute.SELECTIVE) | (not task.fused_attention)
        ),
        message="selective drops attention's scores, which the fused kernel never keeps",
        fix="take recompute=none, or full to save memory",
        source="ours: slower than none, and no smaller. Korthikanti et al. (arXiv:2205.05198), "
        "section 5, for what it drops",
    ),
    _rule(
        name="recompute.block",
        reads=("pp", "vp", "ends_as_layers", "recompute", "recompute_layers"),
        holds=_block,
        message="block_{recompute_layers} recomputes as many layers as a chunk has, or more",
        fix="take recompute=full, or fewer layers than one of the pp {pp} x vp {vp} chunks has",
        source="megatron/core/recompute.py: recompute_num_layers, counted in each chunk",
    ),
)
