"""Which knob addresses what bounds a trial: the rules of docs/explain.md, one entry each.

Only a change that would be another run is advised: the knob acts there, the value is one that the
device can run, and the batch still divides. The rules say whether the configuration is legal, and
a trial says whether it is faster: the advice names that trial where the study has one.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.contract import Diagnosis, KnobValue, TrialSpec
from autotune.record.bottleneck import Bound
from autotune.report.results.ratios import Ratio, describe_ratio, ratio_of, telling_runs
from autotune.search.history import History, Tried
from autotune.space.candidate import Candidate, format_value
from autotune.space.knob import Context
from autotune.space.knobs import canonical

SMALL_MESSAGE_BYTES = 2**20
"""Message below which latency costs more than bytes: tens of microseconds at 100 GB/s
over NVLink, about a millisecond at 1 GB/s over gloo, are both of this order."""
MOSTLY = 0.5
"""Share of the time of all collectives from which a finding counts for them all."""

_Values = Mapping[str, KnobValue]


@dataclass(frozen=True, kw_only=True)
class Advice:
    """A change of one knob that addresses the bound."""

    knob: str
    before: KnobValue
    after: KnobValue
    reason: str
    tried: int | None
    """Number of the trial of the study that made just this change; None: there is none."""
    ratio: Ratio | None
    """That candidate's samples/s over this one's; None where one of them measured nothing."""

    def as_dict(self) -> dict[str, Any]:
        """As `report --trial N --json` prints it."""
        ends = {"ratio": "ratio", "ratio_low": "low", "ratio_high": "high"}
        return {
            **{name: getattr(self, name) for name in ("knob", "before", "after", "reason")},
            "tried": self.tried,
            **{key: getattr(self.ratio, name, None) for key, name in ends.items()},
        }


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What a rule looks at."""

    spec: TrialSpec
    diagnosis: Diagnosis
    values: _Values
    context: Context

    def get(self, knob: str) -> KnobValue | None:
        """The knob's value; None where it does not act."""
        return self.values.get(knob)

    def number(self, knob: str) -> int:
        """The knob's value as a whole number; 0 where it does not act."""
        return int(self.values.get(knob, 0))

    @property
    def has_small_messages(self) -> bool:
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
    """A change that may address a bound; docs/explain.md lists them."""

    bound: Bound
    knob: str
    reason: str
    after: Callable[[_Case], KnobValue | None]
    """The value to try; None: the rule says nothing here."""


def _when(
    says: Callable[[_Case], bool], value: Callable[[_Case], KnobValue]
) -> Callable[[_Case], KnobValue | None]:
    return lambda case: value(case) if says(case) else None


def _twice(knob: str) -> Callable[[_Case], KnobValue]:
    return lambda case: 2 * case.number(knob)


def _to(value: KnobValue) -> Callable[[_Case], KnobValue]:
    return lambda _: value


def _accumulates(case: _Case) -> bool:
    return case.spec.layout.grad_accum > 1


def _stage(case: _Case) -> int:
    return case.number("zero.stage")


