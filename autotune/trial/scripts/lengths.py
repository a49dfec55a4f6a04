"""Which sample of an optimizer step is how long: the same for every candidate of a job.

The standard library alone: the table counts the tokens of a batch without torch.
"""

import random
from collections.abc import Mapping
from typing import Any


def is_drawn(lengths: Mapping[str, Any]) -> bool:
    """True if the samples of `TrialSpec.lengths` differ in length."""
    return lengths.get("kind") == "histogram"


def longest(lengths: Mapping[str, Any]) -> int:
    """Tokens of the longest sample of a histogram."""
    return int(max(length for length, _ in lengths["histogram"]))


def rounded_up(length: int, multiple: int) -> int:
    """The smallest multiple that is not below the length."""
    return -(-length // multiple) * multiple


def batch_lengths(lengths: Mapping[str, Any], global_batch: int) -> list[int]:
    """Tokens of the `global_batch` samples of one optimizer step, shortest first.

    Every step has the same ones: as many of each length as its weight gives it, what is left by
    rounding going to the largest remainders (of equal ones, the longest). So the steps of a trial
    are repetitions of one measurement, and all candidates are measured over the same work,
    however many steps each of them takes. Drawn independently, a step with a rare long sample
    would weigh in one candidate's figure and not in another's.
    """
    pairs = sorted((int(length), float(weight)) for length, weight in lengths["histogram"])
    total = sum(weight for _, weight in pairs)
    quotas = [(length, global_batch * weight / total) for length, weight in pairs]
    counts = {length: int(quota) for length, quota in quotas}
    by_remainder = sorted(quotas, key=lambda pair: (pair[1] - int(pair[1]), pair[0]))
    for length, _ in by_remainder[len(quotas) - (global_batch - sum(counts.values())) :]:
        counts[length] += 1
    return [length for length in sorted(counts) for _ in range(counts[length])]


def step_lengths(lengths: Mapping[str, Any], global_batch: int, seed: int, step: int) -> list[int]:
    """Tokens of the k-th sample of the optimizer step `step`, from 0, of a job, for every k.

    The order is drawn anew for every step, so that which samples meet in a micro-batch, and what
    they pad, is that of shuffled data.
    """
    found = batch_lengths(lengths, global_batch)
    random.Random(f"{seed}/{step}").shuffle(found)
    return found
