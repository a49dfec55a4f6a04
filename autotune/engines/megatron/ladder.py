"""The ladder that a search climbs for its baseline: what NVIDIA publishes as a rule of thumb.

Data parallelism with the distributed optimizer as far as memory allows, then tensor parallelism
inside the domain that is joined without the network, then pipelines; recomputation only where
nothing runs without it.

Source: NVIDIA/Megatron-LM, megatron/core/transformer/moe/README.md, on choosing a parallelism.
"""

from collections.abc import Iterator

from autotune.engines.megatron.knobs import LATTICE_KNOBS
from autotune.engines.megatron.layout_task import LayoutTask
from autotune.space.candidate import Candidate


def ladder(task: LayoutTask) -> Iterator[list[Candidate]]:
    """Candidates, legal or not: a rung for each way to split the model, by its micro-batches."""
    for recompute in ("none", "full"):
        for tp, pp in _splits(task):
            replicas = task.world // (tp * pp)
            share, rest = divmod(task.global_batch, replicas)
            sizes = [] if rest else [2**k for k in range(share.bit_length()) if share % 2**k == 0]
            yield [
                _rung(task, recompute=recompute, tp=tp, pp=pp, micro_batch=size, dp=replicas)
                for size in sizes
            ]


def _splits(task: LayoutTask) -> list[tuple[int, int]]:
    """Degrees of tensor and pipeline parallelism, those that split least first."""
    powers = [2**k for k in range(task.world.bit_length()) if task.world % 2**k == 0]
    within = [tp for tp in powers if tp <= task.domain]
    return [(tp, 1) for tp in within] + [
        (within[-1], pp) for pp in powers if pp > 1 and task.world % (within[-1] * pp) == 0
    ]


def _rung(
    task: LayoutTask, *, recompute: str, tp: int, pp: int, micro_batch: int, dp: int
) -> Candidate:
    chosen = {name: knob.default for name, knob in LATTICE_KNOBS.items()} | {
        "tp": tp,
        "pp": pp,
        "micro_batch": micro_batch,
        "recompute": recompute,
        "sequence_parallel": tp > 1 and not task.has_torch_norms,
        "distributed_optimizer": dp > 1,
    }
    return Candidate.of(chosen, world=task.world, global_batch=task.global_batch)
