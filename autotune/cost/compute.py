"""How long a rank computes: matrix products, attention, element-wise kernels, logits, Adam."""

from dataclasses import dataclass

import numpy as np

from autotune.cost.constants import Constants
from autotune.cost.plans import Column, Plans, Recompute, Tier
from autotune.cost.sizes import Sizes

_NORMS_SHARE = 0.2
"""Part of a layer's element-wise traffic that its norms are: 4 h of about 20 h, as `_elementwise`
counts them for GPT."""

_WRITTEN_KERNELS = 0.33
"""Share by which a layer has more kernels where attention writes its scores."""


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


def layer_times(p: Plans, s: Sizes, c: Constants) -> LayerTimes:
    """Times of a layer.

    Full recomputation runs the forward pass again (Chen et al.,
    arXiv:1604.06174); selective that of the attention core (Korthikanti et al., arXiv:2205.05198,
    section 5); torch's per-operator checkpoints the element-wise kernels.
    """
    matmul_forward, matmul_backward = _matmul(p, s, c)
    attention_forward, attention_backward = _attention(p, s, c)
    elementwise_forward = _elementwise(p, s, c)
    # Backward reads the gradient and what was kept, and writes a gradient: half as much again.
    elementwise_backward = 1.5 * elementwise_forward
    is_full = np.equal(p.recompute, Recompute.FULL) / p.recompute_every
    is_selective = np.equal(p.recompute, Recompute.SELECTIVE)
    is_operators = np.equal(p.recompute, Recompute.OPERATORS)
    takes_mlp = np.maximum(p.recomputes_mlp, p.recomputes_experts)
    again = (
        is_full * matmul_forward
        + (is_full + is_selective * p.recomputes_scores) * attention_forward
        + (is_full + is_operators) * elementwise_forward
        + is_selective * takes_mlp * _mlp_share(s) * matmul_forward
        + is_selective * p.recomputes_norms * _NORMS_SHARE * elementwise_forward
    )
    forward = matmul_forward + attention_forward + elementwise_forward
    backward = matmul_backward + attention_backward + elementwise_backward
    kernels = c.kernels_per_layer * (2.0 - p.fused_kernels) * (3.0 + is_full)
    kernels = kernels * (1.0 + c.skew_share * (p.tp - 1.0)) * _attention_kernels(p)
    # A measured layer is one of unfused kernels, without recomputation.
    measured_s = p.layer_host_s / (c.kernels_per_layer * 2.0 * 3.0)
    launch_s = np.where(np.greater(p.layer_host_s, 0), measured_s, c.launch_s)
    return LayerTimes(
        matmul_s=matmul_forward + matmul_backward,
        attention_s=attention_forward + attention_backward,
        elementwise_s=elementwise_forward + elementwise_backward,
        recompute_s=again,
        launch_s=launch_s * kernels * (1.0 - p.launch_free),
        forward_s=forward,
        backward_s=backward + again,
    )


def logits_s(p: Plans, s: Sizes, c: Constants) -> Column:
    """Output projection and loss of one micro-batch, forward and backward.

    3 x 2 T h V / tp operations (PaLM, arXiv:2204.02311, appendix B), and the loss reads and writes
    the logits a few times in 32 bit. Where it is computed chunk by chunk, each is computed again
    backward.
    """
    again = np.greater(p.loss_chunk_tokens, 0) * 1.0
    product_flops = (3.0 + again) * 2.0 * s.tokens * p.vocab / p.tp * p.hidden
    product = product_flops / (_half_rate(p) * c.matmul_share)
    moved_s = 2.0 * p.logit_bytes / (p.memory_bytes_per_s * c.memory_share)
    logit_s = np.where(np.greater(p.logit_s, 0), p.logit_s, moved_s)
    return product + (1.0 + again / 3.0) * s.tokens * s.loss_vocab * logit_s


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
    on_drive = 2.0 * params * p.optimizer_bytes / drive_share
    share = p.optimizer_host_share
    return np.where(
        np.equal(p.optimizer_tier, Tier.DEVICE),
        np.maximum((1.0 - share) * on_device, share * on_host),
        on_host + np.equal(p.optimizer_tier, Tier.NVME) * on_drive,
    )


