"""Elasticity, which DeepSpeed had before 0.19.8: it takes the batch sizes into its own hands.

The global batch is part of the problem. So a file with elasticity is legal only where the batch
that DeepSpeed makes of it, in this world, is the one that is asked for. It is no knob: where it is
legal, the run is the one without it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup
from autotune.space.rule import Finding, Patch, rule

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS
_MOST, _SIZES, _IGNORE = (
    "max_train_batch_size",
    "micro_batch_sizes",
    "ignore_non_elastic_batch_info",
)
_HIGHLY_COMPOSITE = (
    *(1, 2, 4, 6, 12, 24, 36, 48, 60, 120, 180, 240, 360, 720, 840, 1260, 1680, 2520, 5040, 7560),
    *(10080, 15120, 20160, 25200, 27720, 45360, 50400, 55440, 83160, 110880, 166320, 221760),
    *(277200, 332640, 498960, 554400, 665280, 720720),
)
"""Factors by which a batch is scaled up (elasticity/elasticity.py: HCN_LIST)."""
_MEASURED_AGAINST_MOST_SINCE = "0.19.6"
"""First release read that drops a common multiple which is more than the batch may be."""
_MOST_WORLDS = 1_000_000
"""World sizes that are gone through for a batch at the most."""

_NEWEST_FORM = 0.2
_DEFAULTS: Mapping[str, int] = {
    "min_gpus": 1,
    "max_gpus": 10_000,
    "num_gpus_per_node": 1,
    "model_parallel_size": 1,
}

_OFF: Patch = {"elasticity": {"enabled": False}}


@rule("elasticity/config.py of 0.19.6: ElasticityConfig")
def _incomplete(setup: Setup) -> Finding | None:
    section = setup.elasticity
    missing = [name for name in (_MOST, _SIZES) if section and section.get(name) is None]
    if not missing:
        return None
    return Finding(
        message=f"elasticity without {' and '.join(missing)}",
        changes=_OFF,
        advice=f"or set elasticity.{missing[0]}",
    )


@rule("runtime/config.py:757-770 of 0.19.6")
def _sizes_beside_it(setup: Setup) -> Finding | None:
    section = setup.elasticity
    named = [name for name in BATCH_KEYS if setup.ds_config.get(name) is not None]
    if not section or not named or section.get(_IGNORE) is True or _incomplete.check(setup):
        return None
    is_same = elastic_sizes(setup) == setup.batch
    return Finding(
        message=f"elasticity beside {' and '.join(named)}: DeepSpeed {setup.version} takes the "
        "batch from one of them alone",
        changes={"elasticity": {_IGNORE: True}} if is_same else _OFF,
        advice=""
        if is_same
        else f"or remove {' and '.join(named)}: the batch is another one then",
    )


@rule("elasticity/elasticity.py of 0.19.6: compute_elastic_config")
def _world(setup: Setup) -> Finding | None:
    found = _batch_and_worlds(setup)
    if found is None or (ranks := setup.batch_ranks) in found[1] or _sizes_beside_it.check(setup):
        return None
    worlds = ", ".join(map(str, found[1][:8])) or "none"
    return Finding(
        message=f"elasticity: {ranks} ranks are not among those that its batch of {found[0]} "
        f"can be shared by ({worlds})",
        advice="remove elasticity and state the batch, or choose other micro_batch_sizes",
    )


@rule(
    "runtime/config.py:776-790 of 0.19.6; the global batch is part of the problem",
    consequence="differs",
)
def _other_batch(setup: Setup) -> Finding | None:
    made = elastic_sizes(setup)
    if made is None or _sizes_beside_it.check(setup):
        return None
    asked, wanted = setup.batch, setup.global_batch
    if (asked is None or asked == made) and wanted in (None, made[2]):
        return None
    micro, accum, total = made
    theirs = f"{asked[0]} * {asked[1]} * {setup.batch_ranks} = {asked[2]}" if asked else wanted
    section = setup.elasticity
    return Finding(
        message=f"elasticity: of {_MOST}={section[_MOST]} and {_SIZES}={section[_SIZES]} "
        f"DeepSpeed makes micro_batch * grad_accum * dp = {micro} * {accum} * "
        f"{setup.batch_ranks} = {total}, where {theirs} is asked for: the global batch is part of "
        "the problem",
        changes=_OFF if asked else {},
        advice="" if asked else "remove elasticity and state the batch",
    )


def elastic_sizes(setup: Setup) -> tuple[int, int, int] | None:
    """micro_batch, grad_accum and train_batch_size that DeepSpeed makes of the section.

    None where elasticity is off or the section cannot be used, or the world is none of its.
    """
    found = _batch_and_worlds(setup)
    if found is None or (ranks := setup.batch_ranks) not in found[1]:
        return None
    total = found[0]
    fits = [size for size in setup.elasticity[_SIZES] if total // ranks % size == 0]
    return (max(fits), total // (max(fits) * ranks), total) if fits else None


def _batch_and_worlds(setup: Setup) -> tuple[int, list[int]] | None:
    """The global batch that DeepSpeed makes, and the data-parallel ranks that can share it.

    None where it is off or cannot be used.
    Source: elasticity/elasticity.py: compute_elastic_config, _get_compatible_gpus_v02.
    """
    section = setup.elasticity
    if not section:
        return None
    ranks = setup.batch_ranks
    most, sizes = section.get(_MOST), section.get(_SIZES)
    version = section.get("version", _NEWEST_FORM)
    if version not in (0.1, _NEWEST_FORM) or not _is_size(most) or not isinstance(sizes, list):
        return None
    named = {name: section.get(name, value) for name, value in _DEFAULTS.items()}
    if not sizes or not all(map(_is_size, (*sizes, *named.values()))):
        return None
    on_node, parts = (named.pop(name) for name in ("num_gpus_per_node", "model_parallel_size"))
    if version == 0.1:
        on_node = parts = 1
    per_node = on_node // parts
    if on_node % parts or max(sizes) > most // per_node or most // min(sizes) > _MOST_WORLDS:
        return None
    likes_large = section.get("prefer_larger_batch", True) is not False
    batch, nodes = _shared(
        sizes,
        most // per_node,
        fewest=named["min_gpus"] // on_node or 1,
        largest=named["max_gpus"] // on_node or most // per_node // min(sizes),
        likes_large=likes_large,
        is_measured=setup.is_at_least(_MEASURED_AGAINST_MOST_SINCE),
    )
    worlds = [n * per_node for n in nodes or ()]
    if version == 0.1 or nodes is None or ranks // parts in worlds:
        return batch * per_node, worlds
    own = ranks // parts  # as many as there are, whatever the nodes
    if not own:
        return None
    scaled = [most // (size * own) * size * own for size in sizes]
    return max(scaled) if likes_large else min(scaled), [own]


def _shared(
    sizes: Sequence[int],
    most: int,
    *,
    fewest: int,
    largest: int,
    likes_large: bool,
    is_measured: bool,
) -> tuple[int, list[int] | None]:
    """The batch that most worlds can share, with these; None: it has been given none, and fails.

    Source: _get_compatible_gpus_v01, get_best_candidates.
    """
    best, worlds, n_worlds = min(sizes), None, 0
    for batch in _batches([*sizes, math.lcm(*sizes)], most, is_measured=is_measured):
        found = sorted(set(_worlds(batch, sizes, fewest, largest)))
        is_liked = batch > best if likes_large else batch < best
        if len(found) > n_worlds or (len(found) == n_worlds and is_liked):
            best, worlds, n_worlds = batch, found, len(found)
    return best, worlds


def _batches(bases: Sequence[int], most: int, *, is_measured: bool) -> Iterator[int]:
    for base in dict.fromkeys(bases):
        if base > most and is_measured:
            continue
        yield base * max((n for n in _HIGHLY_COMPOSITE if n <= most // base), default=1)


def _worlds(batch: int, sizes: Sequence[int], fewest: int, largest: int) -> Iterator[int]:
    for size in sizes:
        if batch % size:
            continue
        whole = batch // size
        shares = (n for n in range(1, min(whole // 2, largest) + 1) if whole % n == 0)
        yield from (n for n in (whole, *shares) if fewest <= n <= largest)


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0
