"""The final comparison: the finalists and the baseline again, cold and interleaved.

A trial's own interval says how steady its steps were, not how much the next set of processes would
differ. The claimed gain therefore rests on fresh runs only.
"""

import math
import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.base.student_t import CONFIDENCE, t_quantile
from autotune.record.answer import Speedup
from autotune.record.guard import GuardVerdict
from autotune.record.spread import is_figure, log_rate
from autotune.record.study import Trial
from autotune.search.front import Figure
from autotune.search.history import History, Tried, counting, is_settled, results
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
MAX_COMPARISONS = 3
"""Comparisons with a candidate that the convergence guard fails, after which no other follows."""
GUARD_S = 40.0
"""Seconds of steps up to which a run goes on for the convergence guard alone; `OWN_STEPS` are run
in any case."""
OWN_STEPS = CONFIRM_MEASURE.warmup_steps + CONFIRM_MEASURE.min_steps
"""Steps that a run takes at the least where nothing is guarded."""

_Runs = Mapping[tuple[str, int], Sequence[Trial]]
"""Candidate's hash and round -> the trials of that run, repeats included."""


@dataclass(frozen=True, kw_only=True)
class FinalComparison:
    """Candidates of each round."""

    members: tuple[Candidate, ...]
    first_round: int
    n_rounds: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a comparison; both by candidate hash."""

    figures: dict[str, Figure]
    """Geometric mean of samples/s over the runs, with the interval of a re-run."""
    logs: dict[str, dict[int, float]]
    """log samples/s by round."""

    @property
    def degrees(self) -> int:
        """Degrees of freedom of `deviation`."""
        return sum(len(runs) - 1 for runs in self.logs.values())

    @property
    def deviation(self) -> float:
        """Standard deviation of log samples/s between runs of one candidate, pooled over all."""
        runs = [np.array(list(by_round.values())) for by_round in self.logs.values()]
        squares = sum(float(((own - own.mean()) ** 2).sum()) for own in runs)
        return math.sqrt(squares / self.degrees)

    def gain(self, of: str, over: str) -> Speedup:
        """Ratio of two candidates' samples/s with its 95% interval, round by round.

        Each round is a block of a randomized block design (Fisher, The Design of Experiments,
        1935): a machine that slows down for minutes slows a whole round, and that is no noise of
        the ratio. It costs degrees of freedom: on a machine without such drift the interval of two
        candidates is half as wide again. Where fewer than two candidates have two rounds in
        common, the pooled deviation stands in.

        The runs that choose the best also judge it, and the luckiest of five equals looks faster
        than the baseline too often. So the 95% hold for all the others against one of them at
        once: each interval misses 5% / (candidates - 1) (Bonferroni, as in Dunn, Multiple
        Comparisons Among Means, 1961). For two candidates that is Student's own interval.

        The ratio of a candidate to itself is exactly 1; its interval then says how large a gain
        this comparison would have missed.
        """
        rounds = sorted(set.intersection(*(set(runs) for runs in self.logs.values())))
        degrees = (len(self.logs) - 1) * (len(rounds) - 1)
        if degrees < 1:
            ratio = self.figures[of].samples_per_s / self.figures[over].samples_per_s
            n_runs = self.figures[of].n_runs, self.figures[over].n_runs
            error = self.deviation * math.sqrt(1 / n_runs[0] + 1 / n_runs[1])
            degrees = self.degrees
        else:
            table = np.array([[runs[n] for n in rounds] for runs in self.logs.values()])
            means = dict(zip(self.logs, table.mean(axis=1), strict=True))
            ratio = math.exp(means[of] - means[over])
            # What neither the candidates nor the rounds explain.
            residuals = table - table.mean(axis=1, keepdims=True) - table.mean(axis=0)
            squares = float(((residuals + table.mean()) ** 2).sum())
            error = math.sqrt(squares / degrees) * math.sqrt(2 / len(rounds))
        confidence = 1 - (1 - CONFIDENCE) / max(1, len(self.figures) - 1)
        half_width = t_quantile(confidence, degrees) * error
        return Speedup(
            ratio=ratio, low=ratio * math.exp(-half_width), high=ratio * math.exp(half_width)
        )


def finalists(
    history: History, objective: Objective, drifting: Collection[str] = ()
) -> list[Candidate]:
    """Candidates that could be the best, best first, from their own trials alone.

    The comparison's runs are left out, so that a comparison cut short goes on as it was planned.
    """
    explored = history.explored
    candidates = {tried.candidate.hash: tried.candidate for tried in explored.tried}
    figures = {k: f for k, f in objective.figures(explored).items() if k not in drifting}
    best = objective.contenders(figures)[:MAX_FINALISTS]
    return [candidates[key] for key in best]


def plan(
    history: History,
    objective: Objective,
    baseline: Candidate | None,
    *,
    left_s: Callable[[Sequence[Trial]], float],
    drifting: Collection[str] = (),
    guard_steps: int = 0,
) -> FinalComparison | None:
    """Plan the comparison, or find the one that was begun; None where it cannot be paid for.

    A comparison that was begun goes on while its members are the same: the runs of a new member
    would not be interleaved with the others' in rounds that are over.

    The baseline, where there is one, runs in every round. `left_s` says how many seconds of the
    budget would be left without some trials: those of the comparison. Those `drifting` by their
    hashes have failed the convergence guard in an earlier one; it compares `guard_steps`.
    """
    contenders = finalists(history, objective, drifting)
    if not contenders:
        return None
    begun = max((t.spec.identity.confirm_round or 0 for t in history.trials), default=0)
    for first_round in (first_round_of(begun), first_round_of(begun) + ROUNDS):
        own = _runs_of(history, first_round)
        its_s = run_s(history, guard_steps)
        members, n_rounds = _affordable(contenders, baseline, own, left_s, its_s)
        if not n_rounds:
            return None
        over = range(first_round, max((number for _, number in own), default=first_round))
        if all((member.hash, number) in own for member in members for number in over):
            return FinalComparison(members=members, first_round=first_round, n_rounds=n_rounds)
    raise AssertionError("a comparison without runs is open to everyone")


def first_round_of(round_number: int) -> int:
    """The first round of the comparison that a round belongs to; each has `ROUNDS` of its own."""
    return round_number // ROUNDS * ROUNDS


def drifted_before(history: History, guards: Mapping[str, GuardVerdict]) -> frozenset[str]:
    """Hashes of those that the guard failed in comparisons that another one has followed.

    The last comparison may still be under way: its members are those it was planned with.
    """
    last = first_round_of(max((number_of(t) for t in history.trials), default=0))
    earlier = {t.spec.identity.candidate_hash for t in history.trials if 0 <= number_of(t) < last}
    return frozenset(key for key in earlier if key in guards and guards[key].is_drift)


def n_drifted(history: History, guards: Mapping[str, GuardVerdict]) -> int:
    """Comparisons with a member that the guard fails."""
    drifting = {key for key, said in guards.items() if said.is_drift}
    trials = [t for t in history.trials if t.spec.identity.candidate_hash in drifting]
    return len({first_round_of(number_of(t)) for t in trials if number_of(t) >= 0})


def number_of(trial: Trial) -> int:
    """Round of a trial of the final comparison; below 0: it is of none."""
    number = trial.spec.identity.confirm_round
    return -1 if number is None else number


def least_steps(tried: Tried, wanted: int) -> int:
    """Steps that a run of a candidate takes for the guard, warm-up included.

    As many as are compared, but no more than `GUARD_S` allow: a trial of slow steps would run
    into its time limit.
    """
    step_s = None if tried.measured is None else tried.measured.step_time_s
    return wanted if not step_s else min(wanted, int(GUARD_S / step_s))


def guard_s(history: History, wanted: int) -> float | None:
    """Seconds of steps that one run takes for the guard alone, at most; None: no idea.

    A run without the guard may end after `OWN_STEPS`. The steps are those of the median candidate.
    """
    added_s = [
        max(0, least_steps(tried, wanted) - OWN_STEPS) * tried.measured.step_time_s
        for tried in history.explored.tried
        if tried.measured is not None and tried.measured.step_time_s
    ]
    return statistics.median(added_s) if added_s else None


def run_s(history: History, guard_steps: int = 0) -> float:
    """Seconds that one run of the comparison takes, at most as a rule; 0 with nothing to go by.

    It starts cold, which a search's trial need not, and measures for longer. The comparison's own
    runs do not count: what is planned by them would change on resume.
    """
    explored = history.explored
    if explored.typical_s is None:
        return 0.0
    longer_s = CONFIRM_MEASURE.budget_s - WARM_MEASURE.budget_s
    longer_s += guard_s(history, guard_steps) or 0.0
    return explored.typical_s + explored.slower_start_s + longer_s


def missing_runs(
    comparison: FinalComparison,
    history: History,
    *,
    seed: int,
    left_s: float = math.inf,
    guard_steps: int = 0,
) -> list[tuple[Candidate, int]]:
    """The candidates and rounds that are still to run, in their order.

    The order is shuffled once by the seed and turned by one place per round, so that nobody always
    runs first, and drift (a warming machine) meets all alike.

    The plan did not pay for repeats of disturbed runs: none is repeated where that would take
    time from planned runs, with `left_s` seconds left of the budget.
    """
    own = _runs_of(history, comparison.first_round)
    order = sorted(comparison.members, key=lambda member: member.hash)
    random.Random(seed).shuffle(order)
    planned = [
        (order[(turn + place) % len(order)], comparison.first_round + turn)
        for turn in range(comparison.n_rounds)
        for place in range(len(order))
    ]

    def missing(to_repeat: frozenset[int]) -> list[tuple[Candidate, int]]:
        return [
            (member, number)
            for member, number in planned
            if not is_settled(own.get((member.hash, number), ()), to_repeat)
        ]

    first = missing(frozenset())
    all_s = (len(first) + 1) * run_s(history, guard_steps)
    return missing(history.to_repeat) if all_s <= left_s else first


def judge(comparison: FinalComparison, history: History, objective: Objective) -> Verdict | None:
    """Compare the runs; None before every candidate has been through `MIN_ROUNDS`.

    Work is on log samples/s, where run-to-run noise is a share and the same for all candidates,
    so its variance is pooled over them. A candidate's own interval says where a re-run would be,
    as everywhere (`autotune.record.spread`).

    A candidate that failed or broke the memory limit in any run has no figure: it must not be
    handed out.
    """
    own = _runs_of(history, comparison.first_round)
    first_rounds = range(comparison.first_round, comparison.first_round + MIN_ROUNDS)
    needed = [own.get((m.hash, n), ()) for m in comparison.members for n in first_rounds]
    if not all(map(is_settled, needed)):
        return None
    figures: dict[str, Figure] = {}
    logs: dict[str, dict[int, float]] = {}
    for key in (member.hash for member in comparison.members):
        theirs = {number: own[key, number] for whose, number in sorted(own) if whose == key}
        ended = [run for trials in theirs.values() for run in results(trials)]
        counted = {number: counting(trials) for number, trials in theirs.items()}
        runs = {n: run for n, run in counted.items() if run is not None and is_figure(run)}
        failed = any(
            run.outcome.is_config_fault or not objective.fits(run.peak_memory_bytes)
            for run in ended
        )
        if failed or not runs:
            continue
        interval = history.spread.interval(list(runs.values()))
        peaks = (run.peak_memory_bytes for run in runs.values())
        figures[key] = Figure(
            samples_per_s=interval.rate,
            low=interval.low,
            high=interval.high,
            peak_memory_bytes=max((peak for peak in peaks if peak is not None), default=None),
            n_runs=len(runs),
            n_disturbed=sum(bool(run.disturbed) for run in runs.values()),
        )
        logs[key] = {number: log_rate(run) for number, run in runs.items()}
    verdict = Verdict(figures=figures, logs=logs)
    return verdict if verdict.degrees >= 1 else None


def _affordable(
    contenders: list[Candidate],
    baseline: Candidate | None,
    own: _Runs,
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
            theirs = [trial for (key, _), its in own.items() if key in hashes for trial in its]
            if members and len(members) * n_rounds * run_s <= left_s(theirs):
                return members, n_rounds
    return (), 0


def _runs_of(history: History, first_round: int) -> _Runs:
    own: dict[tuple[str, int], list[Trial]] = {}
    for trial in history.trials:
        number = trial.spec.identity.confirm_round
        if number is not None and first_round <= number < first_round + ROUNDS:
            own.setdefault((trial.spec.identity.candidate_hash, number), []).append(trial)
    return own
