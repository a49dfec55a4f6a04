"""What leads from the baseline to the best of a plan, change by change, as it is forecast."""

from autotune.planning.explained import Neighbour, neighbours_of
from autotune.planning.ranking import PredictedBaseline, Ranking
from autotune.space.knobs import changed_knobs, partway


def changes_from(baseline: PredictedBaseline, ranking: Ranking) -> tuple[Neighbour, ...]:
    """The baseline with each change of the best alone; empty: it is the best."""
    best = ranking.candidates[int(ranking.choices.firsts[0])]
    context = ranking.outlook.lattice.context
    alone = {
        partway(baseline.candidate, best, [knob], context): (knob, best[knob])
        for knob in changed_knobs(best, baseline.candidate, context)
    }
    return neighbours_of(ranking.outlook, alone)
