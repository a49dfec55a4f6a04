"""A decoder-only transformer as the layers of a DeepSpeed pipeline, each of them split over ranks.

It has the shapes and the arithmetic of Llama, Mistral, Qwen2, Qwen3 and GPT-2 as transformers
builds them, and needs torch and deepspeed alone: an export carries a copy of this file. Linear
layers are split by DeepSpeed's own tensor-parallel ones. Every layer draws its weights from a seed
of its own and as a whole before it is split, so that all layouts start from the same weights.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from deepspeed import comm as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.module_inject import set_autotp_mode
from deepspeed.module_inject.layers import LinearAllreduce, LinearLayer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from torch import nn
from torch.distributed import new_subgroups
from torch.nn import functional

IGNORED = -100
"""Label of a token that does not count."""

RECOMPUTABLE = ["Embedding", "Positions", "Block", "FinalNorm"]
"""Layers that activation checkpointing may recompute: all but the output head, whose product is
the largest of all and whose input is small."""

_CAN_GATHER = "gather_output" in inspect.signature(LinearLayer.__init__).parameters
"""Whether split layers can gather their outputs: in older releases of DeepSpeed they cannot, and
every rank holds the whole output head."""

_NAME = "pipeline"
"""Name of every split layer: releases that know models by their layers' names want one."""

_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a transformer, and what it computes with them."""

    n_layers: int
    hidden: int
    ffn_hidden: int
    n_heads: int
    n_kv_heads: int
    """Heads of keys and values, each shared by n_heads / n_kv_heads query heads."""
    head_dim: int
    vocab: int
    n_positions: int
    """Rows of the table of learned positions; 0: rotary positions."""
    norm: str
    """`rms` or `layer`."""
    norm_eps: float
    activation: str
    """`silu`, `relu`, `gelu` or `gelu_tanh`."""
    gated_mlp: bool
    qkv_bias: bool
    output_bias: bool
    """Whether the projection after the heads has a bias."""
    mlp_bias: bool
    qk_norm: bool
    """Whether queries and keys are normed per head."""
    tied_embeddings: bool
    rotary: Mapping[str, Any] = field(default_factory=dict)
    """`theta`; and with `kind` linear or llama3 its factors, as Hugging Face's `rope_parameters`
    name them."""
    embedding_dropout: float = 0.0
    attention_dropout: float = 0.0
    residual_dropout: float = 0.0
    init_std: float = 0.02


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a rank makes its share of the layers."""

    shape: Shape
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    group: Any = None
    """Ranks over which layers are split; None: they are not."""

    def generator(self, layer: int) -> torch.Generator:
        """Random numbers of one layer, counted from the embeddings."""
        device = "cpu" if self.device == "meta" else self.device
        return torch.Generator(device).manual_seed(self.seed * 100_003 + layer)

    def drawn(self, *size: int, generator: torch.Generator) -> nn.Parameter:
        weight = torch.empty(*size, dtype=self.dtype, device=self.device)
        if not weight.is_meta:
            weight.normal_(0.0, self.shape.init_std, generator=generator)
        return nn.Parameter(weight)

    def linear(self, inputs: int, outputs: int, bias: bool, generator: torch.Generator) -> Any:
        """A whole linear layer; biases start at 0."""
        layer = nn.utils.skip_init(
            nn.Linear, inputs, outputs, bias=bias, dtype=self.dtype, device=self.device
        )
        layer.weight = self.drawn(outputs, inputs, generator=generator)
        if bias:
            nn.init.zeros_(layer.bias)
        return layer

    def column(self, *sizes: Any, gathers: bool = False) -> nn.Module:
        """A linear layer of which each rank computes a share of the outputs."""
        layer = self.linear(*sizes)
        if self.group is None or (gathers and not _CAN_GATHER):
            return layer
        how = {"gather_output": True} if gathers else {}
        return LinearLayer(layer, self.group, name=_NAME, **how)

    def row(self, *sizes: Any) -> nn.Module:
        """A linear layer of which each rank holds a share of the inputs; the sum is on all."""
        layer = self.linear(*sizes)
        return layer if self.group is None else LinearAllreduce(layer, self.group, name=_NAME)

    def norm(self, size: int) -> nn.Module:
        kind = RMSNorm if self.shape.norm == "rms" else nn.LayerNorm
        return kind(size, eps=self.shape.norm_eps, dtype=self.dtype, device=self.device)


