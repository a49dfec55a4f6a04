"""How DeepSpeed cuts the pipeline's layers into stages, known before anything is built."""

from functools import lru_cache
from itertools import accumulate, pairwise

from autotune.job.model_shape import ModelShape


@lru_cache(maxsize=256)
def stages(model: ModelShape, pp: int) -> tuple[tuple[int, int], ...]:
    """Parameters and layers of each stage.

    Stages differ as little as possible. Among all cuts of the first layers that end at a place,
    the one whose largest and smallest stage are closest goes on, among equals the latest. There
    are fewer than `pp` stages where there are fewer layers. Layers that cannot be seen are split
    evenly.

    Source: runtime/utils.py: partition_balanced.
    """
    if not model.n_layers:  # a script's own pipeline, whose layers cannot be seen
        return ((model.n_params // pp, 0),) * pp
    sizes = _layer_sizes(model)
    ends = _cuts(sizes, pp) if len(sizes) > pp else range(len(sizes) + 1)
    return tuple((sum(sizes[first:last]), last - first) for first, last in pairwise(ends))


def _layer_sizes(model: ModelShape) -> list[int]:
    """Parameters of each layer, as autotune/trial/scripts/transformer.py lists them."""
    table, has_positions = model.vocab * model.hidden, model.max_seq_len is not None
    positions = (model.max_seq_len or 0) * model.hidden
    norm = model.hidden * (2 if has_positions else 1)
    rest = table * (1 if model.tied_embeddings else 2) + positions + norm
    block = max(1, (model.n_params - rest) // model.n_layers)
    first = [table, positions] if has_positions else [table]
    last = [norm, table] if model.tied_embeddings else [norm + table]
    return [*first, *[block] * model.n_layers, *last]


def _cuts(sizes: list[int], pp: int) -> list[int]:
    """First layer of each stage, and the end of the last one."""
    n, total = len(sizes), [0, *accumulate(sizes)]
    # By place: the largest and the smallest stage before it, and where each of them ends.
    ways = {end: (total[end], total[end], [0, end]) for end in range(1, n + 1)}
    for n_stages in range(2, pp + 1):
        longer = {}
        for end in range(n_stages, n + 1):
            before = ((total[end] - total[cut], *ways[cut]) for cut in range(n_stages - 1, end))
            tried = [
                (max(size, most), min(size, least), cuts) for size, most, least, cuts in before
            ]
            most, least, cuts = min(reversed(tried), key=lambda way: way[0] - way[1])
            longer[end] = most, least, [*cuts, end]
        ways = longer
    return ways[n][2]
