"""What leads from the baseline to the best of a plan, change by change, as it is forecast."""

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.cost import Prediction
from autotune.cost.errors import Margin
from autotune.planning.choices import PROBABLE
from autotune.planning.explained import Neighbour, neighbours_of
from autotune.planning.outlook import Outlook
from autotune.planning.ranking import Ranking
from autotune.space.candidate import Candidate
from autotune.space.knobs import changed_knobs, partway


@dataclass(frozen=True, kw_only=True, eq=False)
class FromBaseline:
    """The baseline beside the best, and the baseline with each of the changes alone."""

    baseline: Candidate
    best: Candidate
    prediction: Prediction
    """Their forecasts: of the baseline, then of the best."""
    reach: Margin
    changes: Sequence[Neighbour]
    """Empty: the best is the baseline."""

    @property
    def gain(self) -> float:
        """Forecast speed of the best over the baseline's."""
        return float(self.prediction.step_time_s[0] / self.prediction.step_time_s[1])


def from_baseline(ranking: Ranking) -> FromBaseline | None:
    """The way from the user's baseline, or from the one that a search would find.

    None: nothing of which a search takes its baseline is forecast to fit.
    """
    outlook, given = ranking.outlook, ranking.baseline
    baseline = _expected_baseline(outlook) if given is None else given.candidate
    if baseline is None:
        return None
    best, context = ranking.candidates[int(ranking.choices.firsts[0])], outlook.lattice.context
    alone = {
        partway(baseline, best, [knob], context): (knob, best[knob])
        for knob in changed_knobs(best, baseline, context)
    }
    prediction, reach = outlook.predict_plans(outlook.plans([baseline, best]))
    return FromBaseline(
        baseline=baseline,
        best=best,
        prediction=prediction,
        reach=reach,
        changes=neighbours_of(outlook, alone),
    )


def _expected_baseline(outlook: Outlook) -> Candidate | None:
    """The first legal candidate of the engine's ladder that probably fits, as a search climbs."""
    for rung in outlook.engine.ladder():
        legal = [candidate for candidate in rung if not outlook.engine.judge(candidate)]
        fits = outlook.predict(legal).fit_probability if legal else ()
        for candidate, chance in zip(reversed(legal), reversed(fits), strict=True):
            if chance >= PROBABLE:
                return candidate
    return None
