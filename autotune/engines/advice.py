"""Advice for what bounds a trial, as rules: what they look at, and those of every engine.

An engine puts its own among them, and says in which order: see `EnginePlugin.advice`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.contract import Diagnosis, KnobValue, Layout, TrialSpec
from autotune.record.bottleneck import Bound
from autotune.space.knob import Context

SMALL_MESSAGE_BYTES = 2**20
"""Message below which latency costs more than bytes: tens of microseconds at 100 GB/s
over NVLink, about a millisecond at 1 GB/s over gloo, are both of this order."""
MOSTLY = 0.5
"""Share of the time of all collectives from which a finding counts for them all."""


@dataclass(frozen=True, kw_only=True)
class AdviceCase:
    """The facts that a rule of advice looks at."""

    spec: TrialSpec
    diagnosis: Diagnosis
    values: Mapping[str, KnobValue]
    context: Context

    def get(self, knob: str) -> KnobValue | None:
        """The knob's value; None where it does not act."""
        return self.values.get(knob)

    def number(self, knob: str) -> int:
        """The knob's value as a whole number; 0 where it does not act."""
        return int(self.values.get(knob, 0))

    @property
    def layout(self) -> Layout:
        """How the trial was spread over its accelerators."""
        return self.spec.layout

    @property
    def accumulates(self) -> bool:
        """Whether a step has several micro-batches."""
        return self.spec.layout.grad_accum > 1

    @property
    def is_on_gpu(self) -> bool:
        """CPU ranks have one memory, and no streams: nothing runs beside a collective there."""
        return self.context.accelerator != "cpu"

    @property
    def small(self) -> bool:
        """Whether most of the time of collectives is spent on small messages."""
        collectives = self.diagnosis.collectives
        whole_s = sum(c.transfer_s for c in collectives)
        small_s = sum(c.transfer_s for c in collectives if c.message_bytes < SMALL_MESSAGE_BYTES)
        return whole_s > 0 and small_s >= MOSTLY * whole_s

    @property
    def optimizer_leads(self) -> bool:
        """Whether the update takes more than the other operations that move memory."""
        split = self.diagnosis.split
        return split is not None and split.optimizer_s >= split.memory_s


AdviceRule = tuple[str, Callable[[AdviceCase], bool], Any, str]
"""A change that may address a bound, as (knob, when, to, reason); `to` is the value to try, or a
function of the case. A knob that an engine does not have is never advised."""
AdviceRules = Mapping[Bound, Sequence[AdviceRule]]


def doubled(case: AdviceCase) -> int:
    """Twice the micro-batch."""
    return 2 * case.layout.micro_batch


FEWER_RANKS: Sequence[AdviceRule] = (
    (
        "tp",
        lambda c: c.layout.tp > 1,
        lambda c: c.layout.tp // 2,
        "tensor parallel ranks reduce activations in every layer, forward and backward: "
        "fewer of them, fewer of those",
    ),
    (
        "sp",
        lambda c: c.layout.sp > 1,
        lambda c: c.layout.sp // 2,
        "ranks that share a sample exchange activations in every layer, forward and "
        "backward: fewer of them, fewer of those",
    ),
)
"""Fewer ranks that exchange activations in every layer."""
LARGER_MESSAGES: AdviceRule = (
    "micro_batch",
    lambda c: c.layout.tp > 1 and c.accumulates and c.small,
    doubled,
    "the collectives of tensor parallelism are small, one message per layer and "
    "micro-batch: fewer and larger ones",
)

COMMON: AdviceRules = {
    Bound.COMMUNICATION: (*FEWER_RANKS, LARGER_MESSAGES),
    Bound.MEMORY: (
        (
            "attention",
            lambda c: c.get("attention") == "eager",
            "sdpa",
            "eager attention writes the scores of all pairs to memory",
        ),
        (
            "host_allocator",
            lambda c: c.get("host_allocator") == "default",
            "keep",
            "on CPU ranks the kernel clears the pages of large blocks again in every step",
        ),
        (
            "compile",
            lambda c: c.get("compile") == "none",
            "torch",
            "compiled operations that follow one another pass over memory once",
        ),
    ),
    Bound.COMPUTE: (
        (
            "recompute",
            lambda c: c.get("recompute") not in (None, "none"),
            "none",
            "recomputation runs the forward of its layers a second time; it saves the memory of "
            "their activations",
        ),
        (
            "loss_chunk_tokens",
            lambda c: c.number("loss_chunk_tokens") > 0,
            0,
            "a chunked loss computes its logits again in backward; it saves their memory",
        ),
        (
            "micro_batch",
            lambda c: c.accumulates,
            doubled,
            "larger matrices come nearer the device's peak",
        ),
    ),
    Bound.HOST: (
        (
            "micro_batch",
            lambda c: c.accumulates,
            doubled,
            "each micro-batch launches every operation once more: half as many",
        ),
        (
            "compile",
            lambda c: c.get("compile") == "none",
            "torch",
            "a compiled model launches fewer operations",
        ),
        (
            "core_binding",
            lambda c: c.get("core_binding") == "none" and c.layout.world > 1,
            "ranks",
            "ranks whose threads share cores keep one another from launching",
        ),
    ),
    Bound.BUBBLE: (
        (
            "micro_batch",
            lambda c: c.layout.micro_batch > 1,
            lambda c: c.layout.micro_batch // 2,
            "the bubble is (pp - 1) / (micro-batches + pp - 1): twice as many micro-batches",
        ),
        (
            "pp",
            lambda c: c.layout.pp > 1,
            lambda c: c.layout.pp // 2,
            "the bubble is (pp - 1) / (micro-batches + pp - 1): fewer stages",
        ),
    ),
}
"""Advice in knobs that engines share; docs/explain.md lists it with DeepSpeed's own."""
