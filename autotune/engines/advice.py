"""Advice for what bounds a trial, as rules: what they look at, and those of every engine.

advice.json has the rules of every engine, by bound and in the order in which advice is given;
docs/explain.md lists them. An engine has a file of its own rules among them: `read_advice`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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

    def fact(self, name: str) -> Any:
        """What rules call by a name: a property, a size of the layout, or a knob's value.

        0 for a knob that does not act.
        """
        return getattr(self, name, getattr(self.layout, name, self.values.get(name, 0)))

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


@dataclass(frozen=True, kw_only=True)
class AdviceRule:
    """A change that may address a bound; a knob that an engine does not have is never advised."""

    knob: str
    when: str
    """A condition (`space.rule.holds`) of what `AdviceCase.fact` finds."""
    to: KnobValue | None = None
    """Value to try; None: the one at hand `times` a factor, and at least `least`."""
    times: float = 1
    least: int = 0
    reason: str

    def value(self, case: AdviceCase) -> KnobValue:
        if self.to is not None:
            return self.to
        now = case.fact(self.knob)
        found: KnobValue = type(now)(max(self.least, now * self.times))
        return found


AdviceRules = Mapping[Bound, Sequence[AdviceRule]]


def read_advice(path: Path, common: AdviceRules) -> AdviceRules:
    """The rules of a file, and of bounds that it does not name the common ones.

    In place of a rule the file may name a knob: the common rule of that one for the bound.
    """
    by_bound: dict[Bound, Sequence[AdviceRule]] = {}
    for name, rows in json.loads(path.read_text(encoding="utf-8")).items():
        bound = Bound(name)
        shared = {rule.knob: rule for rule in common.get(bound, ())}
        by_bound[bound] = [
            shared[row] if isinstance(row, str) else AdviceRule(**row) for row in rows
        ]
    return {**common, **by_bound}


COMMON = read_advice(Path(__file__).with_suffix(".json"), {})
"""Advice in knobs that engines share."""