class RMSNorm(nn.Module):
    """Scales by the root mean square, computed in fp32."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype, device=device))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)


class Embedding(nn.Module):
    """Tokens to vectors; the same weight may be the output head."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        shape = build.shape
        self.weight = build.drawn(shape.vocab, shape.hidden, generator=build.generator(0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """(samples, tokens) to (samples, tokens, hidden)."""
        return functional.embedding(tokens, self.weight)


class Positions(nn.Module):
    """Adds a learned vector per position."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        size = build.shape.n_positions, build.shape.hidden
        self.weight = build.drawn(*size, generator=build.generator(1))
        self.dropout = nn.Dropout(build.shape.embedding_dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(x + self.weight[: x.shape[1]])


class Block(nn.Module):
    """Attention and MLP, each after a norm and around a residual."""

    def __init__(self, build: Build, index: int, rotary: "Rotary | None") -> None:
        super().__init__()
        generator = build.generator(2 + index)
        hidden = build.shape.hidden
        self.attention_norm = build.norm(hidden)
        self.attention = Attention(build, generator, rotary)
        self.mlp_norm = build.norm(hidden)
        self.mlp = MLP(build, generator)
        self.dropout = nn.Dropout(build.shape.residual_dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Attention(nn.Module):
    """Causal attention; every rank has its share of the heads."""

    def __init__(self, build: Build, generator: torch.Generator, rotary: "Rotary | None") -> None:
        super().__init__()
        shape = build.shape
        self.head_dim, self.rotary = shape.head_dim, rotary
        self.dropout = shape.attention_dropout
        width, kv_width = (n * shape.head_dim for n in (shape.n_heads, shape.n_kv_heads))
        self.q = build.column(shape.hidden, width, shape.qkv_bias, generator)
        self.k = build.column(shape.hidden, kv_width, shape.qkv_bias, generator)
        self.v = build.column(shape.hidden, kv_width, shape.qkv_bias, generator)
        self.out = build.row(width, shape.hidden, shape.output_bias, generator)
        self.q_norm = build.norm(shape.head_dim) if shape.qk_norm else nn.Identity()
        self.k_norm = build.norm(shape.head_dim) if shape.qk_norm else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (*x.shape[:2], -1, self.head_dim)
        q = self.q_norm(self.q(x).view(heads)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(heads)).transpose(1, 2)
        v = self.v(x).view(heads).transpose(1, 2)
        if self.rotary is not None:
            q, k = self.rotary.turn(q), self.rotary.turn(k)
        seen = functional.scaled_dot_product_attention(
            q,
            k,
            v,
            is_causal=True,
            dropout_p=self.dropout if self.training else 0.0,
            enable_gqa=k.shape[1] != q.shape[1],
        )
        return self.out(seen.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """Two linear layers, or three with a gate; every rank has its share of the width."""

    def __init__(self, build: Build, generator: torch.Generator) -> None:
        super().__init__()
        shape = build.shape
        sizes = (shape.hidden, shape.ffn_hidden, shape.mlp_bias)
        self.activation = _ACTIVATIONS[shape.activation]
        self.gate = build.column(*sizes, generator) if shape.gated_mlp else None
        self.up = build.column(*sizes, generator)
        self.down = build.row(shape.ffn_hidden, shape.hidden, shape.mlp_bias, generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        wide = self.activation(up) if self.gate is None else self.activation(self.gate(x)) * up
        return self.down(wide)


class FinalNorm(nn.Module):
    """The norm before the output head, where that is the embeddings' weight."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.norm = build.norm(build.shape.hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


class Head(nn.Module):
    """Vectors to logits, by a weight of its own and after the last norm."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        shape = build.shape
        self.norm = build.norm(shape.hidden)
        generator = build.generator(2 + shape.n_layers)
        self.out = build.column(shape.hidden, shape.vocab, False, generator, gathers=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(samples, tokens, hidden) to (samples, tokens, vocabulary)."""
        return self.out(self.norm(x))


class Rotary:
    """Turns queries and keys by their positions; one for all blocks of a rank."""

    def __init__(self, shape: Shape) -> None:
        """Work out the frequencies (Su et al., RoFormer, arXiv:2104.09864)."""
        exponents = torch.arange(0, shape.head_dim, 2, dtype=torch.float) / shape.head_dim
        self.frequencies = _scaled(1.0 / (shape.rotary["theta"] ** exponents), shape.rotary)
        self._tables: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        """Turn (samples, heads, tokens, head_dim)."""
        cos, sin = self._table(x.shape[2], x.dtype, x.device)
        left, right = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-right, left), dim=-1) * sin

    def _table(
        self, n_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key = (n_tokens, dtype, device)
        if key not in self._tables:
            positions = torch.arange(n_tokens, dtype=torch.float, device=device)
            half = torch.outer(positions, self.frequencies.to(device))
            angles = torch.cat((half, half), dim=-1)
            self._tables[key] = angles.cos().to(dtype), angles.sin().to(dtype)
        return self._tables[key]


def _scaled(frequencies: torch.Tensor, rotary: Mapping[str, Any]) -> torch.Tensor:
    """Frequencies for contexts that are longer than those of pretraining."""
    kind = rotary.get("kind", "default")
    if kind == "default":
        return frequencies
    slowed = frequencies / rotary["factor"]
    if kind == "linear":
        return slowed
    # Llama 3.1: slow turns are slowed, fast ones left alone, those between mixed.
    turns = rotary["original_max_position_embeddings"] * frequencies / (2 * math.pi)
    low, high = rotary["low_freq_factor"], rotary["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * slowed + share * frequencies


def project(embedding: Embedding, x: torch.Tensor) -> torch.Tensor:
    """The output head of tied embeddings: vectors to logits by the embeddings' own weight."""
    return functional.linear(x, embedding.weight)


def layer_specs(build: Build) -> list[LayerSpec]:
    """The layers, from tokens to logits."""
    shape = build.shape
    rotary = None if shape.n_positions else Rotary(shape)
    blocks = [LayerSpec(Block, build, index, rotary) for index in range(shape.n_layers)]
    if shape.n_positions:
        blocks.insert(0, LayerSpec(Positions, build))
    if not shape.tied_embeddings:
        return [LayerSpec(Embedding, build), *blocks, LayerSpec(Head, build)]
    return [
        TiedLayerSpec("embedding", Embedding, build),
        *blocks,
        LayerSpec(FinalNorm, build),
        TiedLayerSpec("embedding", Embedding, build, forward_fn=project),
    ]


def next_token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of each token's successor, in fp32.

    Logits are (samples, tokens, vocabulary); labels (samples, tokens): the tokens, or `IGNORED`.
    """
    targets = functional.pad(labels, (0, 1), value=IGNORED)[:, 1:]
    return functional.cross_entropy(
        logits.float().flatten(0, 1), targets.flatten(), ignore_index=IGNORED
    )


class Pipeline(PipelineModule):
    """Cuts by the parameters of whole layers.

    DeepSpeed's own cut counts the parameters of this rank's slices. Where a width does not divide
    evenly the slices differ: ranks would cut in different places and wait for each other for ever.
    """

    def __init__(self, build: Build, **keywords: Any) -> None:
        """Cut and build this rank's stage; further arguments as PipelineModule's."""
        self._n_params = layer_sizes(build)
        super().__init__(layer_specs(build), **keywords)

    def _count_layer_params(self) -> list[int]:
        return self._n_params


def layer_sizes(build: Build) -> list[int]:
    """Parameters of each layer, whole; none of them takes memory."""
    whole = replace(build, group=None, device="meta")
    layers = [spec.build() for spec in layer_specs(whole)]
    return [sum(weight.numel() for weight in layer.parameters()) for layer in layers]


def make_pipeline(
    shape: Shape, *, pp: int, tp: int, seed: int, dtype: torch.dtype
) -> PipelineModule:
    """The layers of this rank's stage, split over its tensor-parallel group.

    Ranks of a tensor-parallel group are neighbours, those of a stage follow one another: rank =
    (stage * dp + data) * tp + slice. Stages hold about as many parameters each. How much of it is
    recomputed stands in the ds_config (`pipeline.activation_checkpoint_interval`).

    There are `pp` stages, whose layers are each split over `tp` ranks: it divides the heads, also
    those of keys and values.

    Raises:
        ValueError: It cannot be cut so. Every rank raises it: one that fails alone would leave the
            others waiting.
    """
    if shape.n_heads % tp or shape.n_kv_heads % tp:
        raise ValueError(
            f"tp={tp} does not divide {shape.n_heads} heads and {shape.n_kv_heads} key-value heads"
        )
    set_autotp_mode(training=True)
    build = Build(
        shape=shape,
        seed=seed,
        dtype=dtype,
        device=get_accelerator().current_device_name(),
        # This rank's neighbours; every rank makes every group.
        group=None if tp == 1 else new_subgroups(tp)[0],
    )
    n_layers = len(layer_specs(build))
    if pp > n_layers:
        raise ValueError(f"pp={pp} stages, and {n_layers} layers to cut into them")
    topology = PipeModelDataParallelTopology(
        num_pp=pp, num_mp=tp, num_dp=dist.get_world_size() // (pp * tp)
    )
    return Pipeline(
        build,
        topology=topology,
        loss_fn=next_token_loss,
        partition_method="parameters",
        checkpointable_layers=RECOMPUTABLE,
    )