RULES: tuple[AdviceRule, ...] = (
    # Communication
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="tp",
        reason="tensor parallel ranks reduce activations in every layer, forward and backward: "
        "fewer of them, fewer of those",
        after=_when(lambda c: c.spec.layout.tp > 1, lambda c: c.spec.layout.tp // 2),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="sp",
        reason="ranks that share a sample exchange activations in every layer, forward and "
        "backward: fewer of them, fewer of those",
        after=_when(lambda c: c.spec.layout.sp > 1, lambda c: c.spec.layout.sp // 2),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="micro_batch",
        reason="ZeRO 2 reduces gradients, and ZeRO 3 gathers parameters too, in every "
        "micro-batch: half as many, half as often",
        after=_when(lambda c: _stage(c) >= 2 and _accumulates(c), _twice("micro_batch")),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="micro_batch",
        reason="the collectives of tensor parallelism are small, one message per layer and "
        "micro-batch: fewer and larger ones",
        after=_when(
            lambda c: c.spec.layout.tp > 1 and _accumulates(c) and c.has_small_messages,
            _twice("micro_batch"),
        ),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="reduce_bucket_size",
        reason="most of it goes into messages below 1 MiB, which cost their latency: reduce more "
        "gradients at once",
        after=_when(lambda c: c.has_small_messages, lambda c: 4 * c.number("reduce_bucket_size")),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="stage3.param_persistence_threshold",
        reason="most of it goes into messages below 1 MiB: keep small parameters gathered, for "
        "their memory",
        after=_when(
            lambda c: c.has_small_messages,
            lambda c: max(100_000, 10 * c.number("stage3.param_persistence_threshold")),
        ),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="stage3.prefetch_bucket_size",
        reason="most of it goes into messages below 1 MiB: fetch more parameters at once, ahead",
        after=_when(
            lambda c: c.has_small_messages,
            lambda c: max(1_000_000, 4 * c.number("stage3.prefetch_bucket_size")),
        ),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="overlap_comm",
        reason="reduce gradients while backward still runs",
        # CPU ranks have no streams: nothing runs beside a collective there.
        after=_when(lambda c: c.context.accelerator != "cpu", _to(True)),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="zero.stage",
        reason="stage 3 gathers every parameter in forward and in backward; stage 2 once a step, "
        "for the memory of the parameters",
        after=_when(lambda c: _stage(c) == 3, _to(2)),
    ),
    AdviceRule(
        bound=Bound.COMMUNICATION,
        knob="zero.stage",
        reason="stage 1 reduces gradients once a step, stage 2 in every micro-batch; it keeps "
        "whole gradients",
        after=_when(lambda c: _stage(c) == 2 and _accumulates(c), _to(1)),
    ),
    # Memory bandwidth
    AdviceRule(
        bound=Bound.MEMORY,
        knob="zero.stage",
        reason="without ZeRO every rank updates every parameter; at stage 1 each updates its part",
        after=_when(
            lambda c: _stage(c) == 0 and c.optimizer_leads and c.spec.layout.dp > 1, _to(1)
        ),
    ),
    AdviceRule(
        bound=Bound.MEMORY,
        knob="optimizer.implementation",
        reason="the update is the larger part of it: one kernel that passes over the states once",
        after=_when(
            lambda c: c.optimizer_leads and c.get("optimizer.implementation") == "torch",
            _to("torch_fused"),
        ),
    ),
    AdviceRule(
        bound=Bound.MEMORY,
        knob="attention",
        reason="eager attention writes the scores of all pairs to memory",
        after=_when(lambda c: c.get("attention") == "eager", _to("sdpa")),
    ),
    AdviceRule(
        bound=Bound.MEMORY,
        knob="host_allocator",
        reason="on CPU ranks the kernel clears the pages of large blocks again in every step",
        after=_when(lambda c: c.get("host_allocator") == "default", _to("keep")),
    ),
    AdviceRule(
        bound=Bound.MEMORY,
        knob="compile",
        reason="compiled operations that follow one another pass over memory once",
        after=_when(lambda c: c.get("compile") == "none", _to("torch")),
    ),
    # Compute
    AdviceRule(
        bound=Bound.COMPUTE,
        knob="recompute",
        reason="recomputation runs the forward of its layers a second time; it saves the memory "
        "of their activations",
        after=_when(lambda c: c.get("recompute") not in (None, "none"), _to("none")),
    ),
    AdviceRule(
        bound=Bound.COMPUTE,
        knob="loss_chunk_tokens",
        reason="a chunked loss computes its logits again in backward; it saves their memory",
        after=_when(lambda c: c.number("loss_chunk_tokens") > 0, _to(0)),
    ),
    AdviceRule(
        bound=Bound.COMPUTE,
        knob="micro_batch",
        reason="larger matrices come nearer the device's peak",
        after=_when(_accumulates, _twice("micro_batch")),
    ),
    # Host
    AdviceRule(
        bound=Bound.HOST,
        knob="offload.optimizer",
        reason="the host updates the parameters: on the device that is memory bandwidth of the "
        "device's, if its states fit there",
        after=_when(
            lambda c: (
                c.context.accelerator != "cpu" and c.get("offload.optimizer") in ("cpu", "nvme")
            ),
            _to("none"),
        ),
    ),
    AdviceRule(
        bound=Bound.HOST,
        knob="offload.ratio",
        reason="the host updates all of the offloaded parameters: leave a part on the device",
        after=_when(
            lambda c: float(c.values.get("offload.ratio", 0)) > 0,
            lambda c: float(c.values["offload.ratio"]) / 2,
        ),
    ),
    AdviceRule(
        bound=Bound.HOST,
        knob="micro_batch",
        reason="each micro-batch launches every operation once more: half as many",
        after=_when(_accumulates, _twice("micro_batch")),
    ),
    AdviceRule(
        bound=Bound.HOST,
        knob="compile",
        reason="a compiled model launches fewer operations",
        after=_when(lambda c: c.get("compile") == "none", _to("torch")),
    ),
    AdviceRule(
        bound=Bound.HOST,
        knob="core_binding",
        reason="ranks whose threads share cores keep one another from launching",
        after=_when(lambda c: c.get("core_binding") == "none", _to("ranks")),
    ),
    # Bubble
    AdviceRule(
        bound=Bound.BUBBLE,
        knob="micro_batch",
        reason="the bubble is (pp - 1) / (micro-batches + pp - 1): twice as many micro-batches",
        after=_when(
            lambda c: c.spec.layout.micro_batch > 1, lambda c: c.spec.layout.micro_batch // 2
        ),
    ),
    AdviceRule(
        bound=Bound.BUBBLE,
        knob="pp",
        reason="the bubble is (pp - 1) / (micro-batches + pp - 1): fewer stages",
        after=_when(lambda c: c.spec.layout.pp > 1, lambda c: c.spec.layout.pp // 2),
    ),
)


def advise(
    bound: Bound,
    spec: TrialSpec,
    diagnosis: Diagnosis,
    candidate: Candidate,
    context: Context,
    history: History,
) -> list[Advice]:
    """Changes that address a bound, in the order of the rules.

    Args:
        bound: What the trial mostly waits for.
        spec: The trial.
        diagnosis: What it saw.
        candidate: What it ran.
        context: The job's shapes.
        history: The study's trials, of which some may have made just that change.
    """
    case = _Case(spec=spec, diagnosis=diagnosis, values=candidate.values, context=context)
    own = history.find(candidate)
    found = []
    for rule, changed in _changes(case, bound):
        other = Candidate.of(changed, world=candidate.world, global_batch=candidate.global_batch)
        tried = history.find(other)
        found.append(
            Advice(
                knob=rule.knob,
                before=candidate.values[rule.knob],
                after=changed[rule.knob],
                reason=rule.reason,
                tried=None if tried is None else _number_of(tried),
                ratio=None if tried is None or own is None else _ratio(tried, own),
            )
        )
    return found


def _number_of(tried: Tried) -> int:
    """Number of the trial that counts; where none measured anything, of the first."""
    return (
        tried.trials[0].spec.identity.number if tried.measured is None else tried.measured.number
    )


def _ratio(tried: Tried, own: Tried) -> Ratio | None:
    """Samples/s over the candidate's own, as everywhere between candidates of one study."""
    ours, theirs = telling_runs(tried.trials), telling_runs(own.trials)
    if not ours or not theirs:
        return None
    return ratio_of(ours, theirs, spreads=(tried.spread, own.spread))


def describe_advice(advice: Advice) -> str:
    """`micro_batch 4 -> 8: half as many ...; trial 7 tried it: 1.08x (1.01 to 1.16) ...`."""
    change = f"{advice.knob} {format_value(advice.before)} -> {format_value(advice.after)}"
    if advice.tried is None:
        return f"{change}: {advice.reason}; not tried in this study"
    found = "it has no figure" if advice.ratio is None else describe_ratio(advice.ratio)
    return f"{change}: {advice.reason}; trial {advice.tried} tried it: {found}"


def _changes(case: _Case, bound: Bound) -> Iterator[tuple[AdviceRule, dict[str, KnobValue]]]:
    """The rules that have something to say, with the candidate that they would make."""
    for rule in RULES:
        if rule.bound is not bound or rule.knob not in case.values:
            continue
        after = rule.after(case)
        if after is None or not _can_run(rule.knob, after, case):
            continue
        changed = canonical({**case.values, rule.knob: after}, case.context)
        # It folds into what runs already, or does not act.
        if rule.knob in changed and changed[rule.knob] != case.values[rule.knob]:
            yield rule, changed


def _can_run(name: str, value: KnobValue, case: _Case) -> bool:
    """Whether the device can run it and the batch still divides."""
    knob = case.context.knobs[name]
    if value in knob.needs_cuda and case.context.accelerator != "cuda":
        return False
    if name not in ("micro_batch", "tp", "pp", "sp"):
        return True
    spec = case.spec
    degrees = {"tp": spec.layout.tp, "pp": spec.layout.pp, "sp": spec.layout.sp, name: int(value)}
    ranks = degrees["tp"] * degrees["pp"] * degrees["sp"]
    micro_batch = int(value) if name == "micro_batch" else case.spec.layout.micro_batch
    if case.spec.layout.world % ranks:
        return False
    return case.spec.layout.global_batch % (micro_batch * (case.spec.layout.world // ranks)) == 0
