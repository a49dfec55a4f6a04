"""Which Megatron layouts are legal: each rule on whole columns, with what it says of one layout.

A rule that calculates stands here or in `stage_rules`, one that compares is a row of rules.json:
the arguments of `layout_rule`. A row with `each` is a rule for each of some knobs: `{knob}` stands
for the knob, `{value}` for what `each` has for it.

A rule is Megatron's own where its source names a file of NVIDIA/Megatron-LM (its main branch at
Megatron Core 0.20), and ours where it keeps two layouts from meaning the same run.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from autotune.base.data import table_beside
from autotune.cost.plans import Recompute
from autotune.engines.megatron import stage_rules
from autotune.engines.megatron.choices import CP_KINDS, GRAPHS, OFFLOADED, RECOMPUTED, has
from autotune.engines.megatron.layout_rule import layout_rule
from autotune.engines.megatron.layout_task import Counts, LayoutRows, Truth, middle_layers
from autotune.space.rule import Rule

_ROWS: list[dict[str, Any]] = table_beside(__file__, "rules.json")
_EACH = {row["name"]: row["each"] for row in _ROWS if "each" in row}
ON_GPU_ALONE: list[str] = _EACH["{knob}.gpu"]
"""Knobs that have to stay at their default on CPU ranks."""
OF_TRANSFORMER_ENGINE: Mapping[str, str] = _EACH["{knob}.transformer_engine"]
"""Knobs that have to stay at their default on a GPU without Transformer Engine, and the source."""
OF_SOME_RELEASES: Mapping[str, str] = _EACH["{knob}.release"]
"""Knob -> its flag, where not every release has it that is known."""
_A2A = CP_KINDS.index("a2a")


def _splits_unevenly(
    n_layers: int, pp: Counts, vp: Counts, first_stage_layers: Counts, last_stage_layers: Counts
) -> Truth:
    first, last = first_stage_layers, last_stage_layers
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


def _splits_evenly(
    n_layers: int,
    pp: Counts,
    vp: Counts,
    ends_as_layers: Counts,
    first_stage_layers: Counts,
    last_stage_layers: Counts,
    stages: Counts,
) -> Truth:
    found: Truth = (
        ((n_layers + 2 * ends_as_layers) % (pp * vp) == 0)
        | (stages > 0)
        | (first_stage_layers > 0)
        | (last_stage_layers > 0)
    )
    return found


_CALCULATED: tuple[Rule[LayoutRows], ...] = (
    layout_rule(
        "tp.heads",
        "megatron/core/transformer/transformer_config.py: num_attention_heads",
        allows=lambda n_heads, tp: n_heads % tp == 0,
        message="n_heads {n_heads} is no multiple of tp {tp}",
        fix="take a tp that divides {n_heads}",
    ),
    layout_rule(
        "tp.kv_heads",
        "megatron/core/transformer/transformer_config.py: num_query_groups",
        allows=lambda n_kv_heads, tp, shares_kv_heads: (
            (n_kv_heads % tp == 0) | (shares_kv_heads & (tp % n_kv_heads == 0))
        ),
        message="n_kv_heads {n_kv_heads} is no multiple of tp {tp}, and no divisor of it, which "
        "counts from Megatron Core 0.16 on",
        fix="take a tp that divides {n_kv_heads}, or from 0.16 on a multiple of it",
    ),
    layout_rule(
        "tp.ffn",
        "megatron/core/tensor_parallel/layers.py, ColumnParallelLinear: divide",
        allows=lambda ffn_hidden, n_experts, dense_ffn_hidden, shared_expert_hidden, tp: (
            (dense_ffn_hidden % tp == 0) & (shared_expert_hidden % tp == 0)
            if n_experts > 1
            else ffn_hidden % tp == 0
        ),
        message="the width of an MLP that every token passes is no multiple of tp {tp}",
        fix="take a tp that divides it",
    ),
    layout_rule(
        "world.product",
        "megatron/training/arguments.py, validate_args: total_model_size",
        allows=lambda world, tp, pp, cp: world % (tp * pp * cp) == 0,
        message="world {world} is no multiple of tp {tp} x pp {pp} x cp {cp}",
        fix="take degrees whose product divides {world}",
    ),
    layout_rule(
        "cp.sequence",
        "megatron/training/arguments.py, validate_args: seq_length",
        allows=lambda cp, seq_len: (cp == 1) | (seq_len % (2 * cp) == 0),
        message="seq_len {seq_len} is no multiple of 2 x cp {cp}",
        fix="take a cp of which twice divides {seq_len}",
    ),
    layout_rule(
        "ep.experts",
        "megatron/training/arguments.py, validate_args: expert_model_parallel_size",
        allows=lambda ep, n_experts: (ep == 1) | (max(1, n_experts) % ep == 0),
        message="n_experts {n_experts} is no multiple of ep {ep}",
        fix="take an ep that divides the number of experts; 1 for a dense model",
    ),
    layout_rule(
        "ep.ranks",
        "megatron/core/parallel_state.py, initialize_model_parallel: the expert grid",
        allows=lambda world, tp, etp, pp, ep: world % (np.where(etp > 0, etp, tp) * pp * ep) == 0,
        message="world {world} is no multiple of pp {pp} x ep {ep} x the experts' tensor parallel "
        "degree (etp {etp}, or where that is 0 tp {tp})",
        fix="take an ep that divides dp x cp, or a smaller etp",
    ),
    layout_rule(
        "sequence_parallel.sequence",
        "megatron/core/tensor_parallel/mappings.py, _split_along_first_dim",
        allows=lambda seq_len, tp, cp, sequence_parallel: (
            (sequence_parallel == 0) | (seq_len // cp % tp == 0)
        ),
        message="a rank's sequence, {seq_len} / cp {cp}, is no multiple of tp {tp}",
        fix="take sequence_parallel=false, or a tp that divides it",
    ),
    layout_rule(
        "vp.layers",
        "ours: every chunk has a layer, or with ends_as_layers the embedding or the loss",
        allows=lambda pp, vp, ends_as_layers, n_layers, stages: (
            (pp * vp <= n_layers + 2 * ends_as_layers * (vp > 1)) | (stages > 0)
        ),
        message="pp {pp} x vp {vp} is more than the model's {n_layers} layers",
        fix="take a vp x pp of at most {n_layers}",
    ),
    layout_rule(
        "pp.split",
        "megatron/core/transformer/transformer_config.py: num_layers, "
        "account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split",
        allows=_splits_evenly,
        message="{n_layers} layers, and 2 more where ends_as_layers counts them, do not split "
        "evenly into pp {pp} x vp {vp} chunks",
        fix="take ends_as_layers=true where 2 more make them even, or stages=balanced, which "
        "places them by their work",
    ),
    layout_rule(
        "pp.ends",
        "ours: where both splits exist they are the same one",
        allows=lambda n_layers, pp, vp, ends_as_layers: (
            (ends_as_layers == 0) | (n_layers % (pp * vp) != 0)
        ),
        message="{n_layers} layers split evenly into pp {pp} x vp {vp} chunks as they are",
        fix="take ends_as_layers=false",
    ),
    layout_rule(
        "batch.product",
        "megatron/core/num_microbatches_calculator.py: global_batch_size",
        allows=lambda global_batch, dp, micro_batch: global_batch % (micro_batch * dp) == 0,
        message="global_batch {global_batch} is no multiple of micro_batch {micro_batch} x "
        "dp {dp}",
        fix="take a micro_batch and degrees that make micro_batch x dp divide {global_batch}",
    ),
    layout_rule(
        "vp.micro_batches",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: microbatch_group_size_per_vp_stage, "
        "which is pp where nobody sets it",
        allows=lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | (grad_accum % pp == 0) | np.full(pp.shape, vp_group > 0)
        ),
        message="interleaved chunks need a multiple of pp {pp} micro-batches, and there are "
        "{grad_accum}",
        fix="take vp=1, or a smaller micro_batch",
    ),
    layout_rule(
        "vp.groups",
        "megatron/core/pipeline_parallel/schedules.py, "
        "forward_backward_pipelining_with_interleaving: final_microbatch_group_size",
        allows=lambda pp, vp, grad_accum, vp_group: (
            (vp == 1) | np.full(pp.shape, vp_group < 1) | _fills_groups(grad_accum, vp_group, pp)
        ),
        message="interleaved chunks take groups of pp {pp} to {grad_accum} micro-batches, the last"
        " one too, and vp_group {vp_group} makes others of {grad_accum}",
        fix="take a group that divides {grad_accum}",
    ),
    layout_rule(
        "recompute.block",
        "megatron/core/recompute.py: recompute_num_layers, counted in each chunk",
        allows=lambda n_layers, pp, vp, ends_as_layers, recompute, recompute_layers: (
            (recompute_layers == 0)
            | (recompute_layers > 0)
            & (recompute_layers < (n_layers + 2 * ends_as_layers) // (pp * vp))
            & (recompute == Recompute.FULL)
        ),
        message="block_{recompute_layers} recomputes as many layers as a chunk has, or more",
        fix="take recompute=full, or fewer layers than one of the pp {pp} x vp {vp} chunks has",
    ),
    layout_rule(
        "uneven.split",
        "megatron/core/transformer/transformer_config.py, __post_init__: "
        "num_layers_in_first_pipeline_stage, num_layers_in_last_pipeline_stage",
        allows=_splits_unevenly,
        message="{n_layers} layers less {first_stage_layers} of the first and {last_stage_layers} "
        "of the last stage do not split evenly over the other stages of pp {pp} x vp {vp} "
        "chunks",
        fix="take other numbers of layers, so that every chunk has as many as its neighbours",
    ),
    layout_rule(
        "uneven.same",
        "ours: the same run as without",
        allows=lambda n_layers, pp, first_stage_layers, last_stage_layers: (
            ((first_stage_layers == 0) & (last_stage_layers == 0))
            | (n_layers % pp != 0)
            | ((first_stage_layers != n_layers // pp) & (first_stage_layers > 0))
            | ((last_stage_layers != n_layers // pp) & (last_stage_layers > 0))
        ),
        message="first_stage_layers {first_stage_layers} and last_stage_layers {last_stage_layers}"
        " are what {n_layers} layers over pp {pp} have anyway",
        fix="leave them out",
    ),
    layout_rule(
        "uneven.block",
        "ours: a share of the layers of every stage",
        allows=lambda recompute_layers, first_stage_layers, last_stage_layers, stages: (
            (recompute_layers == 0)
            | ((first_stage_layers == 0) & (last_stage_layers == 0) & (stages == 0))
        ),
        message="block_{recompute_layers} counts in each chunk, and the stages have different "
        "sizes",
        fix="take recompute=full or none",
    ),
    layout_rule(
        "etp.experts",
        "megatron/core/transformer/moe/experts.py; tensor_parallel/layers.py: divide",
        allows=lambda etp, tp, n_experts, ffn_hidden: np.where(
            etp == 0,
            (n_experts < 2) | (ffn_hidden % tp == 0),
            (n_experts > 1) & (ffn_hidden % np.maximum(1, etp) == 0),
        ),
        message="the experts' width {ffn_hidden}, of {n_experts} experts, is split by etp {etp}, "
        "or where that is 0 by tp {tp}",
        fix="take an etp that divides the width; 0 for a dense model",
    ),
    layout_rule(
        "order.experts",
        "megatron/core/parallel_state.py, initialize_model_parallel: pp-last rank ordering",
        allows=lambda order, world, tp, pp, cp, ep, etp: (
            (order == 0) | (pp == 1) | (np.where(etp > 0, etp, tp) * ep == tp * cp)
        ),
        message="with pipelines as the nearer axis, experts need as many replicas as the other "
        "layers",
        fix="take the default order, or an ep x etp of tp x cp",
    ),
    layout_rule(
        "offload_modules.recompute",
        "ours: there is nothing to offload",
        allows=lambda offload_modules, recompute, recompute_modules: (
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
        message="offload_modules names what is computed again, and so not kept",
        fix="take recompute=none, or other modules",
    ),
    layout_rule(
        "cp_kind.heads",
        "ours: Transformer Engine, AttnFuncWithCPAndQKVOA2A",
        allows=lambda cp_kind, cp, tp, n_kv_heads: (
            (cp_kind != _A2A) | (n_kv_heads % np.maximum(1, tp * cp) == 0)
        ),
        message="cp_kind a2a splits the {n_kv_heads} key and value heads over tp {tp} x cp {cp} "
        "ranks",
        fix="take cp_kind=p2p, or a cp that divides a rank's heads",
    ),
    layout_rule(
        "cuda_graphs.experts",
        "megatron/core/transformer/transformer_config.py, __post_init__: cuda_graph_scope",
        allows=lambda cuda_graphs, n_experts, n_dense_layers: (
            (~has("moe_router", GRAPHS, cuda_graphs) | (n_experts > 1))
            & (~has("mlp", GRAPHS, cuda_graphs) | (n_experts < 2) | (n_dense_layers > 0))
        ),
        message="cuda_graphs name moe_router for a mixture's layers and mlp for dense ones, and "
        "the model has {n_experts} experts",
        fix="take cuda_graphs=attn",
    ),
)
"""Rules that calculate; rules.json has those that compare."""


def _rules() -> Iterator[Rule[LayoutRows]]:
    for row in _ROWS:
        each = row.get("each", {"": ""})
        for knob in each:
            value = each[knob] if isinstance(each, Mapping) else ""
            entries = {
                entry: text.replace("{knob}", knob).replace("{value}", value)
                for entry, text in row.items()
                if entry != "each"
            }
            yield layout_rule(**entries)


RULES = (*_CALCULATED, *stage_rules.RULES, *_rules())
