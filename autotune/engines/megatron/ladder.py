"""The ladder that a search climbs for its baseline: what NVIDIA publishes as a rule of thumb.

Data parallelism with the distributed optimizer as far as memory allows, then experts spread over
the domain that is joined without the network, then tensor parallelism as far as both fit into it,
then pipelines, then more of it; recomputation only where nothing runs without it.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, on choosing a parallelism.
"""

from collections.abc import Iterator

from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.engines.megatron.layout_task import LayoutTask
from autotune.space.candidate import Candidate


def ladder(task: LayoutTask) -> Iterator[list[Candidate]]:
    """Candidates, legal or not: a rung for each way to split the model, by its micro-batches."""
    for recompute in ("none", "full"):
        for split in _splits(task):
            replicas = task.world // (split["tp"] * split["pp"])
            share, rest = divmod(task.global_batch, replicas)
            sizes = [] if rest else [2**k for k in range(share.bit_length()) if share % 2**k == 0]
            yield [_rung(task, split, recompute, size) for size in sizes]


def _splits(task: LayoutTask) -> list[dict[str, int]]:
    """Degrees `tp`, `pp` and `ep`, those that split least first."""
    powers = [2**k for k in range(task.world.bit_length()) if task.world % 2**k == 0]
    within = [degree for degree in powers if degree <= task.domain]
    spread = [ep for ep in within if max(1, task.n_experts) % ep == 0]
    n_near = sum(tp * spread[-1] <= task.domain for tp in within)
    splits = [{"tp": 1, "pp": 1, "ep": ep} for ep in spread[:-1]]
    for degrees in filter(None, (within[:n_near], within[n_near:])):
        deep = (pp for pp in powers[1:] if degrees[-1] * pp <= powers[-1])
        pairs = [*((tp, 1) for tp in degrees), *((degrees[-1], pp) for pp in deep)]
        splits += [{"tp": tp, "pp": pp, "ep": spread[-1]} for tp, pp in pairs]
    return splits


def _rung(task: LayoutTask, split: dict[str, int], recompute: str, micro_batch: int) -> Candidate:
    has_tp = split["tp"] > 1
    chosen = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | {
        **split,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "sequence_parallel": has_tp and not task.has_torch_norms,
        "distributed_optimizer": split["tp"] * split["pp"] < task.world,
    }
    if task.n_layers % split["pp"]:
        chosen["stages"] = "balanced"
    if has_tp and split["ep"] > 1:
        chosen["etp"] = 1  # experts are spread, not split
    return Candidate.of(chosen, world=task.world, global_batch=task.global_batch)
