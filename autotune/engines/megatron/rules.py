"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.cost.plans import Recompute
from autotune.space.rule import Finding, Rule, UnknownFactError

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
    shares_kv_heads: bool = True
    """Whether several tensor parallel ranks may have the same key and value head."""

    @staticmethod
    def may_share_kv_heads(release: str) -> bool:
        """The same for a release of Megatron Core: 0.16 is the first that does.

        Source: megatron/core/transformer/transformer_config.py of 0.15 and 0.16.
        """
        return not release.startswith(("0.14", "0.15"))


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


def _rule(name: str, holds: Callable[..., Any], message: str, fix: str, source: str) -> Rule[Rows]:
    """A rule on whole columns.

    `holds` says which layouts are allowed; its parameters name the fields of the task and the
    columns that it gets. In `message` (which values clash) and `fix` (the nearest change that
    makes it legal), `{tp}` stands for a value of the layout or of the task.
    """
    wanted = tuple(signature(holds).parameters)

    def answer(rows: Rows) -> Truth:
        known = {**vars(rows.task), **rows.columns}
        if unknown := set(wanted) - known.keys():
            raise UnknownFactError(", ".join(sorted(unknown)))
        found: Truth = holds(*(known[each] for each in wanted))
        return found

    def check(rows: Rows) -> Finding | None:
        if answer(rows)[0]:
            return None
        said = {**vars(rows.task), **rows.row(0)}
        return Finding(message=message.format_map(said), advice=fix.format_map(said))

    reads = tuple(each for each in wanted if each not in LayoutTask.__dataclass_fields__)
    return Rule(name=name, check=check, witnesses=(), source=source, reads=reads, holds=answer)


RULES: tuple[Rule[Rows], ...] = (
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
        lambda world, tp, pp, ep: world % (tp * pp * ep) == 0,
        "world {world} is no multiple of tp {tp} x pp {pp} x ep {ep}",
        "take an ep that divides dp x cp",
        "megatron/core/parallel_state.py, initialize_model_parallel: the expert grid, "
        "with experts split by tp as the other layers are",
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
        lambda n_layers, pp, vp, ends_as_layers: (n_layers + 2 * ends_as_layers) % (pp * vp) == 0,
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
        lambda pp, vp, grad_accum: (vp == 1) | (grad_accum % pp == 0),
        "interleaved chunks need a multiple of pp {pp} micro-batches, and there are {grad_accum}",
        "take vp=1, or a smaller micro_batch",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: microbatch_group_size_per_vp_stage, "
        "which is pp where nobody sets it",
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
        lambda recompute, fused_attention: (
            (recompute != Recompute.SELECTIVE) | (not fused_attention)
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
)