def _mlp_share(s: Sizes) -> Column:
    """Part of a layer's products that its MLP computes, for one token."""
    mlp = s.experts_per_token * s.mlp_params
    return mlp / (mlp + s.attention_params)


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


def _half_rate(p: Plans) -> Column:
    return p.half_flops * p.sustained_share


def _matmul(p: Plans, s: Sizes, c: Constants) -> tuple[Column, Column]:
    """Products of one layer, forward and backward.

    Time = operations / rate + bytes moved / bandwidth. Dividing by the operations shows what that
    is: 1 / efficiency = 1 + (rate / bandwidth) (1/m + 1/n + 1/k), a curve that saturates in all
    three sizes, at the balance of the device: the roofline of Williams et al. (CACM 52, 2009) with
    its corner rounded. Backward are two products of the same sizes, and the gradient of the
    weights is added to what has been accumulated.
    """
    gain = p.matmul_flops / p.half_flops
    rate = _half_rate(p) * c.matmul_share * (1.0 + c.low_precision_share * (gain - 1.0))
    bandwidth = p.memory_bytes_per_s * c.memory_share
    tokens = s.tokens
    routed = tokens * s.experts_per_token
    rank_params = (s.attention_params + s.mlp_matrices * p.hidden * p.shared_expert_hidden) / p.tp
    mlp_params = s.mlp_params / p.tp
    flops = 2.0 * (tokens * rank_params + routed * mlp_params)
    widths = 2.0 * p.hidden + 2.0 * (s.attention_width + s.kv_width) / p.tp
    mlp_widths = 2.0 * p.hidden + s.mlp_matrices * p.ffn_hidden / p.tp
    weights = rank_params + s.expert_share * mlp_params
    elements = tokens * widths + routed * mlp_widths + weights
    moved_s = np.where(
        np.greater(p.operand_elements_per_s, 0),
        elements / np.maximum(1.0, p.operand_elements_per_s),
        c.matmul_traffic * 2.0 * elements / bandwidth,
    )
    forward = flops / rate + moved_s
    accumulate = (2.0 * p.grad_bytes + p.accumulate_bytes) * weights / bandwidth
    return forward, forward + p.trained_share * (forward + accumulate)


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
    fused_forward = 0.5 * score_flops / forward_rate * starts
    fused_backward = 1.25 * score_flops / backward_rate * starts
    scores = s.tokens * p.seq_len * p.n_heads / p.tp
    traffic = scores * c.score_traffic_bytes / (p.memory_bytes_per_s * c.memory_share)
    written = score_flops / (_half_rate(p) * c.matmul_share) + traffic
    forward = np.where(p.flash_attention, fused_forward, written)
    backward = np.where(p.flash_attention, fused_backward, 2.0 * written)
    return forward, backward


def _elementwise(p: Plans, s: Sizes, c: Constants) -> Column:
    """Norms, residuals, dropout, rotary embeddings and the activation of one layer, forward.

    Each kernel reads its inputs and writes its result once. Per token, in elements: two norms
    (4 h), two residual sums (6 h, their dropout masks 1 byte), the heads' layout and positions
    (2 (a + 2k)), the activation (2 f, gated 3 f). Megatron's sequence parallelism splits the first
    two over the tensor parallel ranks (Korthikanti et al., arXiv:2205.05198, section 4.2.2).
    """
    norms = 10.0 * p.hidden / s.norm_split
    heads = 2.0 * (s.attention_width + 2.0 * s.kv_width) / p.tp
    activation = s.experts_per_token * (2.0 + p.gated_mlp) * p.ffn_hidden / p.tp
    moved_bytes = s.tokens * (
        p.activation_bytes * (norms + heads + activation) + 2.0 * p.has_dropout * p.hidden
    )
    fusion = 1.0 + (c.unfused_traffic - 1.0) * (1.0 - p.fused_kernels)
    tensor_bytes = s.tokens * p.activation_bytes * p.hidden
    is_cached = np.greater_equal(p.cache_bytes, tensor_bytes) & np.greater(p.cached_bytes_per_s, 0)
    memory_bytes_per_s = np.where(is_cached, p.cached_bytes_per_s, p.memory_bytes_per_s)
    return fusion * moved_bytes / (memory_bytes_per_s * c.memory_share)
