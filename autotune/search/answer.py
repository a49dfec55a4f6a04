"""The answer of a search from its record: the standings, and why nothing is feasible."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from autotune.base.errors import AutotuneError, NothingFeasibleError
from autotune.base.templates import tell
from autotune.contract import Origin, Outcome
from autotune.engines.base import find_engine
from autotune.record.answer import Drifted, Problem, SearchAnswer, Standing
from autotune.record.facts import PassedOver
from autotune.record.guard import NOT_COMPARED, GuardVerdict, guards_of
from autotune.record.study import Study, results
from autotune.search import confirm
from autotune.search.base import StopReason
from autotune.search.history import History
from autotune.search.objective import RULE, front_of
from autotune.search.reduced import too_large
from autotune.search.session import Session, history_of
from autotune.space.candidate import Candidate


class RecordStandings:
    """Standings of the candidates of a record, and the answer that follows from them."""

    def __init__(self, session: Session, history: History, baseline: Candidate | None) -> None:
        self._session = session
        self._history = history
        self._objective = session.objective
        self._baseline = None if baseline is None else baseline.hash
        self._tried = None if baseline is None else history.find(baseline)

    def best(self) -> Standing | None:
        """The best candidate by its own trial."""
        figures = self._objective.figures(self._history)
        best = self._objective.best(figures)
        return None if best is None else figures[best]

    @property
    def start(self) -> Standing | None:
        """The baseline by its own trial."""
        return None if self._tried is None else self._tried.own_figure

    @cached_property
    def guards(self) -> dict[str, GuardVerdict]:
        """What the convergence guard says of each candidate of the comparisons, by hash."""
        return guards_of(self._history.trials, self._baseline, self._session.job.guard_steps)

    @cached_property
    def failed(self) -> set[str]:
        return {key for key, verdict in self.guards.items() if verdict.is_drift}

    @property
    def drifting(self) -> set[str]:
        """Those of them that are not handed out for it."""
        return set() if self._session.job.allow_loss_drift else self.failed

    def drifted_best(self, comparison: confirm.Comparison) -> tuple[int, GuardVerdict] | None:
        """The best of a comparison, by its trial, if the guard fails it; None: it does not."""
        best = self._best(comparison, comparison.figures) if comparison.has_verdict else None
        if best is None or best not in self.drifting:
            return None
        return comparison.figures[best].trial, self.guards[best]

    @cached_property
    def comparisons(self) -> list[confirm.Comparison]:
        return confirm.recorded_comparisons(self._history, self._objective, self._baseline)

    @cached_property
    def verdict(self) -> confirm.Comparison | None:
        """What the record's final comparison says; None: there is none."""
        return confirm.verdict_of(self.comparisons, self.drifting)

    def final(
        self, *, passed_over: Sequence[PassedOver], stop_reason: StopReason, interrupted: bool
    ) -> SearchAnswer:
        """The answer: from the record's comparison where there is one, else from single trials."""
        verdict, drifting, baseline = self.verdict, self.drifting, self._baseline
        sound = map(self._history.of_hash, self._objective.figures(self._history))
        by_trial = {one.candidate.hash: one.figure for one in sound if one.figure}
        compared = {} if verdict is None else verdict.figures
        whole = {**by_trial, **compared}
        figures = {key: figure for key, figure in whole.items() if key not in drifting}
        eligible = {key: figures[key] for key in compared if key in figures} or figures
        best = self._best(verdict, eligible, beside=figures)
        start, speedup = None if self._tried is None else self._tried.figure, None
        if verdict is not None and baseline is not None and baseline in compared:
            assert best in compared, "the baseline itself never drifts"
            start = compared[baseline]
            speedup = verdict.race.gain(best, baseline)
            is_faster = speedup is None or speedup.ratio > 1
            if not is_faster and self._objective.wish.name == "samples_per_s":
                best = baseline  # nothing that was compared is faster
                speedup = verdict.race.gain(best, baseline)
        front = None  # by the final comparison's figures where there are any
        if self._objective.wish.name == "pareto":
            front = tuple(figures[key] for key in front_of(figures))
        return SearchAnswer(
            study=self._session.study,
            engine=self._session.job.engine,
            origin=self._session.place.origin,
            counts=self._history.counts,
            baseline=start,
            best=None if best is None else figures[best],
            guard=None if best is None else self._guard(best),
            drifted=self._drifted(whole, best) if drifting else None,
            ties=() if best is None else self._ties(figures, best),
            speedup=speedup,
            objective=self._objective.wish.name,
            front=front,
            rule="" if front is None else RULE,
            passed_over=tuple(passed_over),
            stop_reason=stop_reason,
            interrupted=interrupted,
        )

    def _best(
        self,
        verdict: confirm.Comparison | None,
        among: Mapping[str, Standing],
        *,
        beside: Mapping[str, Standing] | None = None,
    ) -> str | None:
        """The best of some: the one that the race names where samples/s decide."""
        if verdict is not None and self._objective.wish.name == "samples_per_s":
            named = verdict.best(among)
            if named is not None:
                return named
        return self._objective.best(among, beside=beside)

    def _drifted(self, whole: Mapping[str, Standing], best: str | None) -> Drifted | None:
        """The best of those that the guard fails, where it is better than what is handed out."""
        failed = self.failed & whole.keys()
        among = {key: whole[key] for key in self.guards if key in failed}
        if best is not None:
            among[best] = whole[best]
        wanted = self._objective.best(among)
        if wanted is None or wanted == best:
            return None
        return Drifted(standing=whole[wanted], guard=self.guards[wanted])

    def _guard(self, key: str) -> GuardVerdict | None:
        """What the guard says of a candidate; None: it is off, or nothing ran here."""
        if not self._session.job.guard_steps or self._session.place.origin is not Origin.MEASURED:
            return None
        return self.guards.get(key, NOT_COMPARED)

    def _ties(self, figures: Mapping[str, Standing], best: str) -> tuple[Standing, ...]:
        """Candidates that may be as fast as the best; where memory counts too, none is named.

        A candidate is among them if its interval overlaps the best's. Where both ran side by side
        in the final comparison, the interval of their ratio tells more and decides instead. Who
        dropped out of it as surely slower is not among them, however wide that interval is after
        the few rounds that it ran.
        """
        if self._objective.wish.name != "samples_per_s":
            return ()
        verdict = self.verdict
        compared = {} if verdict is None else verdict.figures
        behind = frozenset() if verdict is None else verdict.race.left_behind(figures)

        def is_tied(key: str) -> bool:
            if key in behind:
                return False
            if verdict is not None and {key, best} <= set(compared):
                gain = verdict.race.gain(best, key)
                return gain is None or not gain.is_told_apart
            return figures[key].overlaps(figures[best])

        tied = [key for key in figures if key != best and is_tied(key)]
        tied.sort(key=lambda key: (key not in compared, -figures[key].samples_per_s))
        return tuple(figures[key] for key in tied)


