"""Pipeline stages by their work: which layers a stage has, and how Megatron is told.

A layout names the stages of all chunks, the first chunk of every rank first: `E` is the embedding,
`t` a layer, `m` a layer that predicts further tokens, `L` the head with the loss. Stages are
separated by `|`, and `(tt|)*3` stands for three of them.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

from autotune.job.model_shape import ModelShape

Stages = tuple[str, ...]
"""The letters of each stage, in the order of the layout."""
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)")
_DIGITS = 6
_LONGEST = 10**6
"""Letters of a layout that is written out, at most."""


@dataclass(frozen=True, kw_only=True)
class StageWork:
    """Work of a model's parts, in products of one token's forward pass."""

    n_layers: int
    n_dense_layers: int = 0
    """First layers that have one MLP where the others have experts."""
    n_mtp_layers: int = 0
    layer: float = 1.0
    dense_layer: float = 1.0
    mtp_layer: float = 0.0
    """A layer that predicts further tokens, with its own use of the head."""
    head: float = 0.0

    @property
    def tail(self) -> float:
        return self.n_mtp_layers * self.mtp_layer + self.head


def work_of(shape: ModelShape, seq_len: int) -> StageWork:
    """The work of a model's parts.

    A layer has a product for each of its weights that a token meets, and in attention one for each
    of the seq_len / 2 tokens before it, for keys and for values. The embedding is looked up.
    """
    h = float(shape.hidden)
    matrices = shape.mlp_matrices
    attention = _attention(shape, seq_len)
    experts = max(1, shape.experts_per_token) if shape.n_experts > 1 else 1
    mlp = matrices * h * (shape.ffn_hidden * experts + shape.shared_expert_hidden)
    head = h * shape.vocab
    return StageWork(
        n_layers=shape.n_layers,
        n_dense_layers=shape.n_dense_layers,
        n_mtp_layers=shape.n_mtp_layers,
        layer=attention + mlp,
        dense_layer=attention + matrices * h * shape.dense_ffn_hidden,
        mtp_layer=attention + mlp + 2 * h * h + head,
        head=head,
    )


def _attention(shape: ModelShape, seq_len: int) -> float:
    key = value = float(shape.attention_width)
    if shape.latent_kv_rank:
        key = float(shape.n_heads * (shape.latent_nope_dim + shape.latent_rope_dim))
        value = float(shape.n_heads * shape.latent_value_dim)
    return shape.attention_weights + seq_len / 2 * (key + value)


@lru_cache(maxsize=4096)
def balanced_layers(work: StageWork, pp: int, vp: int) -> tuple[int, ...]:
    """Layers of each stage of pp x vp, in the order of a layout, so that no rank has much more.

    A rank's work is that of all its chunks, and each of them has about as much. Of ranks that have
    as much the last ones have one more layer, since the first ones hold more micro-batches. Then
    layers move from the heaviest rank to others while that makes it lighter: dense first layers
    are not as heavy as the others. The chunk with the head may have no layer.
    """
    *ranks, last = _shared(work.n_layers, pp, work.tail / work.layer)
    chunks = [*(_shared(n, vp, 0.0) for n in ranks), _shared(last, vp, work.tail / work.layer)]
    counts = [chunks[rank][chunk] for chunk in range(vp) for rank in range(pp)]
    if work.n_dense_layers:
        counts = _moved(work, counts, pp)
    return tuple(counts)


def _shared(n_layers: int, parts: int, tail: float) -> list[int]:
    """Layers of some parts, of which the last has the work of `tail` more layers."""
    if parts == 1:
        return [n_layers]

    def heaviest(last: int) -> tuple[float, int]:
        return max(last + tail, -(-(n_layers - last) // (parts - 1))), -last

    fair = int((n_layers + tail) / parts - tail)
    last = min({max(0, min(n_layers, fair + more)) for more in (-1, 0, 1)}, key=heaviest)
    share, rest = divmod(n_layers - last, parts - 1)
    return [*([share] * (parts - 1 - rest)), *([share + 1] * rest), last]


def _moved(work: StageWork, counts: list[int], pp: int) -> list[int]:
    """Layers of stages after moves that make the heaviest rank lighter."""
    for _ in range(work.n_layers):
        loads = rank_loads(work, counts, pp)
        heaviest = max(range(pp), key=loads.__getitem__)
        lightest = min(range(pp), key=loads.__getitem__)
        taken = max(range(heaviest, len(counts), pp), key=counts.__getitem__)
        given = min(range(lightest, len(counts), pp), key=counts.__getitem__)
        moved = [n + (at == given) - (at == taken) for at, n in enumerate(counts)]
        if counts[taken] == 0 or max(rank_loads(work, moved, pp)) >= max(loads):
            break
        counts = moved
    return counts


def rank_loads(work: StageWork, counts: Sequence[int], pp: int) -> list[float]:
    """Work of each pipeline rank, with the head and all after the last layer on the last one."""
    loads = [0.0] * pp
    first = 0
    for at, count in enumerate(counts):
        n_dense = max(0, min(work.n_dense_layers - first, count))
        loads[at % pp] += n_dense * work.dense_layer + (count - n_dense) * work.layer
        first += count
    loads[-1] += work.tail
    return loads


def even_layers(n_layers: int, pp: int, vp: int) -> tuple[int, ...]:
    """Layers of stages that have as many each."""
    return (n_layers // (pp * vp),) * (pp * vp)


def written(counts: Sequence[int], n_mtp_layers: int) -> str:
    """The layout of stages with so many layers: `Et|(tt|)*30mL`."""
    stages = ["t" * count for count in counts]
    stages[0] = f"E{stages[0]}"
    *others, last = stages
    found = ""
    for stage, same in groupby(others):
        n = len(list(same))
        found += f"({stage}|)*{n}" if n > 2 else f"{stage}|" * n
    return f"{found}{last}{'m' * n_mtp_layers}L"


def stages_of(layout: str) -> Stages | None:
    """The stages of a layout; None: it is written in another way."""
    text = layout.replace(",", "").replace(" ", "")
    while (found := _REPEATED.search(text)) is not None:
        inner, times = (found[1], found[2]) if found[2] else (found[3], found[4])
        if len(times) > _DIGITS or len(text) + len(inner) * int(times) > _LONGEST:
            return None
        text = text[: found.start()] + inner * int(times) + text[found.end() :]
    return tuple(text.split("|")) if re.fullmatch(r"[EtmL|]+", text) else None


def layers_in(stages: Stages) -> tuple[int, ...]:
    """Layers of each stage."""
    return tuple(stage.count("t") for stage in stages)
