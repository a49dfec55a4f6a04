"""Advice for the bottleneck of a trial, by the rules of its engine.

Only a change that would be another run is advised: the knob acts there, the value is one that the
device can run, and the batch still divides. The rules say whether the configuration is legal, and
a trial says whether it is faster: the advice names that trial where the study has one.
"""

from dataclasses import dataclass
from typing import Any

from autotune.contract import Diagnosis, KnobValue, TrialSpec
from autotune.engines.advice import AdviceCase
from autotune.engines.base import find_engine
from autotune.job.model_families import family_of
from autotune.record.bottleneck import Bound
from autotune.report.results.ratios import Ratio, ratio_of, telling_runs
from autotune.search.history import CandidateTrials, History
from autotune.space.candidate import Candidate
from autotune.space.knob import Context
from autotune.space.knobs import canonical


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
        """The form that `report --trial N --json` prints."""
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
        if knob not in case.values or not rule.holds(case):
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
    changed_runs, current_runs = telling_runs(tried.trials), telling_runs(current.trials)
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
