"""What is laid out, and layouts in columns: all that the rules and the cost model look at."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.engines.megatron.choices import BALANCED, LAYOUTS
from autotune.engines.megatron.stages import (
    Stages,
    StageWork,
    balanced_layers,
    even_layers,
    layers_in,
    stages_of,
)

Counts = NDArray[np.int64]
Columns = Mapping[str, Counts]
"""Column name -> a whole number per layout; switches are 0 and 1."""
Truth = NDArray[np.bool_]
SHARES_KV_HEADS = "0.16"
"""Release of Megatron Core from which tensor parallel ranks may share a key and value head.
Source: megatron/core/transformer/transformer_config.py of 0.15 and 0.16."""


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
    """True if a fused attention kernel runs on the device at the job's precision."""
    vp_group: int = 0
    """Micro-batches of a group of interleaved chunks; 0: as many as the pipeline has stages."""
    shares_kv_heads: bool = True
    """True if several tensor parallel ranks may have the same key and value head."""
    on_cpu: bool = False
    """True if the ranks have no GPU."""
    without_te: bool = False
    """True if the ranks have a GPU, and no Transformer Engine is installed for it."""
    has_torch_norms: bool = False
    """Whether the norms on a GPU are torch's, which know no sequence parallelism: those of
    Transformer Engine do, and Apex's LayerNorm."""
    in_fp32: bool = False
    in_bf16: bool = True
    has_fp8: bool = True
    has_fp4: bool = True
    deepep_ranks: int = 2**31 - 1
    """The most ranks among which DeepEP's kernels send tokens; 0: they do not run."""
    lacking: frozenset[str] = frozenset()
    """Knobs whose flag the release of Megatron Core lacks."""
    release: str = ""
    from_0_17: bool = True
    work: StageWork | None = None
    """Work of the model's parts; None: all layers are alike, and there is nothing else."""
    n_dense_layers: int = 0
    """First layers of a mixture of experts that have one MLP in place of experts."""
    dense_ffn_hidden: int = 0
    shared_expert_hidden: int = 0
    """0: there are no shared experts."""
    latent_kv_rank: int = 0
    """0: attention is not latent."""
    n_mtp_layers: int = 0
    has_sinks: bool = False
    has_attention_biases: bool = False
    groups_experts: bool = False
    """True if one grouped product of Transformer Engine computes a rank's experts."""
    expert_bytes: float = 0.0
    """Weights of all experts, with their gradients."""
    other_bytes: float = 0.0
    """Weights of all else, with their gradients."""
    memory_bytes: float = 0.0
    """Memory of a device; 0: unknown."""
    tracks_aux_loss: bool = False
    """Whether the script sums losses of load balancing over the pipeline in a tracker that counts
    layers of experts otherwise than layers that predict further tokens."""
    fp8_here: tuple[int, int] = (0, 0)
    """Format and recipe of fp8 that fit the device, as places in their knobs' values."""
    flex_here: int = 0
    """The dispatcher that sends each token once, as a place in its knob's values; 0: none runs."""
    fuses_experts: bool = False
    """True if Transformer Engine has one kernel for an expert in the device's fp8."""
    graphs_here: int = 0
    """Parts of a layer that CUDA graphs capture, as a place in their knob's values; 0: none."""
    paced_tokens: float = 0.0
    """Tokens of a rank's micro-batch below which launches may take longer than kernels."""

    @property
    def stage_work(self) -> StageWork:
        return self.work or StageWork(n_layers=self.n_layers)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayoutRows:
    """Layouts in columns, with what they lay out."""

    task: LayoutTask
    columns: Columns

    def row(self, index: int) -> dict[str, int]:
        return {name: int(column[index]) for name, column in self.columns.items()}


def expert_tp(etp: Counts, tp: Counts) -> Counts:
    """Tensor parallel degree of the experts: that of the other layers where they have none."""
    return np.where(etp > 0, etp, tp)


def chunk_layers(task: LayoutTask, rows: Columns) -> Counts:
    """Layers of one model chunk of a pipeline rank, with embedding and loss where they count."""
    return (task.n_layers + 2 * rows["ends_as_layers"]) // (rows["pp"] * rows["vp"])


def middle_layers(
    n_layers: int, pp: Counts, first_stage_layers: Counts, last_stage_layers: Counts
) -> tuple[Counts, Counts]:
    """Layers that stages share evenly, since nobody set theirs, and how many such stages."""
    stages = pp - (first_stage_layers > 0) - (last_stage_layers > 0)
    return n_layers - first_stage_layers - last_stage_layers, stages


def placed(task: LayoutTask, pp: int, vp: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage of pp x vp, in the order of a layout string."""
    if stages == BALANCED:
        return balanced_layers(task.stage_work, pp, vp)
    if stages:
        return layers_in(written_stages(stages))
    return even_layers(task.n_layers, pp, vp)


def written_stages(stages: int) -> Stages:
    """The stages of a layout that somebody wrote, by its number; none: it is not a layout."""
    return stages_of(LAYOUTS.text(stages)) or ()


def stage_layers(task: LayoutTask, row: Mapping[str, int]) -> list[int]:
    """Layers of each pipeline rank of a legal layout."""
    if row["stages"]:
        counts = placed(task, row["pp"], row["vp"], row["stages"])
        return [sum(counts[rank :: row["pp"]]) for rank in range(row["pp"])]
    if row["ends_as_layers"]:
        inner = [(task.n_layers + 2) // row["pp"]] * (row["pp"] - 2)
        ends = (task.n_layers - sum(inner)) // 2
        return [ends, *inner, ends]
    first, last = row["first_stage_layers"], row["last_stage_layers"]
    rest, stages = task.n_layers - first - last, row["pp"] - (first > 0) - (last > 0)
    middle = [rest // stages] * stages if stages else []
    return [*filter(None, [first]), *middle, *filter(None, [last])]


def edge_layers(task: LayoutTask, rows: Columns) -> tuple[Counts, Counts, Counts]:
    """Layers of the first, the last and the fullest rank between, if any; 0 if all are alike."""
    uneven = ("stages", "first_stage_layers", "last_stage_layers", "ends_as_layers")
    names = (*uneven, "pp", "vp")
    keys = np.stack([rows[name] for name in names])
    found = np.zeros((3, keys.shape[1]), dtype=np.int64)
    where = np.flatnonzero((keys[: len(uneven)] > 0).any(axis=0))
    if len(where):

        def edges(*split: int) -> tuple[int, int, int]:
            layers = stage_layers(task, dict(zip(names, split, strict=True)))
            return layers[0], layers[-1], max(1, *(layers[1:-1] or layers))

        found[:, where] = of_splits(edges, *keys[:, where]).T
    first, last, most = found
    return first, last, most


def of_splits(function: Callable[..., Any], *columns: Counts) -> NDArray[Any]:
    """What a function says of each row of some columns, asked once for rows that are alike."""
    splits, places = np.unique(np.stack(columns), axis=1, return_inverse=True)
    return np.array([function(*map(int, split)) for split in splits.T])[np.ravel(places)]
