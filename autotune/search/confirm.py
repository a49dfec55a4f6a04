"""The final comparison: the finalists and the baseline again, cold and interleaved.

A trial's own interval says how steady its steps were, not how much the next set of processes would
differ. The claimed gain therefore rests on fresh runs only.
"""

import math
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.contract import Role, TrialResult
from autotune.record.answer import Speedup
from autotune.record.spread import is_figure, log_rate
from autotune.record.study import Trial
from autotune.search.front import Figure
from autotune.search.history import History, counting, is_settled, results
from autotune.search.objective import Objective
from autotune.search.trial_spec import CONFIRM_MEASURE, WARM_MEASURE
from autotune.space.candidate import Candidate

ROUNDS = 3
"""With two candidates, 3 rounds leave 2 degrees of freedom for the gain: its interval is 4.3
standard errors wide to each side; 2 rounds leave 1 (12.7), 4 rounds 3 (3.2) for a third more time.
Every further finalist adds as many again."""
MIN_ROUNDS = 2
"""Below two runs of each there is no between-run variance to speak of."""
MAX_FINALISTS = 5


@dataclass(frozen=True, kw_only=True)
class FinalComparison:
    """Which candidates run in which rounds."""

    members: tuple[Candidate, ...]
    first_round: int
    n_rounds: int


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The runs of complete rounds, with what a round did to all of them taken out."""

    means: dict[str, float]
    """Mean of log samples/s over these rounds, by candidate hash."""
    n_rounds: int
    deviation: float
    """Standard deviation of log samples/s that neither candidate nor round explains."""
    degrees: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a comparison found."""

    figures: dict[str, Figure]
    """Geometric mean of samples/s over the runs, with the interval of a re-run; by candidate
    hash."""
    n_runs: dict[str, int]
    deviation: float
    """Standard deviation of log samples/s between runs of one candidate, pooled over all."""
    degrees: int
    """Degrees of freedom of `deviation`."""
    paired: Paired | None
    """None where fewer than two candidates have two rounds in common."""

    def gain(self, of: str, over: str) -> Speedup:
        """Ratio of two candidates' samples/s with its 95% interval, round by round.

        The runs that choose the best also judge it, and the luckiest of five equals looks faster
        than the baseline too often. So the 95% hold for all the others against one of them at
        once: each interval misses 5% / (candidates - 1) (Bonferroni, as in Dunn, Multiple
        Comparisons Among Means, 1961). For two candidates that is Student's own interval.

        The ratio of a candidate to itself is exactly 1; its interval then says how large a gain
        this comparison would have missed.
        """
        if self.paired is None:
            ratio = self.figures[of].samples_per_s / self.figures[over].samples_per_s
            error = self.deviation * math.sqrt(1 / self.n_runs[of] + 1 / self.n_runs[over])
            degrees = self.degrees
        else:
            ratio = math.exp(self.paired.means[of] - self.paired.means[over])
            degrees = self.paired.degrees
            error = self.paired.deviation * math.sqrt(2 / self.paired.n_rounds)
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(self.figures) - 1)
        half_width = t_quantile(confidence, degrees) * error
        return Speedup(
            ratio=ratio, low=ratio * math.exp(-half_width), high=ratio * math.exp(half_width)
        )


def finalists(history: History, objective: Objective) -> list[Candidate]:
    """Candidates that could be the best, best first, from their own trials alone.

    The comparison's runs are left out, so that a comparison cut short goes on as it was planned.
    """
    tried = {t.candidate.hash: t for t in history.explored.tried}
    figures = {key: f for key, t in tried.items() if (f := objective.figure(t)) is not None}
    return [tried[key].candidate for key in objective.contenders(figures)[:MAX_FINALISTS]]