def nothing_feasible(history: History, session: Session) -> NothingFeasibleError:
    """The error for a search in which no trial ran within the limits."""
    ended = results(history.trials)
    if not ended:
        return NothingFeasibleError.of("search.nothing_legal")
    whole = [r.peak_memory_bytes for r in ended if r.outcome.is_measured and r.peak_memory_bytes]
    tried, outcomes = history.tried, [result.outcome for result in ended]
    facts = tell(
        "nothing_feasible",
        {
            "seen": [
                (o, n, ended[outcomes.index(o)]) for o, n in sorted(Counter(outcomes).items())
            ],
            "allowed_bytes": session.objective.allowed_bytes,
            "n_lost": len(too_large(history)),
            "is_short_of_memory": bool(whole) or Outcome.OOM in outcomes,
            # An out-of-memory trial's peak is where it stopped, not what it would have needed.
            "least_peak_bytes": min(whole, default=None),
            "savings": find_engine(session.job.engine).unused_savings(
                [t.candidate for t in tried]
            ),
            "micro_batch": min((t.candidate.micro_batch for t in tried), default=1),
        },
    )
    lines = [f"none of {len(ended)} trials ran within the limits:"]
    lines += [f"  {text}" for name, text in facts if name == "seen"]
    nearest = "; ".join(text for name, text in facts if name == "nearest")
    last = f"see stderr.log of trial {ended[-1].number}; `autotune doctor` checks the machine"
    return NothingFeasibleError(
        "\n".join(lines), f"nearest changes: {nearest}" if nearest else last
    )


def failed_answer(error: AutotuneError, study: Study) -> SearchAnswer:
    """The answer of a search that ended without a best candidate; nothing was compared."""
    nothing, facts = isinstance(error, NothingFeasibleError), study.facts()
    return SearchAnswer(
        study=study,
        origin=facts.origin,
        counts=history_of(study.read(), facts).counts,
        stop_reason="nothing is feasible" if nothing else "the devices failed: search again",
        problem=Problem.of(error),
        passed_over=facts.baseline.passed_over,
    )
