"""A trial explained: where its time went, what bounds it, and the knob that addresses that."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.base.units import format_bytes, format_interval, format_rate, format_seconds
from autotune.contract import Collective, Diagnosis, Split, TrialResult, TrialSpec, Use
from autotune.record.bottleneck import Bottleneck, Bound, bottleneck, bubble_share, shares_of_calls
from autotune.record.facts import environment_at
from autotune.record.table import energy_per_sample_j, peak_flops_of
from autotune.report.explain.advice import Advice, advise, describe_advice
from autotune.report.explain.predictions import predicted_memory, predicted_rate
from autotune.report.story import Story
from autotune.space.candidate import candidate_of

_MAX_COLLECTIVES = 4
_MAX_ADVICE = 3
_LEAST_SHARE = 0.005
"""Share of a step from which it is named with a figure."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of one trial."""

    trial: int
    spec: TrialSpec
    result: TrialResult
    diagnosis: Diagnosis
    bottleneck: Bottleneck | None
    """None where the diagnostic pass saw nothing."""
    advice: list[Advice]
    peak_flops: float | None
    """Peak of one device, dense; None where it is not known, or the trial ran in fp32."""
    flops_per_s: float | None
    """Operations of the model per device, without recomputation; None where they are not known."""

    def as_dict(self) -> dict[str, Any]:
        """The form that `report --trial N --json` prints."""
        split = self.diagnosis.split
        found = self.bottleneck
        return {
            "trial": self.trial,
            "rank": self.diagnosis.rank,
            "shares": {} if split is None else shares_of_calls(split),
            "bound": None if found is None else found.bound.value,
            "bound_shares": {} if found is None else {b.value: s for b, s in found.shares.items()},
            "explanation": [{"name": name, "text": text} for name, text in describe(self)],
            "advice": [each.as_dict() for each in self.advice],
            "problem": self.diagnosis.problem,
        }


def explain(report: Story, number: int, row: Mapping[str, Any]) -> Explanation | None:
    """Explain a trial; None where it had no diagnostic pass.

    Its row of the table says how many FLOP/s it reached.
    """
    trial = report.trial(number)
    if trial is None or trial.result is None or trial.result.diagnosis is None:
        return None
    diagnosis = trial.result.diagnosis
    found = bottleneck(trial.spec, diagnosis)
    tflops = row.get("tflops_per_device")
    candidate = candidate_of(trial.spec)
    # Also for what is nearly as large.
    bounds = (found.bound, *found.rivals) if found else ()
    return Explanation(
        trial=number,
        spec=trial.spec,
        result=trial.result,
        diagnosis=diagnosis,
        bottleneck=found,
        advice=[
            each
            for bound in bounds
            for each in advise(
                bound, trial.spec, diagnosis, candidate, report.context, report.history
            )
        ],
        flops_per_s=None if pd.isna(tflops) else float(tflops) * 1e12,
        peak_flops=peak_flops_of(trial.spec, environment_at(report.state, number)),
    )