def plan(
    history: History,
    objective: Objective,
    baseline: Candidate | None,
    *,
    left_s: Callable[[Sequence[Trial]], float],
) -> FinalComparison | None:
    """Plan the comparison, or find the one that was begun; None where it cannot be paid for.

    A comparison that was begun goes on while its members are the same: the runs of a new member
    would not be interleaved with the others' in rounds that are over.

    Args:
        history: The record.
        objective: What is better.
        baseline: Runs in every round; None where none runs.
        left_s: Seconds of the budget that would be left without the comparison's trials.
    """
    contenders = finalists(history, objective)
    if not contenders:
        return None
    begun = [t for t in history.trials if t.spec.identity.role is Role.CONFIRM]
    last_begun = first_round_of(
        max((t.spec.identity.confirm_round or 0 for t in begun), default=0)
    )
    for first_round in (last_begun, last_begun + ROUNDS):
        own = _runs_of(history, first_round)
        members, n_rounds = _affordable(contenders, baseline, own, left_s, run_s(history))
        comparison = FinalComparison(members=members, first_round=first_round, n_rounds=n_rounds)
        if not n_rounds:
            return None
        if _is_open_to(comparison, own):
            return comparison
    raise AssertionError("a comparison without runs is open to everyone")


def first_round_of(round_number: int) -> int:
    """The first round of the comparison that a round belongs to; each has `ROUNDS` of its own."""
    return round_number // ROUNDS * ROUNDS


def run_s(history: History) -> float:
    """Seconds that one run of the comparison takes, at most as a rule; 0 with nothing to go by.

    It starts cold, which a search's trial need not, and measures for longer. The comparison's own
    runs do not count: what is planned by them would change on resume.
    """
    explored = history.explored
    if explored.typical_s is None:
        return 0.0
    longer_s = CONFIRM_MEASURE.budget_s - WARM_MEASURE.budget_s
    return explored.typical_s + explored.slower_start_s + longer_s


def next_run(
    comparison: FinalComparison, history: History, *, seed: int, left_s: float = math.inf
) -> tuple[Candidate, int] | None:
    """The candidate and round to run next; None when the comparison is complete.

    The order is shuffled once by the seed and turned by one place per round, so that nobody always
    runs first, and drift (a warming machine) meets all alike.

    Args:
        comparison: What was planned.
        history: The record.
        seed: Seed of the order.
        left_s: Seconds left of the budget. The plan did not pay for repeats of disturbed runs.
    """
    own = _runs_of(history, comparison.first_round)
    to_repeat = _to_repeat(comparison, history, left_s)
    order = sorted(comparison.members, key=lambda member: member.hash)
    random.Random(seed).shuffle(order)
    for turn in range(comparison.n_rounds):
        round_number = comparison.first_round + turn
        start = turn % len(order)
        for member in (*order[start:], *order[:start]):
            if not is_settled(_of(own, member, round_number), to_repeat):
                return member, round_number
    return None


def n_missing(comparison: FinalComparison, history: History, *, left_s: float = math.inf) -> int:
    """Runs that the comparison still needs; arguments as of `next_run`."""
    return _n_unsettled(comparison, history, _to_repeat(comparison, history, left_s))


def _to_repeat(comparison: FinalComparison, history: History, left_s: float) -> frozenset[int]:
    """The disturbed runs to repeat; none where that would take time from planned runs."""
    n_planned = _n_unsettled(comparison, history, frozenset())
    is_paid_for = (n_planned + 1) * run_s(history) <= left_s
    return history.to_repeat if is_paid_for else frozenset()


def _n_unsettled(comparison: FinalComparison, history: History, to_repeat: Collection[int]) -> int:
    own = _runs_of(history, comparison.first_round)
    rounds = range(comparison.first_round, comparison.first_round + comparison.n_rounds)
    return sum(
        not is_settled(_of(own, member, round_number), to_repeat)
        for member in comparison.members
        for round_number in rounds
    )


