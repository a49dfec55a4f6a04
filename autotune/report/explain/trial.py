"""A trial explained: where its time went, what bounds it, and the knob that addresses that.

The rules of its engine give the advice. Only a change that would be another run is advised: the
knob acts there, the value is one that the device can run, and the batch still divides. The rules
say whether the configuration is legal, and a trial says whether it is faster: the advice names
that trial where the study has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from autotune.base.templates import Fact, tell
from autotune.contract import Diagnosis, KnobValue, TrialResult, TrialSpec
from autotune.devices.hardware import peak_flops_of
from autotune.engines.advice import AdviceCase
from autotune.engines.base import find_engine
from autotune.job.model_families import family_of
from autotune.record.bottleneck import Bottleneck, Bound, bottleneck, bubble_share, shares_of_calls
from autotune.record.table import energy_per_sample_j, product_precision
from autotune.report.results.ratios import Ratio, ratio_of, telling_runs
from autotune.report.story import Story
from autotune.search.history import CandidateTrials, History
from autotune.space.candidate import Candidate, candidate_of, format_value
from autotune.space.knob import Context
from autotune.space.knobs import canonical
from autotune.space.rule import holds


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
        ends = {"ratio": "ratio", "ratio_low": "low", "ratio_high": "high"}
        return {
            **{name: getattr(self, name) for name in ("knob", "before", "after", "reason")},
            "tried": self.tried,
            **{key: getattr(self.ratio, name, None) for key, name in ends.items()},
        }


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
    case = AdviceCase(spec=spec, diagnosis=diagnosis, values=candidate.values, context=context)
    current = history.find(candidate)
    found = []
    for rule in find_engine(context.engine).advice.get(bound, ()):
        knob = rule.knob
        if knob not in case.values or not holds(rule.when, case.fact):
            continue
        after = rule.value(case)
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
                reason=rule.reason,
                tried=None if tried is None else (tried.measured or tried).number,
                ratio=_ratio(tried, current),
            )
        )
    return found


def _ratio(tried: CandidateTrials | None, current: CandidateTrials | None) -> Ratio | None:
    """Samples/s over the candidate's own, as everywhere between candidates of one study."""
    if tried is None or current is None:
        return None
    changed_runs, current_runs = telling_runs(tried), telling_runs(current)
    if not changed_runs or not current_runs:
        return None
    return ratio_of(changed_runs, current_runs, spreads=(tried.spread, current.spread))


def _can_run(name: str, value: KnobValue, case: AdviceCase) -> bool:
    """Whether the device and the model can run it and the batch still divides."""
    knob, config = case.context.knobs[name], case.spec.workload.model.get("config")
    if value in knob.needs_cuda and case.context.accelerator != "cuda":
        return False
    if name == "attention" and config is not None:
        return value in family_of(config).attention
    if name not in ("micro_batch", "tp", "pp", "sp"):
        return True
    layout = case.layout
    degrees = {"tp": layout.tp, "pp": layout.pp, "sp": layout.sp, name: int(value)}
    ranks = degrees["tp"] * degrees["pp"] * degrees["sp"]
    micro_batch = int(value) if name == "micro_batch" else layout.micro_batch
    if layout.world % ranks:
        return False
    return layout.global_batch % (micro_batch * (layout.world // ranks)) == 0


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
    precision: str
    """Precision of its matrix products."""
    peak_flops: float | None
    """Peak of one device, dense; None where it is not known, or the trial ran in fp32."""
    flops_per_s: float | None
    """Operations of the model per device, without recomputation; None where they are not known."""
    rerun: Sequence[float]
    """Ends of the samples/s of another run of it, 95%, as the table has them; empty: no figure."""

    def as_dict(self) -> dict[str, Any]:
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
    precision = product_precision(candidate, trial.spec.workload.precision)
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
        precision=precision,
        peak_flops=peak_flops_of(precision, report.facts.environment_at(number)),
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
            "precision": explanation.precision,
            "peak_flops": explanation.peak_flops,
            "rerun": explanation.rerun,
            "predicted": spec.provenance.predicted,
            "energy_j": energy_per_sample_j(spec, result),
        },
    )
