"""A trial explained: where its time went, what bounds it, and the knob that addresses that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.base.telling import Fact, tell
from autotune.contract import Diagnosis, TrialResult, TrialSpec
from autotune.record.bottleneck import Bottleneck, bottleneck, bubble_share, shares_of_calls
from autotune.record.table import energy_per_sample_j, peak_flops_of
from autotune.report.explain.advice import Advice, advise
from autotune.report.story import Story
from autotune.space.candidate import candidate_of, format_value

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
    rerun: Sequence[float]
    """Ends of the samples/s of another run of it, 95%, as the table has them; empty: no figure."""

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
            "advice": [advised.as_dict() for advised in self.advice],
            "problem": self.diagnosis.problem,
        }


def explain(report: Story, number: int, row: Mapping[str, Any]) -> Explanation | None:
    """Explain a trial; None where it had no diagnostic pass.

    Its row of the table says how many FLOP/s it reached, and where another run would be.
    """
    trial = report.trial(number)
    if trial is None or trial.result is None or trial.result.diagnosis is None:
        return None
    diagnosis = trial.result.diagnosis
    found = bottleneck(trial.spec, diagnosis)
    tflops = row.get("tflops_per_device")
    ends = [row.get(f"samples_per_s_{end}", pd.NA) for end in ("low", "high")]
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
            advised
            for bound in bounds
            for advised in advise(
                bound, trial.spec, diagnosis, candidate, report.context, report.history
            )
        ],
        flops_per_s=None if pd.isna(tflops) else float(tflops) * 1e12,
        rerun=[float(end) for end in ends if not pd.isna(end)],
        peak_flops=peak_flops_of(
            trial.spec.workload.precision, report.facts.environment_at(number)
        ),
    )


def rows_of(frame: pd.DataFrame) -> dict[int, dict[str, Any]]:
    """The rows of a table by the number of their trial."""
    return {int(row["trial"]): {str(k): v for k, v in row.items()} for _, row in frame.iterrows()}


def describe(explanation: Explanation) -> list[Fact]:
    """The explanation, fact by fact, as (name, text)."""
    spec, result, diagnosis = explanation.spec, explanation.result, explanation.diagnosis
    found, split = explanation.bottleneck, diagnosis.split
    return tell(
        "trial",
        {
            "result": result,
            "diagnosis": diagnosis,
            "layout": spec.layout,
            "split": split,
            "shares": {} if split is None else shares_of_calls(split),
            "least_share": _LEAST_SHARE,
            "bottleneck": found,
            "others": {}
            if found is None
            else {bound.value: s for bound, s in found.shares.items() if bound is not found.bound},
            "bubble": bubble_share(spec),
            "advice": explanation.advice[:_MAX_ADVICE],
            "spelled": format_value,
            "flops_per_s": explanation.flops_per_s,
            "peak_flops": explanation.peak_flops,
            "rerun": explanation.rerun,
            "predicted": spec.provenance.predicted,
            "energy_j": energy_per_sample_j(spec, result),
        },
    )