def judge(comparison: FinalComparison, history: History, objective: Objective) -> Verdict | None:
    """Compare the runs; None before every candidate has been through `MIN_ROUNDS`.

    Work is on log samples/s, where run-to-run noise is a share and the same for all candidates,
    so its variance is pooled over them. A candidate's own interval says where a re-run would be,
    as everywhere (`autotune.record.spread`). The gain is judged round by round, each a block of a
    randomized block design (Fisher, The Design of Experiments, 1935): a machine that slows down
    for minutes slows a whole round, and that is no noise of the ratio. It costs degrees of
    freedom: on a machine without such drift the interval of two candidates is half as wide again.

    A candidate that failed or broke the memory limit in any run has no figure: it must not be
    handed out.
    """
    own = _runs_of(history, comparison.first_round)
    first_rounds = range(comparison.first_round, comparison.first_round + MIN_ROUNDS)
    if not all(is_settled(_of(own, m, r)) for m in comparison.members for r in first_rounds):
        return None
    counted: dict[str, dict[int, TrialResult]] = {}
    peaks: dict[str, int | None] = {}
    for member in comparison.members:
        theirs = [t for t in own if t.spec.identity.candidate_hash == member.hash]
        rounds = sorted({t.spec.identity.confirm_round or 0 for t in theirs})
        runs = {n: counting(_of(own, member, n)) for n in rounds}
        measured = {n: run for n, run in runs.items() if run is not None and is_figure(run)}
        if not measured or any(_disqualifies(run, objective) for run in results(theirs)):
            continue
        counted[member.hash] = measured
        known = [r.peak_memory_bytes for r in measured.values() if r.peak_memory_bytes is not None]
        peaks[member.hash] = max(known, default=None)
    logs = {key: {n: log_rate(r) for n, r in runs.items()} for key, runs in counted.items()}
    degrees = sum(len(values) - 1 for values in logs.values())
    if degrees < 1:
        return None
    squares = sum(
        (x - _mean(values.values())) ** 2 for values in logs.values() for x in values.values()
    )
    deviation = math.sqrt(squares / degrees)
    figures = {}
    for key, by_round in counted.items():
        interval = history.spread.interval(list(by_round.values()))
        figures[key] = Figure(
            samples_per_s=interval.rate,
            low=interval.low,
            high=interval.high,
            peak_memory_bytes=peaks[key],
            n_disturbed=sum(bool(run.disturbed) for run in by_round.values()),
        )
    return Verdict(
        figures=figures,
        n_runs={key: len(values) for key, values in logs.items()},
        deviation=deviation,
        degrees=degrees,
        paired=_paired(logs),
    )


def _paired(logs: dict[str, dict[int, float]]) -> Paired | None:
    """The residuals of the runs, once the means of candidates and rounds are taken out."""
    complete = set.intersection(*(set(values) for values in logs.values()))
    degrees = (len(logs) - 1) * (len(complete) - 1)
    if degrees < 1:
        return None
    means = {key: _mean([values[n] for n in complete]) for key, values in logs.items()}
    rounds = {n: _mean([values[n] for values in logs.values()]) for n in complete}
    overall = _mean(means.values())
    squares = sum(
        (values[n] - means[key] - rounds[n] + overall) ** 2
        for key, values in logs.items()
        for n in complete
    )
    return Paired(
        means=means,
        n_rounds=len(complete),
        deviation=math.sqrt(squares / degrees),
        degrees=degrees,
    )


def _affordable(
    contenders: list[Candidate],
    baseline: Candidate | None,
    own: Sequence[Trial],
    left_s: Callable[[Sequence[Trial]], float],
    run_s: float,
) -> tuple[tuple[Candidate, ...], int]:
    """As many finalists as the time allows, the last dropped first; then fewer rounds."""
    others = [c for c in contenders if c != baseline]
    fixed = [] if baseline is None else [baseline]
    fewest = 1 if others and contenders[0] != baseline else 0
    for n_rounds in range(ROUNDS, MIN_ROUNDS - 1, -1):
        for n_others in range(len(others), fewest - 1, -1):
            members = (*others[:n_others], *fixed)
            hashes = {member.hash for member in members}
            theirs = [trial for trial in own if trial.spec.identity.candidate_hash in hashes]
            if members and len(members) * n_rounds * run_s <= left_s(theirs):
                return members, n_rounds
    return (), 0


def _is_open_to(comparison: FinalComparison, own: Sequence[Trial]) -> bool:
    """Whether every member has run in every round that is over."""
    begun = max((t.spec.identity.confirm_round or 0 for t in own), default=comparison.first_round)
    return all(
        _of(own, member, over)
        for member in comparison.members
        for over in range(comparison.first_round, begun)
    )


def _runs_of(history: History, first_round: int) -> list[Trial]:
    rounds = range(first_round, first_round + ROUNDS)
    return [t for t in history.trials if t.spec.identity.confirm_round in rounds]


def _of(own: Sequence[Trial], member: Candidate, round_number: int) -> list[Trial]:
    return [
        t
        for t in own
        if t.spec.identity.candidate_hash == member.hash
        and t.spec.identity.confirm_round == round_number
    ]


def _disqualifies(run: TrialResult, objective: Objective) -> bool:
    return run.outcome.is_config_fault or not objective.fits(run.peak_memory_bytes)


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)
