"""The bottleneck of a trial's step, judged by its diagnostic pass.

The rules stand in docs/explain.md. They are few on purpose: a share of the step each, and the
largest names the bound.
"""

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum

from autotune.base.errors import JobError
from autotune.base.plugins import load_plugin
from autotune.contract import Diagnosis, Split, TrialSpec

IS_ALONE = 0.8
"""A share that is at least so large beside the largest is named with it: the profiler's own cost
and the few steps of a pass do not tell such shares apart."""


class Bound(StrEnum):
    """Bottleneck of a step."""

    COMPUTE = "compute"
    """Matrix products and attention."""
    MEMORY = "memory bandwidth"
    """Operations that move more than they compute, and the optimizer on the device."""
    COMMUNICATION = "communication"
    """Collectives that nothing hides, waiting for slower ranks included."""
    HOST = "host"
    """Python, launches, the training script between its calls, an optimizer on the host."""
    BUBBLE = "bubble"
    """Stages of a pipeline with nothing to do, at the beginning and the end of a step."""


@dataclass(frozen=True, kw_only=True)
class Bottleneck:
    """Parts of a step, by bottleneck."""

    shares: dict[Bound, float]
    """Shares of the step, the largest first; they add up to 1."""

    @property
    def bound(self) -> Bound:
        return next(iter(self.shares))

    @property
    def rivals(self) -> list[Bound]:
        """The parts that are nearly as large."""
        largest = self.shares[self.bound]
        return [b for b, s in self.shares.items() if b != self.bound and s >= IS_ALONE * largest]


def bottleneck(spec: TrialSpec, diagnosis: Diagnosis | None) -> Bottleneck | None:
    """Bottleneck of a trial; None where the pass saw nothing."""
    if diagnosis is None or diagnosis.split is None or diagnosis.split.step_s <= 0:
        return None
    split = diagnosis.split
    bubble_s = min(bubble_share(spec) * split.step_s, split.communication_s)
    seconds = {
        Bound.COMPUTE: split.matmul_s,
        Bound.MEMORY: split.memory_s,
        Bound.COMMUNICATION: split.communication_s - bubble_s,
        Bound.HOST: split.host_s,
        Bound.BUBBLE: bubble_s,
    }
    # An update reads and writes every state once and computes little; offloaded, the host does.
    # CPU ranks have one memory: there an offloaded optimizer is where it was.
    is_on_host = spec.layout.accelerator != "cpu" and _updates_on_host(spec)
    seconds[Bound.HOST if is_on_host else Bound.MEMORY] += split.optimizer_s
    ordered = sorted(seconds, key=lambda bound: -seconds[bound])
    whole_s = sum(seconds.values()) or 1.0
    return Bottleneck(shares={bound: seconds[bound] / whole_s for bound in ordered})


def _updates_on_host(spec: TrialSpec) -> bool:
    """Whether its engine says so; nobody does for one that is not installed here."""
    with suppress(JobError):
        plugin = load_plugin("engine", spec.engine.name)
        return bool(plugin.updates_on_host(spec.identity.knobs))
    return False


def bubble_share(spec: TrialSpec) -> float:
    """Share of a step in which a stage of the pipeline has nothing to do.

    (p - 1) / (m + p - 1) with p stages and m micro-batches, all equally long (Huang et al., GPipe,
    section 2; the same for 1F1B: Narayanan et al., Megatron-LM 2021, section 2.2.1, where the time
    of the bubble is given over that of the work).
    """
    return (spec.layout.pp - 1) / (spec.layout.grad_accum + spec.layout.pp - 1)


def shares_of_calls(split: Split) -> dict[str, float]:
    """Share of each part in a step, by name.

    They add up to 1; all are 0 where the step took no time, as a damaged record may have it.
    """
    parts = {
        "forward": split.forward_s,
        "backward": split.backward_s,
        "optimizer": split.optimizer_s,
        "communication": split.communication_s,
        "data": split.data_s,
    }
    if split.step_s <= 0:
        return dict.fromkeys(parts, 0.0)
    return {name: seconds / split.step_s for name, seconds in parts.items()}