def rows_of(frame: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """The rows of a table by the number of their trial."""
    return {int(row["trial"]): {str(k): v for k, v in row.items()} for _, row in frame.iterrows()}


def describe(explanation: Explanation) -> list[tuple[str, str]]:
    """The explanation, fact by fact, as (name, text)."""
    diagnosis, found = explanation.diagnosis, explanation.bottleneck
    facts: list[tuple[str, str]] = []
    if found is not None and diagnosis.split is not None:
        facts.append(("step", _step(diagnosis, diagnosis.split)))
        facts.append(("bound by", _bound(explanation, found)))
        facts += [("try", describe_advice(each)) for each in explanation.advice[:_MAX_ADVICE]]
        facts.append(("speed", _speed(explanation)))
    if phases := describe_phases(explanation.result):
        facts.append(("phases", phases))
    facts += _measured(explanation.result)
    if rate := predicted_rate(explanation.spec):
        facts.append(("predicted", f"{rate} samples/s; {predicted_memory(explanation.spec)}"))
    facts += [("collective", _collective(c)) for c in diagnosis.collectives[:_MAX_COLLECTIVES]]
    split = diagnosis.split
    is_seen = split is None or split.communication_s < _LEAST_SHARE * split.step_s
    # The comms logger cannot have seen the communication in the profile.
    if not (is_seen or diagnosis.collectives):
        text = "collectives that do not go through DeepSpeed: their sizes are unknown"
        facts.append(("unseen", text))
    if explanation.result.use is not None:
        facts += _use(explanation, explanation.result.use)
    if diagnosis.problem:
        facts.append(("missing", diagnosis.problem))
    return facts


def _measured(result: TrialResult) -> list[tuple[str, str]]:
    """The figures of a trial, in the form of those that were predicted, and what disturbed it."""
    if result.samples_per_s is None:
        return []
    interval = format_interval(result.samples_per_s_low, result.samples_per_s_high)
    rate = f"{format_rate(result.samples_per_s)} ({interval})"
    # Of the trial alone: other views give the interval of all runs of its candidate.
    facts = [
        ("measured", f"{rate} samples/s in this run; {format_bytes(result.peak_memory_bytes)}")
    ]
    return [*facts, ("disturbed", result.disturbed)] if result.disturbed else facts


def describe_phases(result: TrialResult) -> str:
    """What a trial measured before and after compression began; empty: none did."""
    if result.early_step_time_s is None or result.step_time_s is None:
        return ""
    brought = "; ".join(
        f"the trial set {key} to {ours}, where the configuration has {theirs}"
        for key, (theirs, ours) in result.set_for_trial.items()
    )
    return (
        f"{format_seconds(result.early_step_time_s)} a step before compression, "
        f"{format_seconds(result.step_time_s)} with it, which counts: most of a training is in "
        f"that phase ({brought})"
    )


def _large(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {s:.0%}" for name, s in shares.items() if s >= _LEAST_SHARE)


def _step(diagnosis: Diagnosis, split: Split) -> str:
    text = (
        f"{_large(shares_of_calls(split))} on rank {diagnosis.rank}, which waits least for others"
    )
    if diagnosis.waiting_s >= _LEAST_SHARE * split.step_s:
        text += f"; the others wait {diagnosis.waiting_s / split.step_s:.0%} of a step more"
    if split.overlapped_s >= _LEAST_SHARE * split.step_s:
        text += f"; {split.overlapped_s / split.step_s:.0%} more of communication is hidden"
    return f"{text} ({format_seconds(split.step_s)} under the profiler)"


_EXPLAINED = {
    Bound.COMPUTE: "matrix products and attention",
    Bound.MEMORY: "operations that move more than they compute, the optimizer among them",
    Bound.COMMUNICATION: "collectives that nothing hides",
    Bound.HOST: "no operation runs: Python, launches, data",
    Bound.BUBBLE: "stages of the pipeline with nothing to do",
}


def _bound(explanation: Explanation, found: Bottleneck) -> str:
    named = [found.bound, *found.rivals]
    text = " and ".join(bound.value for bound in named)
    text += f": {found.shares[found.bound]:.0%} of a step, {_EXPLAINED[found.bound]}"
    rest = _large({b.value: share for b, share in found.shares.items() if b is not found.bound})
    text += f"; then {rest}" if rest else ""
    layout = explanation.spec.layout
    if layout.pp > 1:
        text += (
            f". The bubble of {layout.pp} stages and {layout.grad_accum} "
            f"micro-batches is {bubble_share(explanation.spec):.0%}"
        )
    return text


def _speed(explanation: Explanation) -> str:
    """FLOP/s of the measured steps, against the peak only where that is known."""
    if explanation.flops_per_s is None:
        return "FLOP/s of the model are unknown"
    text = f"{explanation.flops_per_s / 1e12:.3g} TFLOP/s of the model per device"
    if explanation.peak_flops is None:
        return f"{text}; the peak of this device is unknown at this precision"
    share = explanation.flops_per_s / explanation.peak_flops
    return f"{text}, {share:.0%} of its peak of {explanation.peak_flops / 1e12:.0f}"


def _collective(one: Collective) -> str:
    size = f" of {format_bytes(one.message_bytes)}" if one.message_bytes else ""
    times = "call" if one.calls == 1 else "calls"
    ranks = "1 rank" if one.group_size == 1 else f"{one.group_size} ranks"
    text = f"{one.name}{size} over {ranks}, {one.calls} {times} a step: "
    text += _milliseconds(one.transfer_s)
    if one.group_size == 1:
        return f"{text}, though nothing is sent"
    if one.busbw_bytes_per_s is not None and one.message_bytes >= 1024:
        text += f" at {format_bytes(int(one.busbw_bytes_per_s))}/s per link"
    return f"{text}, {_milliseconds(one.waiting_s)} more waiting for slower ranks"


def _milliseconds(duration_s: float) -> str:
    return f"{duration_s * 1e3:.3g} ms"


def _use(explanation: Explanation, use: Use) -> list[tuple[str, str]]:
    facts = [("processor", f"each rank kept {use.cpu_utilization:.2f} cores busy")]
    gpu = use.gpu
    if gpu is None:
        why = "no GPU" if explanation.spec.layout.accelerator == "cpu" else "NVML did not answer"
        return [*facts, ("energy", f"not measured: {why}")]
    parts = [
        "" if gpu.utilization is None else f"{gpu.utilization:.0%} busy",
        "" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        "" if gpu.clock_hz is None else f"{gpu.clock_hz / 1e6:.0f} MHz",
        "" if gpu.temperature_c is None else f"at most {gpu.temperature_c:.0f} degrees C",
    ]
    facts.append(("device", ", ".join(filter(None, parts)) or "NVML does not say"))
    if gpu.throttled:
        reasons = ", ".join(gpu.throttle_reasons)
        facts.append(("throttled", f"in {gpu.throttled:.0%} of the readings: {reasons}"))
    energy = energy_per_sample_j(explanation.spec, explanation.result)
    said = "not measured: the device counts none" if energy is None else f"{energy:.3g} J/sample"
    return [*facts, ("energy", said)]
