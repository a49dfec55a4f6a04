"""How long a rank computes: matrix products, attention, element-wise kernels, logits, Adam."""

from dataclasses import dataclass

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans, Recompute, Tier
from autotune.cost.sizes import LayerKind, Sizes

_NORMS_SHARE = 1.0 / 6.0
"""Part of a layer's element-wise traffic that its norms are: 4 h of 24 h, as `_elementwise` counts
them for GPT."""

_WRITTEN_KERNELS = 0.33
"""Share by which a layer has more kernels where attention writes its scores."""
_STAGE_SKEW = 0.92
"""The same as `skew_share` for each rank of a tensor parallel group whose hosts also wait for
messages between nodes."""
_CHECKPOINT_KERNELS = 20.0
"""Kernels that one more recomputed module takes the host as long as. Source: 0.3 to 0.9 ms a
module on H100, NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-activation-recompute: the
least for an activation function, which launches little but itself, so it counts as half."""
_KERNELS_OF_AN_EXPERT = 10.0
"""Kernels of an expert that is a module of its own, forward."""
_LATENT_KERNELS = 15.0
"""Kernels of latent attention beyond those of other attention: two projections and norms more, and
keys and queries put together. Source: megatron/core/transformer/multi_latent_attention.py."""
_SHARED_KERNELS = 5.0
"""Kernels of a shared expert."""
_TILE_ROWS = 128.0
_ALIGNED = 64
_MISALIGNED = 0.3
"""Share by which products take longer whose width has no factor of two, beside multiples of 64
elements. Source: Anthony et al. (arXiv:2401.14489), figures of products by such factors; BLOOM's
trials with a hidden size of 14,400 over 8 ranks beside those with 14,336."""
_BIAS_BYTES = 28.0
"""Moved to add the bias of an expert's second product, weighed by the router, per element of a
row, forward: the product with the probability, the sum and the experts' rows together are written
and read in 32 bit, the result in 16. Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/
experts.py, TEGroupedMLP._apply_bias (0.16)."""
_BIAS_KERNELS = 3.0
"""Kernels of that for each expert, forward."""
_CAST_BYTES = 4.0
"""Part of `cast_bytes` that `low_precision_share` has in it, for products outside of experts."""
_ADAM_IN_STEPS_BYTES = 80.0
"""Moved per parameter by torch's AdamW in 32 bits on the host, whose eight steps each read and
write: what Megatron's hybrid optimizer runs there. Source: torch, optim/adamw.py,
_single_tensor_adamw; NVIDIA/Megatron-LM, megatron/core/optimizer/cpu_offloading."""
_PRODUCTS = 4.0
"""Products of a layer outside of experts whose inputs are cast."""
_EXPONENTIAL_BALANCE = 1.6e15
"""Rate of products at which the exponentials of attention with heads of 128 take as long as its
products: an H100's, whose share is half. Source: Shah et al., FlashAttention-3 (arXiv:2407.08608),
sections 3.2 and 4.1, where heads of 64 reach three quarters of the rate of 128."""
_ATTENTION_BLOCK = 128.0
"""Tokens by which a window is wider in a fused kernel, which computes blocks whole."""
_ACTIVATION_SHARE = 0.25
"""Part of the routed rows' element-wise traffic that the experts' activation is."""
_NONE = (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class LayerTimes:
    """One layer, one micro-batch, one rank; forward, backward, and what is computed again."""

    matmul_s: Column
    """Forward and backward."""
    attention_s: Column
    elementwise_s: Column
    recompute_s: Column
    launch_s: Column
    """Time that the host needs to launch all of them; it runs ahead, so only what is longer
    counts."""
    forward_s: Column
    backward_s: Column
    """Backward, with what is recomputed."""
    experts_forward_s: Column = 0.0
    """The part of `forward_s` between dispatch and combination."""
    experts_backward_s: Column = 0.0
    shared_s: Column = 0.0
    """What shared experts take, forward and backward."""


@dataclass(frozen=True, kw_only=True)
class _Products:
    flops: Column = 0.0
    elements: Column = 0.0
    """Moved: operands and results."""
    weights: Column = 0.0
    """Parameters whose gradients are accumulated."""
    width: Column = 0.0
    """Width of the heads or of an MLP, on one rank."""


def layer_times(p: Plans, s: Sizes, c: Constants, kind: LayerKind = LayerKind.DENSE) -> LayerTimes:
    """Times of a layer.

    Full recomputation runs the forward pass again (Chen et al.,
    arXiv:1604.06174); selective that of the modules it names (Korthikanti et al.,
    arXiv:2205.05198, section 5); torch's per-operator checkpoints the element-wise kernels.
    """
    is_mixture = kind == LayerKind.MIXTURE
    attention_forward, attention_backward = _attention(p, s, c)
    projections = _product_times(p, c, _attention_products(p, s))
    width = p.shared_expert_hidden if is_mixture else s.dense_ffn_hidden
    mlp = _product_times(p, c, _mlp_products(p, s, width))
    experts = _product_times(p, c, _expert_products(p, s, c)) if is_mixture else _NONE
    products = [a + b + e for a, b, e in zip(projections, mlp, experts, strict=True)]
    routed_forward = _routed_elementwise(p, s, c) if is_mixture else 0.0
    plain_forward = _elementwise(p, s, c, width) + _adapters(p, s, c, width)
    elementwise_forward = plain_forward + routed_forward
    # Backward reads the gradient and what was kept, and writes a gradient: half as much again.
    elementwise_backward = 1.5 * elementwise_forward
    is_full = np.equal(p.recompute, Recompute.FULL) / p.recompute_every
    is_selective = np.equal(p.recompute, Recompute.SELECTIVE)
    is_operators = np.equal(p.recompute, Recompute.OPERATORS)
    again = (
        is_full * products[0]
        + (is_full + is_selective * p.recomputes_scores) * attention_forward
        + (is_full + is_operators) * elementwise_forward
        + is_selective * p.recomputes_norms * _NORMS_SHARE * plain_forward
    )
    modules = p.recomputes_scores + 2.0 * p.recomputes_norms + p.recomputes_latent
    if np.any(p.recomputes_latent):
        latent = _product_times(p, c, _up_products(p, s))[0]
        again = again + is_selective * p.recomputes_latent * latent
    if is_mixture:
        takes = p.recomputes_experts
        act = p.recomputes_expert_act * (1.0 - takes) * _ACTIVATION_SHARE * routed_forward
        shared = np.maximum(takes, p.recomputes_shared) * mlp[0]
        again = again + is_selective * (takes * (experts[0] + routed_forward) + shared + act)
        modules = modules + takes + p.recomputes_shared + 0.5 * p.recomputes_expert_act
    else:
        again = again + is_selective * p.recomputes_mlp * mlp[0]
        modules = modules + p.recomputes_mlp
    if np.any(p.mlp_tile_tokens):
        inner = plain_forward - _elementwise(p, s, c, 0.0) - _adapters(p, s, c, width)
        inner = inner + _ACTIVATION_SHARE * routed_forward
        again = again + np.greater(p.mlp_tile_tokens, 0) * (mlp[0] + experts[0] + inner)
    forward = products[0] + attention_forward + elementwise_forward
    backward = products[1] + attention_backward + elementwise_backward
    # A measured layer is one of unfused kernels, without recomputation.
    measured_s = p.layer_host_s / (c.kernels_per_layer * 2.0 * 3.0)
    launch_s = np.where(np.greater(p.layer_host_s, 0), measured_s, c.launch_s)
    kernels = _kernels(p, s, c, is_full, kind) + _CHECKPOINT_KERNELS * is_selective * modules
    in_turn = _is_narrow(p) * _PRODUCTS * (p.cast_kernels - 1.0)
    if is_mixture:
        in_turn = in_turn + _expert_launches(p, s)
    host_s = launch_s * kernels + in_turn * (3.0 + is_full) * c.expert_launch_s
    return LayerTimes(
        matmul_s=products[0] + products[1],
        attention_s=attention_forward + attention_backward,
        elementwise_s=elementwise_forward + elementwise_backward,
        recompute_s=again,
        launch_s=host_s * (1.0 - p.launch_free),
        forward_s=forward,
        backward_s=backward + again,
        experts_forward_s=experts[0] + _ACTIVATION_SHARE * routed_forward,
        experts_backward_s=experts[1] + 1.5 * _ACTIVATION_SHARE * routed_forward,
        shared_s=(mlp[0] + mlp[1]) if is_mixture else 0.0,
    )


def _kernels(p: Plans, s: Sizes, c: Constants, is_full: Column, kind: LayerKind) -> Column:
    """Kernels of a layer, forward, backward, and again.

    A mixture has those of its router and of the permutation of rows besides; and where experts
    are modules of their own, those of each: three products, an activation, a product with the
    gate, and the indices of its rows there and back. Source: transformers (before 5),
    models/mixtral/modeling_mixtral.py, MixtralSparseMoeBlock.
    """
    kernels = c.kernels_per_layer * (2.0 - p.fused_kernels)
    if np.any(p.latent_kv_rank):
        kernels = kernels + _LATENT_KERNELS * np.greater(p.latent_kv_rank, 0)
    if kind == LayerKind.MIXTURE:
        kernels = kernels + c.routing_kernels * (1.0 - 0.25 * p.fused_routing)
        kernels = kernels + _SHARED_KERNELS * np.greater(p.shared_expert_hidden, 0)
        alone = 1.0 - p.grouped_experts
        of_experts = alone * _KERNELS_OF_AN_EXPERT + _adds_biases(p) * _BIAS_KERNELS
        kernels = kernels + of_experts * s.expert_share
    waits = p.waits_for_stages * np.greater(p.pp, 1) * np.greater(p.tp, 1)
    waits = waits * np.greater(s.world, p.devices_per_node)
    skew = c.skew_share * (p.tp - 1.0) + _STAGE_SKEW * waits * p.tp
    return kernels * (3.0 + is_full) * (1.0 + skew) * _attention_kernels(p)


def _expert_launches(p: Plans, s: Sizes) -> Column:
    """Products that a grouped product launches one by one, forward; with fp8 also casts.

    Source: NVIDIA/TransformerEngine, transformer_engine/common/gemm/cublaslt_gemm.cu,
    nvte_multi_tensor_gemm.
    """
    casts = 1.0 + _is_narrow(p) * p.cast_kernels
    return p.grouped_experts * (1.0 - p.fused_experts) * 2.0 * s.expert_share * casts


def logits_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Output projection and loss of one micro-batch, forward and backward.

    3 x 2 T h V / tp operations (PaLM, arXiv:2204.02311, appendix B), and the loss moves the
    logits. Where it is computed chunk by chunk, each is computed again backward.
    """
    again = np.greater(p.loss_chunk_tokens, 0) * 1.0
    product_flops = (3.0 + again) * 2.0 * s.tokens * p.vocab / p.tp * p.hidden
    product = product_flops / (_half_rate(p) * c.matmul_share)
    moved_s = _loss_bytes(p) / (p.memory_bytes_per_s * c.memory_share)
    logit_s = np.where(np.greater(p.logit_s, 0), p.logit_s, moved_s)
    return product + (1.0 + again / 3.0) * s.tokens * s.loss_vocab * logit_s


def _loss_bytes(p: Plans) -> Column:
    """Bytes that the loss moves per logit, forward and backward.

    A loss that holds 32-bit logits goes over them kernel by kernel: cast (6 bytes), maximum (4),
    difference (8), exponential (8), sum (4), quotient (8), gradient (8), and cast back (6). One
    kernel that holds 16-bit logits alone reads them twice and writes their gradients (6), and
    nothing hides what the products before and after it move: logits once and gradients twice (6).
    Source: NVIDIA/Megatron-LM, megatron/core/tensor_parallel/cross_entropy.py;
    huggingface/nanotron, src/nanotron/parallel/tensor_parallel/functional.py;
    linkedin/Liger-Kernel, ops/cross_entropy.py.
    """
    return np.clip(12.0 + 20.0 * (p.logit_bytes - 4.0), 12.0, 52.0)


def join_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Product that joins hidden states and embeddings before a layer that predicts further tokens.

    2 h^2 parameters, forward and backward. Source: DeepSeek-V3 (arXiv:2412.19437), section 2.2.
    """
    flops = 3.0 * 2.0 * s.tokens * 2.0 * p.hidden * p.hidden / p.tp
    return flops / (_half_rate(p) * c.matmul_share)


def optimizer_s(p: Plans, c: Constants, params: Column) -> Column:
    """Adam's step over the parameters that a rank updates.

    Every state is read and written once. On the device that is its memory's bandwidth; on the host
    that of the node's memory, shared by its ranks; NVMe is read and written as well. Source:
    Rajbhandari et al., ZeRO-Infinity (arXiv:2104.07857), section 4, for the traffic.
    """
    states_bytes = params * p.trained_share * (2.0 * p.optimizer_bytes + c.optimizer_traffic_bytes)
    on_device = states_bytes / (p.memory_bytes_per_s * c.memory_share)
    host_share = p.host_memory_bytes_per_s * c.host_optimizer_share / p.devices_per_node
    drive_share = p.nvme_bytes_per_s / p.devices_per_node
    on_host = states_bytes / host_share
    on_drive = 2.0 * params * p.trained_share * p.optimizer_bytes / drive_share
    share = p.optimizer_host_share
    in_steps = params * p.trained_share * _ADAM_IN_STEPS_BYTES / host_share
    return np.where(
        np.equal(p.optimizer_tier, Tier.DEVICE),
        np.maximum((1.0 - share) * on_device, share * in_steps),
        on_host + np.equal(p.optimizer_tier, Tier.NVME) * on_drive,
    )


def _attention_kernels(p: Plans) -> Column:
    """How many times the kernels of a layer with fused attention the layer has.

    Where the scores are written, two batched products, softmax, dropout and copies of the heads'
    layout stand for one kernel: some 20 forward in place of 15, counted in NVIDIA/Megatron-LM,
    megatron/model/transformer.py (v2.5). Its fused softmax takes only a multiple of four heads x
    samples. Source: NVIDIA/Megatron-LM, megatron/core/fusions/fused_softmax.py,
    is_kernel_available.
    """
    rank_heads = p.micro_batch * p.n_heads / p.tp
    odd = np.not_equal(np.floor(rank_heads / 4.0) * 4.0, rank_heads)
    is_written = np.equal(p.flash_attention, 0)
    return 1.0 + is_written * (_WRITTEN_KERNELS + 0.3 * odd)


def _is_narrow(p: Plans) -> Column:
    """Whether products are in fp8 or fp4."""
    return np.greater(p.matmul_flops, p.half_flops) * 1.0


def _adds_biases(p: Plans) -> Column:
    return p.expert_biases * p.grouped_experts * (1.0 - p.fused_experts)


def _half_rate(p: Plans) -> Column:
    return p.half_flops * p.sustained_share


def _product_times(p: Plans, c: Constants, products: _Products) -> tuple[Column, Column]:
    """Products of one layer, forward and backward.

    Time = operations / rate + bytes moved / bandwidth. Dividing by the operations shows what that
    is: 1 / efficiency = 1 + (rate / bandwidth) (1/m + 1/n + 1/k), a curve that saturates in all
    three sizes, at the balance of the device: the roofline of Williams et al. (CACM 52, 2009) with
    its corner rounded. Backward are two products of the same sizes, and the gradient of the
    weights is added to what has been accumulated. Packed weights are unpacked for every product
    but that one.
    """
    gain = p.matmul_flops / p.half_flops
    rate = _half_rate(p) * c.matmul_share * (1.0 + c.low_precision_share * (gain - 1.0))
    bandwidth = p.memory_bytes_per_s * c.memory_share
    moved_s = np.where(
        np.greater(p.operand_elements_per_s, 0),
        products.elements / np.maximum(1.0, p.operand_elements_per_s),
        c.matmul_traffic * 2.0 * products.elements / bandwidth,
    )
    unpacked_s = p.dequantized_bytes * products.weights / bandwidth
    divisor = np.gcd(np.asarray(products.width, np.int64), _ALIGNED)
    slower = 1.0 + p.runs_ahead * _MISALIGNED * (1.0 - divisor / _ALIGNED)
    forward = products.flops * slower / rate + moved_s + unpacked_s
    accumulate = (2.0 * p.grad_bytes + p.accumulate_bytes) * products.weights / bandwidth
    return forward, forward + p.trained_share * (forward + accumulate)


def _attention_products(p: Plans, s: Sizes) -> _Products:
    """Projections of the attention; those down of latent attention run on the sequence's parts."""
    shared = s.rank_attention_params - s.latent_params
    params = s.latent_params / s.norm_split + shared
    widths = 2.0 * p.hidden + 2.0 * (s.attention_width + s.kv_width) / p.tp
    widths = widths + 2.0 * (p.latent_q_rank + p.latent_kv_rank) / s.norm_split
    return _Products(
        flops=2.0 * s.tokens * params,
        elements=s.tokens * widths + s.rank_attention_params,
        weights=s.rank_attention_params,
        width=s.attention_width / p.tp,
    )


def _up_products(p: Plans, s: Sizes) -> _Products:
    """Projections up of latent attention, a part of those."""
    values = p.hidden * p.n_heads * p.latent_value_dim / p.tp
    params = s.rank_attention_params - s.latent_params - values
    widths = p.latent_q_rank + p.latent_kv_rank + (s.attention_width + 2.0 * s.kv_width) / p.tp
    return _Products(flops=2.0 * s.tokens * params, elements=s.tokens * widths + params)


def _mlp_products(p: Plans, s: Sizes, width: Column) -> _Products:
    """Those of an MLP that all tokens pass; none if it has no width."""
    params = s.mlp_matrices * p.hidden * width / p.tp
    widths = 2.0 * p.hidden * np.greater(width, 0) + s.mlp_matrices * width / p.tp
    return _Products(
        flops=2.0 * s.tokens * params,
        elements=s.tokens * widths + params,
        weights=params,
        width=width / p.tp,
    )


def _expert_products(p: Plans, s: Sizes, c: Constants) -> _Products:
    """Those of the rank's experts, each of the rows that come to it, and the router's.

    A product computes whole tiles of 128 rows, so each expert has half a tile in vain. Source:
    NVIDIA, Matrix Multiplication Background User's Guide, section 4. Rows come in pieces, by
    expert, and move `grouped_traffic` times; a weight as in any other product, so one wide expert
    is as fast as a dense layer.
    """
    params = s.mlp_params / s.expert_tp
    weights = s.expert_share * params
    widths = 2.0 * p.hidden + s.mlp_matrices * p.ffn_hidden / s.expert_tp
    router = p.hidden * p.n_experts
    rows = s.routed_rows + 0.5 * _TILE_ROWS * s.expert_share
    return _Products(
        flops=2.0 * (rows * params + s.tokens / s.norm_split * router),
        elements=c.grouped_traffic * s.routed_rows * widths + weights,
        weights=weights + router,
        width=p.ffn_hidden / s.expert_tp,
    )


def _attention(p: Plans, s: Sizes, c: Constants) -> tuple[Column, Column]:
    """Scores and their product with the values, forward and backward.

    4 T s a / tp operations forward, half of which a causal fused kernel skips; 2.5 times as many
    backward, where the scores are computed again. Source: Dao, FlashAttention-2
    (arXiv:2307.08691), section 4.1. Where the scores are written, all of them are computed,
    backward twice as many, and their softmax and mask move every score through memory several
    times.
    """
    score_flops = 4.0 * s.tokens * p.seq_len * s.attention_width / p.tp
    rate = _half_rate(p) * p.attention_speed
    measured = np.greater(p.attention_forward_flops, 0)
    forward_rate = np.where(measured, p.attention_forward_flops, rate * c.attention_share)
    backward_rate = np.where(
        measured, p.attention_backward_flops, rate * c.attention_backward_share
    )
    # Blocks on the diagonal are computed whole, and short sequences leave the device half empty.
    starts = np.where(measured, 1.0, 1.0 + c.attention_start_tokens / p.seq_len)
    score_flops = score_flops * _seen_share(p)
    exponentials = rate / _EXPONENTIAL_BALANCE
    heads = 128.0 * p.n_heads / s.attention_width / p.exponential_speed
    starts = starts * np.where(measured, 1.0, (1.0 + exponentials * heads) / (1.0 + exponentials))
    fused_forward = 0.5 * score_flops / forward_rate * starts
    fused_backward = 1.25 * score_flops / backward_rate * starts
    scores = s.tokens * p.seq_len * p.n_heads / p.tp
    traffic = scores * c.score_traffic_bytes / (p.memory_bytes_per_s * c.memory_share)
    written = score_flops / (_half_rate(p) * c.matmul_share) + traffic
    forward = np.where(p.flash_attention, fused_forward, written)
    backward = np.where(p.flash_attention, fused_backward, 2.0 * written)
    return forward, backward


def _seen_share(p: Plans) -> Column:
    """Share of the causal scores that windows leave, over all layers.

    A window W of S tokens leaves W S - W^2 / 2 of S^2 / 2 pairs, and blocks are computed whole.
    """
    if not np.any(p.n_windowed_layers):
        return 1.0
    seen = np.minimum(1.0, (p.window + _ATTENTION_BLOCK) / p.seq_len)
    windowed = p.n_windowed_layers / p.n_layers
    return 1.0 - windowed * (1.0 - seen) * (1.0 - seen)


def _elementwise(p: Plans, s: Sizes, c: Constants, width: Column) -> Column:
    """Norms, residuals, dropout, rotary embeddings and the activation of one layer, forward.

    Each kernel reads its inputs and writes its result once. Per token, in elements: two norms
    (4 h), two residual sums (6 h, their dropout masks 1 byte), the heads' layout and positions
    (2 (a + 2k)), the activation of an MLP of this width (2 f, gated 3 f). Megatron's sequence
    parallelism splits the first two over the tensor parallel ranks (Korthikanti et al.,
    arXiv:2205.05198, section 4.2.2). Latent attention has two norms more.
    """
    norms = 10.0 * p.hidden / s.norm_split
    norms = norms + 2.0 * (p.latent_q_rank + p.latent_kv_rank) / s.norm_split
    heads = 2.0 * (s.attention_width + 2.0 * s.kv_width) / p.tp
    activation = (2.0 + p.gated_mlp) * width / p.tp
    cast = 2.0 * p.hidden + (s.attention_width + width) / p.tp
    cast_bytes = _is_narrow(p) * (p.cast_bytes - _CAST_BYTES) * cast
    moved_bytes = s.tokens * (
        p.activation_bytes * (norms + heads + activation)
        + cast_bytes
        + 2.0 * p.has_dropout * p.hidden
    )
    fusion = 1.0 + (c.unfused_traffic - 1.0) * (1.0 - p.fused_kernels)
    return fusion * _moved_s(p, s, c, moved_bytes)


def _adapters(p: Plans, s: Sizes, c: Constants, width: Column) -> Column:
    """What adapters of low rank add to one layer, forward; their own products are small.

    Per element of an input in 16 bit: it is dropped out with a mask, cast and read (10 bytes); of
    a result: written, scaled and added to that of the frozen product (14). Each of the projections
    has its own. Experts that lie in one tensor have none: peft leaves them out, or changes their
    weights (`adapts_experts`), whose time is not counted. Source: huggingface/peft,
    src/peft/tuners/lora/layer.py, Linear.forward and ParamWrapper; tuners/tuners_utils.py.
    """
    if not np.any(p.adapters):
        return 0.0
    gates, mlps = s.mlp_matrices - 1.0, p.adapts_mlp * np.greater(width, 0)
    inputs = 3.0 * p.hidden + s.attention_width / p.tp
    inputs = inputs + mlps * (gates * p.hidden + width / p.tp)
    results = (s.attention_width + 2.0 * s.kv_width) / p.tp + p.hidden
    results = results + mlps * (gates * width / p.tp + p.hidden)
    elements = p.adapters * s.tokens * (5.0 * inputs + 7.0 * results)
    return _moved_s(p, s, c, p.activation_bytes * elements)


def _routed_elementwise(p: Plans, s: Sizes, c: Constants) -> Column:
    """Router, permutation of rows there and back, and the experts' activation, forward.

    Per row: it is permuted and sorted by expert on its way there, and back (8 h; 4 h where
    dispatch does half of it), and activated (3 f gated); modules of torch do the same. In fp8 the
    products' inputs are cast, which nothing else does here (h + f, `cast_bytes`). Biases are added
    in 32 bit. Per token the router passes E logits through some ten steps in 32 bit, or one
    kernel. Source: megatron/core/transformer/moe/token_dispatcher.py and moe_utils.py (0.16.1).
    """
    apart = 1.0 - p.fused_experts
    row = (8.0 - 4.0 * p.flex_dispatch - 2.0 * p.fused_experts) * p.hidden
    row = row + apart * (2.0 + p.gated_mlp) * p.ffn_hidden / s.expert_tp
    cast_bytes = p.cast_bytes * (p.hidden + p.ffn_hidden / s.expert_tp)
    is_cast = apart * _is_narrow(p)
    steps = 10.0 - 7.0 * p.fused_routing
    routing_bytes = 8.0 * steps * p.n_experts * s.tokens / s.norm_split
    row_bytes = p.activation_bytes * row + is_cast * cast_bytes
    routed_s = c.routed_traffic * _moved_s(p, s, c, s.routed_rows * row_bytes + routing_bytes)
    if not np.any(p.expert_biases):
        return routed_s
    bias_bytes = _adds_biases(p) * s.routed_rows * _BIAS_BYTES * p.hidden
    return routed_s + _moved_s(p, s, c, bias_bytes)


def _moved_s(p: Plans, s: Sizes, c: Constants, moved_bytes: Column) -> Column:
    tensor_bytes = s.tokens * p.activation_bytes * p.hidden
    is_cached = np.greater_equal(p.cache_bytes, tensor_bytes) & np.greater(p.cached_bytes_per_s, 0)
    memory_bytes_per_s = np.where(is_cached, p.cached_bytes_per_s, p.memory_bytes_per_s)
    return moved_bytes / (memory_bytes_per_s * c.memory_share)
