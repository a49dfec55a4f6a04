"""What a search can say of its record at any moment: the standings and the final answer."""

from collections.abc import Mapping

from autotune.base.errors import AutotuneError, NothingFeasibleError
from autotune.contract import Origin
from autotune.record.answer import Problem, SearchAnswer, Standing, config_of
from autotune.record.spread import is_figure
from autotune.record.study import Study
from autotune.search import confirm
from autotune.search.base import StopReason
from autotune.search.context import SearchContext
from autotune.search.front import RULE, Figure, front_of
from autotune.search.history import History, counting
from autotune.search.objective import figure_of
from autotune.space.candidate import Candidate


class RecordStandings:
    """The standings of a record."""

    def __init__(self, context: SearchContext, history: History) -> None:
        self._context = context
        self._history = history
        self._objective = context.objective

    def best(self) -> Standing | None:
        """The best candidate by its own trial."""
        figures = self._objective.figures(self._history)
        best = self._objective.best(figures)
        return None if best is None else self._standing(best, figures[best])

    def baseline(self, candidate: Candidate | None) -> Standing | None:
        """The baseline by its own trial."""
        tried = None if candidate is None else self._history.find(candidate)
        if tried is None or tried.measured is None or not is_figure(tried.measured):
            return None
        return self._standing(tried.candidate.hash, figure_of(tried.measured, tried.spread))

    def final(
        self,
        *,
        baseline: Candidate | None,
        comparison: confirm.FinalComparison | None,
        stop_reason: StopReason,
    ) -> SearchAnswer:
        """The answer: from the final comparison where there was one, else from single trials."""
        verdict = None
        if comparison is not None:
            verdict = confirm.judge(comparison, self._history, self._objective)
        own = self._objective.figures(self._history)
        compared = {} if verdict is None else verdict.figures
        figures = {**own, **compared}
        best = self._objective.best(compared or own, beside=own)
        start, speedup = self.baseline(baseline), None
        if verdict is not None and baseline is not None and baseline.hash in compared:
            assert best is not None, "a verdict has at least one figure"
            start = self._standing(baseline.hash, compared[baseline.hash])
            speedup = verdict.gain(best, baseline.hash)
        front = None  # by the final comparison's figures where there are any
        if self._objective.wish.name == "pareto":
            front = tuple(self._standing(key, figures[key]) for key in front_of(figures))
        return SearchAnswer(
            study=self._context.study,
            origin=self._context.origin,
            counts=self._history.counts,
            baseline=start,
            best=None if best is None else self._standing(best, figures[best]),
            ties=() if best is None else self._ties(figures, best, verdict),
            speedup=speedup,
            front=front,
            rule="" if front is None else RULE,
            stop_reason=stop_reason,
            interrupted=self._context.interrupt.draining,
        )

    def _ties(
        self, figures: Mapping[str, Figure], best: str, verdict: confirm.Verdict | None
    ) -> tuple[Standing, ...]:
        """Candidates that may be as fast as the best; where memory counts too, none is named.

        A candidate is among them if its interval overlaps the best's. Where both ran side by side
        in the final comparison, the interval of their ratio tells more and decides instead.
        """
        if self._objective.wish.name != "samples_per_s":
            return ()
        compared = {} if verdict is None else verdict.figures

        def is_tied(key: str) -> bool:
            if verdict is not None and {key, best} <= set(compared):
                return not verdict.gain(best, key).is_told_apart
            return figures[key].overlaps(figures[best])

        tied = [key for key in figures if key != best and is_tied(key)]
        tied.sort(key=lambda key: (key not in compared, -figures[key].samples_per_s))
        return tuple(self._standing(key, figures[key]) for key in tied)

    def _standing(self, key: str, figure: Figure) -> Standing:
        tried = next(t for t in self._history.tried if t.candidate.hash == key)
        files = tried.measured or counting(tried.trials)
        assert files is not None, "a figure comes from a measured trial"
        return Standing(
            trial=files.number,
            candidate=tried.candidate,
            samples_per_s=figure.samples_per_s,
            samples_per_s_low=figure.low,
            samples_per_s_high=figure.high,
            peak_memory_bytes=figure.peak_memory_bytes,
            config=config_of(self._context.study, files.number, self._context.job.engine),
            n_runs=figure.n_runs,
            n_disturbed=figure.n_disturbed,
        )


def failed_answer(
    error: AutotuneError, history: History, study: Study, origin: Origin
) -> SearchAnswer:
    """The answer of a search that ended without a best candidate; nothing was compared."""
    nothing = isinstance(error, NothingFeasibleError)
    return SearchAnswer(
        study=study,
        origin=origin,
        counts=history.counts,
        stop_reason="nothing is feasible" if nothing else "the devices failed: search again",
        problem=Problem(message=error.message, fix=error.hint),
    )
