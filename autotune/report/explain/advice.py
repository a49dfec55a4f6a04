"""Which knob addresses what bounds a trial: the rules of docs/explain.md, one entry each.

Only a change that would be another run is advised: the knob acts there, the value is one that the
device can run, and the batch still divides. The rules say whether the configuration is legal, and
a trial says whether it is faster: the advice names that trial where the study has one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.contract import Diagnosis, KnobValue, Layout, TrialSpec
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
    def stage(self) -> int:
        """ZeRO's."""
        return self.number("zero.stage")

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


def _doubled(case: _Case) -> int:
    return 2 * case.layout.micro_batch


RULES: Mapping[Bound, Sequence[tuple[str, Callable[[_Case], bool], Any, str]]] = {
    Bound.COMMUNICATION: (
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
        (
            "micro_batch",
            lambda c: c.stage >= 2 and c.accumulates,
            _doubled,
            "ZeRO 2 reduces gradients, and ZeRO 3 gathers parameters too, in every micro-batch: "
            "half as many, half as often",
        ),
        (
            "micro_batch",
            lambda c: c.layout.tp > 1 and c.accumulates and c.small,
            _doubled,
            "the collectives of tensor parallelism are small, one message per layer and "
            "micro-batch: fewer and larger ones",
        ),
        (
            "reduce_bucket_size",
            lambda c: c.small,
            lambda c: 4 * c.number("reduce_bucket_size"),
            "most of it goes into messages below 1 MiB, which cost their latency: reduce more "
            "gradients at once",
        ),
        (
            "stage3.param_persistence_threshold",
            lambda c: c.small,
            lambda c: max(100_000, 10 * c.number("stage3.param_persistence_threshold")),
            "most of it goes into messages below 1 MiB: keep small parameters gathered, for "
            "their memory",
        ),
        (
            "stage3.prefetch_bucket_size",
            lambda c: c.small,
            lambda c: max(1_000_000, 4 * c.number("stage3.prefetch_bucket_size")),
            "most of it goes into messages below 1 MiB: fetch more parameters at once, ahead",
        ),
        (
            "overlap_comm",
            lambda c: c.is_on_gpu,
            True,
            "reduce gradients while backward still runs",
        ),
        (
            "zero.stage",
            lambda c: c.stage == 3,
            2,
            "stage 3 gathers every parameter in forward and in backward; stage 2 once a step, "
            "for the memory of the parameters",
        ),
        (
            "zero.stage",
            lambda c: c.stage == 2 and c.accumulates,
            1,
            "stage 1 reduces gradients once a step, stage 2 in every micro-batch; it keeps whole "
            "gradients",
        ),
    ),
    Bound.MEMORY: (
        (
            "zero.stage",
            lambda c: c.stage == 0 and c.optimizer_leads and c.layout.dp > 1,
            1,
            "without ZeRO every rank updates every parameter; at stage 1 each updates its part",
        ),
        (
            "optimizer.implementation",
            lambda c: c.optimizer_leads and c.get("optimizer.implementation") == "torch",
            "torch_fused",
            "the update is the larger part of it: one kernel that passes over the states once",
        ),
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
            _doubled,
            "larger matrices come nearer the device's peak",
        ),
    ),
    Bound.HOST: (
        (
            "offload.optimizer",
            lambda c: c.is_on_gpu and c.get("offload.optimizer") in ("cpu", "nvme"),
            "none",
            "the host updates the parameters: on the device that is memory bandwidth of the "
            "device's, if its states fit there",
        ),
        (
            "offload.ratio",
            lambda c: float(c.values.get("offload.ratio", 0)) > 0,
            lambda c: float(c.values["offload.ratio"]) / 2,
            "the host updates all of the offloaded parameters: leave a part on the device",
        ),
        (
            "micro_batch",
            lambda c: c.accumulates,
            _doubled,
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
            lambda c: c.get("core_binding") == "none",
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
"""Bound -> the changes that may address it, each as (knob, when, to, reason); `to` is the value to
try, or a function of the case. docs/explain.md lists them."""


def advise(
    bound: Bound,
    spec: TrialSpec,
    diagnosis: Diagnosis,
    candidate: Candidate,
    context: Context,
    history: History,
) -> list[Advice]:
    """Changes that address a bound, in the order of the rules.

    Trials of the history may have made just that change: the advice says what it brought.
    """
    case = _Case(spec=spec, diagnosis=diagnosis, values=candidate.values, context=context)
    own = history.find(candidate)
    found = []
    for knob, when, to, reason in RULES[bound]:
        if knob not in case.values or not when(case):
            continue
        after = to(case) if callable(to) else to
        if not _can_run(knob, after, case):
            continue
        changed = canonical({**case.values, knob: after}, context)
        # It folds into what runs already, or does not act.
        if knob not in changed or changed[knob] == case.values[knob]:
            continue
        other = Candidate.of(changed, world=candidate.world, global_batch=candidate.global_batch)
        tried = history.find(other)
        found.append(
            Advice(
                knob=knob,
                before=case.values[knob],
                after=changed[knob],
                reason=reason,
                tried=None if tried is None else _number_of(tried),
                ratio=_ratio(tried, own),
            )
        )
    return found


def _number_of(tried: Tried) -> int:
    """Number of the trial that counts; where none measured anything, of the first."""
    return tried.measured.number if tried.measured else tried.trials[0].spec.identity.number


def _ratio(tried: Tried | None, own: Tried | None) -> Ratio | None:
    """Samples/s over the candidate's own, as everywhere between candidates of one study."""
    if tried is None or own is None:
        return None
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


def _can_run(name: str, value: KnobValue, case: _Case) -> bool:
    """Whether the device can run it and the batch still divides."""
    knob = case.context.knobs[name]
    if value in knob.needs_cuda and case.context.accelerator != "cuda":
        return False
    if name not in ("micro_batch", "tp", "pp", "sp"):
        return True
    layout = case.layout
    degrees = {"tp": layout.tp, "pp": layout.pp, "sp": layout.sp, name: int(value)}
    ranks = degrees["tp"] * degrees["pp"] * degrees["sp"]
    micro_batch = int(value) if name == "micro_batch" else layout.micro_batch
    if layout.world % ranks:
        return False
    return layout.global_batch % (micro_batch * (layout.world // ranks)) == 0
