"""The batch: micro_batch x grad_accum x dp is the global batch, exactly."""

import math
from collections.abc import Mapping
from typing import Any

from autotune.base.flags import flag
from autotune.engines.deepspeed.rules.base import BATCH_KEYS, Setup
from autotune.space.rule import Choice, Finding, Patch, UnknownFactError, in_words, rule

_MICRO, _ACCUM, _TOTAL = BATCH_KEYS

_MOST_TRIED = 10_000
"""Micro-batches that are tried for one that divides the batch: no device takes so many samples."""


@rule("runtime/config.py: _batch_assertion")
def _not_positive(setup: Setup) -> Finding | None:
    given = {name: setup.ds_config.get(name) for name in BATCH_KEYS}
    if all(size is None or (type(size) is int and size >= 1) for size in given.values()):
        return None
    wrong = [name for name, value in given.items() if value is not None and value < 1]
    if not wrong:
        return None
    changes: dict[str, Any] = dict.fromkeys(wrong)
    left = {name for name, value in given.items() if value is not None} - changes.keys()
    if not left & {_MICRO, _TOTAL}:
        changes[_MICRO] = 1  # it does not follow from the others
    elif left == {_MICRO, _TOTAL}:
        unit = setup.ds_config[_MICRO] * setup.batch_ranks
        if setup.ds_config[_TOTAL] % unit == 0:
            changes = {_ACCUM: setup.ds_config[_TOTAL] // unit}
    named = " and ".join(f"{name}={given[name]}" for name in wrong)
    return Finding(
        message=f"{named} {'is' if len(wrong) == 1 else 'are'} not above 0", changes=changes
    )


@rule("runtime/config.py:590-605")
def _product(setup: Setup) -> Finding | None:
    if setup.ds_config.get(_TOTAL) is None or (setup.tp > 1 and setup.pp == 1):
        return None
    try:
        found, dp = setup.batch, setup.batch_ranks
    except UnknownFactError:
        if (wrong := _wrong_everywhere(setup)) is None:
            raise
        return wrong
    if found is None or found[0] * found[1] * dp == found[2]:
        return None
    if setup.leaves_ranks_over:
        return None
    micro, accum, total = found
    amount = micro * accum * dp
    message = (
        f"{_TOTAL}={total}, but {_MICRO} * {_ACCUM} * dp = {micro} * {accum} * {dp} = {amount}"
    )
    if not amount:  # what is left out would have to be less than one
        given = {name: size for name in (_MICRO, _ACCUM) if (size := setup.ds_config.get(name))}
        least = given | {"dp": dp}
        parts = [" * ".join(least), " * ".join(map(str, least.values()))]
        if len(least) > 1:
            parts.append(str(math.prod(least.values())))
        message = f"{_TOTAL}={total}, but {' = '.join(parts)} is the fewest"
    if setup.global_batch is not None:
        changes, advice = _restore(found, dp, setup.global_batch)
        return Finding(message=message, changes=changes, advice=advice)
    share = total // dp
    gives_way = total % dp == 0 and setup.ds_config.get(_MICRO) and share % micro == 0
    choices = _sizes(setup.ds_config, dp)
    words = "; or ".join(map(str, choices))
    return Finding(
        message=message,
        changes={_ACCUM: share // micro} if gives_way else {},
        advice=f"or {words}" if gives_way else words,
        choices=choices,
    )


@rule("runtime/config.py:456-474: the world is not divided by autotp_size")
def _total_under_tp(setup: Setup) -> Finding | None:
    if setup.ds_config.get(_TOTAL) is None or setup.tp == 1 or setup.pp > 1:
        return None
    found, dp = setup.batch, setup.dp
    if found is None:
        return None
    micro, accum, total = found
    stated = {_MICRO: max(1, micro), _ACCUM: max(1, accum)}
    missing = {name: size for name, size in stated.items() if setup.ds_config.get(name) is None}
    return Finding(
        message=f"{_TOTAL}={total} with tp={setup.tp}: DeepSpeed checks it against the whole "
        f"world of {setup.world}, while {_MICRO} * {_ACCUM} * dp = {micro} * {accum} * {dp} = "
        f"{micro * accum * dp} samples train",
        changes={_TOTAL: None, **missing},
        consequence="differs" if micro * accum * setup.world == total else "raised",
    )


@rule("the global batch is part of the problem, not a knob", consequence="differs")
def _global_batch(setup: Setup) -> Finding | None:
    wanted = setup.global_batch
    if wanted is None or setup.leaves_ranks_over:
        return None
    found, dp = setup.batch, setup.dp
    if found is None or found[0] * found[1] * dp == wanted:
        return None
    if _product.check(setup) or _total_under_tp.check(setup):
        return None
    micro, accum, _ = found
    changes, advice = _nearest(micro, dp, wanted)
    return Finding(
        message=f"{_MICRO} * {_ACCUM} * dp = {micro} * {accum} * {dp} = {micro * accum * dp} "
        f"samples per step, the global batch is {wanted}",
        changes=changes,
        advice=advice,
    )


def _wrong_everywhere(setup: Setup) -> Finding | None:
    """Sizes that contradict each other on any number of ranks; None: on some they do not.

    What is not known is a whole number from 1 on, and the ranks are so many nodes of them.
    """
    if setup.elasticity:  # it decides the sizes
        return None
    config, total = setup.ds_config, setup.ds_config.get(_TOTAL)
    sizes = {name: config.get(name) for name in (_MICRO, _ACCUM)}
    known = {name: size for name, size in sizes.items() if type(size) is int and size > 0}
    try:
        per_node = min(1, setup.world)
    except UnknownFactError:
        per_node = setup.environment.n_devices
    if per_node > 1 and setup.pp == 1 and config.get("sequence_parallel_size") in (None, 1):
        known["ranks of a node"] = per_node
    if type(total) is not int or total < 1 or total % math.prod(known.values()) == 0:
        return None
    names, factors = " * ".join(known), " * ".join(map(str, known.values()))
    samples = f"{factors} = {math.prod(known.values())}" if len(known) > 1 else factors
    return Finding(
        message=f"{_TOTAL}={total} is no multiple of {names} = {samples}: it does not train on "
        "any number of ranks",
        advice=f"say how many ranks there are ({flag('world')}), and the sizes that fit are named",
    )


def _sizes(config: Mapping[str, Any], dp: int) -> tuple[Choice, ...]:
    """The nearest sizes that make the product right, each with what it keeps."""
    micro, accum, total = (config.get(name) for name in BATCH_KEYS)
    assert total is not None, "without it there is nothing to be wrong"
    found: list[tuple[Patch, str]] = []
    if total % dp == 0:
        share = total // dp
        if accum is not None and micro is not None and share % accum == 0:
            found.append(({_MICRO: share // accum}, "the global batch stays"))
        most = min(micro or share, share)
        tried = range(most, max(0, most - _MOST_TRIED), -1)
        below = next((d for d in tried if share % d == 0), micro)
        if micro is None:
            found.append(({_ACCUM: share // most}, "the global batch stays"))
        elif below != micro:
            found.append(({_MICRO: below, _ACCUM: share // below}, "the global batch stays"))
    if micro is not None and accum is not None:
        found.append(({_TOTAL: micro * accum * dp}, "another global batch"))
    unit = dp * (micro or 1) * (accum or 1 if micro is None else 1)
    for size in (total // unit * unit, -(-total // unit) * unit):
        if size and size != total:
            steps = {_ACCUM: size // (micro * dp)} if micro is not None and accum else {}
            found.append(({_TOTAL: size, **steps}, "another global batch"))
    return tuple(
        Choice(changes=changes, words=f"{in_words(changes)} ({effect})")
        for at, (changes, effect) in enumerate(found)
        if changes not in [before for before, _ in found[:at]]
        and not (len(changes) > 1 and _TOTAL in changes and changes[_ACCUM] == accum)
    )


def _restore(sizes: tuple[int, int, int], dp: int, wanted: int) -> tuple[Patch, str]:
    """The change that keeps the global batch where it is known: it is not ours to alter."""
    micro, accum, total = sizes
    if micro * accum * dp == wanted:
        keeps = micro and total % (micro * dp) == 0
        keep = f"or set {_ACCUM} to {total // (micro * dp)}" if keeps else ""
        return {_TOTAL: wanted}, keep
    changes, advice = _nearest(max(1, micro), dp, wanted)
    return ({**changes, _TOTAL: wanted} if changes and total != wanted else changes), advice


def _nearest(micro: int, dp: int, wanted: int) -> tuple[Patch, str]:
    if wanted % dp:
        return (
            {},
            f"choose a layout whose dp divides {wanted}, or a global batch that {dp} divides",
        )
    share = wanted // dp
    size = next(d for d in range(min(micro, share), 0, -1) if share % d == 0)
    accum = {_ACCUM: share // size}
    return (accum if size == micro else {_MICRO: size, **accum}), ""
