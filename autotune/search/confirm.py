"""The final comparison: the finalists and the baseline again, interleaved, as a race.

A trial's own interval says how steady its steps were, not how much the next set of processes would
differ. The claimed gain therefore rests on fresh runs only. `autotune.search.race` says who runs
the next round; here the record is read for it.
"""

import math
import random
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from autotune.contract import Start
from autotune.record.answer import Speedup, Standing
from autotune.record.guard import GuardVerdict
from autotune.record.spread import is_figure, log_rate
from autotune.record.study import Trial
from autotune.search import race
from autotune.search.front import peak_of
from autotune.search.history import History, Tried, counting, is_settled, results
from autotune.search.objective import Objective
from autotune.search.race import (
    BLOCK,
    COLD,
    MIN_ROUNDS,
    N_CONFIRM,
    WARM,
    NextRound,
    Race,
    Racer,
    Rules,
)
from autotune.search.trial_spec import CONFIRM_MEASURE, WARM_MEASURE
from autotune.space.candidate import Candidate

MAX_FINALISTS = 4
"""Each one more takes time from further runs of the others."""
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
    """A comparison that is to be made, or under way."""

    members: tuple[Candidate, ...]
    baseline: str | None
    """Hash of the baseline; None: there is none, or nobody knows which it was."""
    first_round: int
    rules: Rules


@dataclass(frozen=True, kw_only=True)
class ComparisonRun:
    """A run of the comparison that is to come."""

    candidate: Candidate
    round: int
    cold: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Result of a comparison; by candidate hash."""

    figures: dict[str, Standing]
    """Geometric mean of samples/s over the runs, with the interval of a re-run."""
    race: Race
    """The race after its last whole round."""

    def gain(self, of: str, over: str) -> Speedup | None:
        """See `Race.gain`."""
        return self.race.gain(of, over)

    def best(self, among: Collection[str]) -> str | None:
        """The one of some that the race names, by samples/s; None: none of them was compared."""
        order = [*self.race.standing, *self.race.by_score]
        return next((key for key in order if key in among), None)


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
    may_start_warm: Callable[[Candidate], bool] = lambda _: False,
    only_best: bool = False,
) -> FinalComparison | None:
    """Plan the comparison, or find the one that was begun; None where it cannot be paid for.

    A comparison that was begun goes on while nobody has to run a round that is over: such a run
    would not be interleaved with the others'.

    The baseline, where there is one, runs in every round. `left_s` says how many seconds of the
    budget would be left without some trials: those of the comparison. Those `drifting` by their
    hashes have failed the convergence guard in an earlier one; it compares `guard_steps`. One
    candidate that cannot start warm keeps all others from it: they would be compared otherwise.
    With `only_best` no other finalist runs than the best.
    """
    contenders = finalists(history, objective, drifting)
    if not contenders:
        return None
    if only_best:
        contenders = [next((c for c in contenders if c != baseline), contenders[0])]
    begun = max((t.spec.identity.confirm_round or 0 for t in history.trials), default=0)
    for first_round in (first_round_of(begun), first_round_of(begun) + BLOCK):
        own = _runs_of(history, first_round)
        everyone = [*contenders, *([] if baseline is None else [baseline])]
        rules = _rules_of(own) or (WARM if all(map(may_start_warm, everyone)) else COLD)
        members = _affordable(contenders, baseline, own, left_s, rules, history, guard_steps)
        if not members:
            return None
        # Who has run in it stays in it, whatever the time that is left now.
        ran = _recorded_comparison(history, own, None, first_round).members
        members += tuple(m for m in ran if m not in members and m.hash not in drifting)
        planned = FinalComparison(
            members=members,
            baseline=None if baseline is None else baseline.hash,
            first_round=first_round,
            rules=rules,
        )
        if not is_broken(planned, history, objective):
            return planned
    raise AssertionError("a comparison without runs is open to everyone")


def is_broken(comparison: FinalComparison, history: History, objective: Objective) -> bool:
    """Whether somebody would have to run a round that others have followed by the next one.

    Whoever made it drop out has failed since, or is no member any more.
    """
    at = _replay(comparison, history, objective)
    last = max((number for _, number in _runs_of(history, comparison.first_round)), default=-1)
    return bool(at.missing) and at.round < last


def first_round_of(round_number: int) -> int:
    """The first round of the comparison that a round belongs to; each has `BLOCK` of its own."""
    return round_number // BLOCK * BLOCK


def last_comparison(history: History) -> int:
    """First round of the record's last comparison; below 0: there was none."""
    return first_round_of(max((number_of(t) for t in history.trials), default=-1))


def drifted_before(history: History, guards: Mapping[str, GuardVerdict]) -> frozenset[str]:
    """Hashes of those that the guard failed in comparisons that another one has followed.

    The last comparison may still be under way: its members are those it was planned with.
    """
    last = last_comparison(history)
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
    """Steps that a run of a candidate takes for the guard, warm-up included."""
    step_s = None if tried.measured is None else tried.measured.step_time_s
    return steps_within(wanted, step_s)


def steps_within(wanted: int, step_s: float | None) -> int:
    """Steps that a run takes for the guard where one takes `step_s`; None: nobody knows.

    As many as are compared, but no more than `GUARD_S` allow: a trial of slow steps would run
    into its time limit.
    """
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


def race_run_s(history: History, rules: Rules, guard_steps: int = 0) -> float:
    """Seconds that one run of a race takes that need not confirm anything."""
    return (history.explored.typical_s or 0.0) if rules.warm else run_s(history, guard_steps)


def least_s(history: History, guard_steps: int) -> float:
    """Seconds of the shortest comparison: a round of two, and both once more, all cold."""
    return 4 * run_s(history, guard_steps)


def kept_s(history: History, rules: Rules, guard_steps: int = 0) -> float:
    """Seconds that a comparison of two takes: what a search keeps back of its time."""
    rounds = race.LOOKS[-1] if rules.warm else race.FULL_ROUNDS
    n_cold = 1 if rules.warm else rounds
    warm_s = 2 * (rounds - n_cold) * race_run_s(history, rules, guard_steps)
    return warm_s + 2 * n_cold * run_s(history, guard_steps)


def missing_runs(
    comparison: FinalComparison,
    history: History,
    objective: Objective,
    *,
    seed: int,
    left_s: float = math.inf,
    guard_steps: int = 0,
) -> list[ComparisonRun]:
    """The runs of this round that are still to come, in their order; none: the race is over.

    The order is shuffled once by the seed and turned by one place per round, so that nobody always
    runs first, and drift (a warming machine) meets all alike.

    A disturbed run is repeated where `left_s` seconds of the budget leave the time for it beside
    the round, and a round is begun that can be paid for. Where the time is over, the best and the
    baseline are confirmed cold before anything else.
    """

    def cost_s(at: _Replayed) -> float:
        own_s = race_run_s(history, comparison.rules, guard_steps)
        one_s = run_s(history, guard_steps) if at.asked and at.asked.cold else own_s
        return len(at.missing) * one_s

    at = _replay(comparison, history, objective)
    again = _replay(comparison, history, objective, history.to_repeat)
    if again.missing != at.missing or again.round != at.round:
        extra_s = run_s(history, guard_steps) if again.asked and again.asked.cold else 0.0
        extra_s = extra_s or race_run_s(history, comparison.rules, guard_steps)
        planned_s = cost_s(at) if at.is_begun else 0.0
        if at.race.confirmation is not None and not (at.asked and at.asked.cold):
            planned_s += N_CONFIRM * run_s(history, guard_steps)
        if planned_s + extra_s <= left_s:
            at = again
    if at.asked is None:
        return []
    cold = at.asked.cold
    if not at.is_begun and cost_s(at) > left_s:
        return []
    if not at.is_begun and not cold and at.round > comparison.first_round:
        confirmed_s = N_CONFIRM * run_s(history, guard_steps)
        if cost_s(at) + confirmed_s > left_s and (asked := at.race.confirmation) is not None:
            at = _Replayed(race=at.race, asked=asked, missing=asked.keys, round=at.round)
            cold = True
            if cost_s(at) > left_s:
                return []
    turn = at.round - comparison.first_round
    order = sorted(comparison.members, key=lambda member: member.hash)
    random.Random(seed).shuffle(order)
    turned = [order[(turn + place) % len(order)] for place in range(len(order))]
    return [
        ComparisonRun(candidate=member, round=at.round, cold=cold)
        for member in turned
        if member.hash in at.missing
    ]


def judge(comparison: FinalComparison, history: History, objective: Objective) -> Verdict | None:
    """Compare the runs; None before two whole rounds.

    Work is on log samples/s, where run-to-run noise is a share and the same for all candidates,
    so its variance is pooled over them. A candidate's own interval says where a re-run would be,
    as everywhere (`autotune.record.spread`).

    A candidate that failed or broke the memory limit in any run has no figure: it must not be
    handed out.
    """
    at = _replay(comparison, history, objective)
    if at.race.n_rounds < MIN_ROUNDS:
        return None
    figures = _figures(comparison, history, objective)
    return Verdict(figures=figures, race=at.race) if at.race.can_judge else None


def race_so_far(
    comparison: FinalComparison, history: History, objective: Objective
) -> tuple[Race, dict[str, Standing]]:
    """The race after its last whole round, and the figures of all runs so far by hash."""
    at = _replay(comparison, history, objective)
    return at.race, _figures(comparison, history, objective)


def recorded_verdict(
    history: History,
    objective: Objective,
    *,
    baseline: str | None = None,
    drifting: Collection[str] = (),
) -> Verdict | None:
    """Result of the comparison of the record that tells most; None: there is none.

    A comparison to its end tells more than one that was cut short, and of two such the later one;
    of those that were cut short the one of more rounds. One whose best the guard fails was not
    the end. So a later call that has no time to compare again takes nothing away.

    Args:
        history: The record's trials.
        objective: That of the search.
        baseline: Hash of the baseline; None: nobody knows which it was.
        drifting: Hashes of those that the guard fails.
    """
    numbers = {first_round_of(number) for t in history.trials if (number := number_of(t)) >= 0}
    found: list[tuple[tuple[bool, bool, int, int], Verdict]] = []
    for first_round in numbers:
        own = _runs_of(history, first_round)
        comparison = _recorded_comparison(history, own, baseline, first_round)
        if baseline is None:
            # Whose rounds they were is unknown, so nobody can say which are whole.
            n_rounds = max(number for _, number in own) - first_round + 1
            state, is_over = _states(comparison, history, objective)(n_rounds), False
        else:
            at = _replay(comparison, history, objective)
            state, is_over = at.race, at.asked is None
        if state.n_rounds < MIN_ROUNDS or not state.can_judge:
            continue
        is_over = is_over and state.best not in drifting
        weight = (baseline in state.logs, is_over, 0 if is_over else state.n_rounds, first_round)
        figures = _figures(comparison, history, objective)
        found.append((weight, Verdict(figures=figures, race=state)))
    return max(found, key=lambda item: item[0])[1] if found else None


def _recorded_comparison(
    history: History, own: _Runs, baseline: str | None, first_round: int
) -> FinalComparison:
    """The comparison that some runs of the record are of."""
    hashes = {key for key, _ in own}
    return FinalComparison(
        members=tuple(t.candidate for t in history.tried if t.candidate.hash in hashes),
        baseline=baseline,
        first_round=first_round,
        rules=_rules_of(own) or COLD,
    )


@dataclass(frozen=True, kw_only=True)
class _Replayed:
    """A race where the record has got to."""

    race: Race
    asked: NextRound | None
    """The round that comes; None: none, the race is over."""
    missing: tuple[str, ...]
    """Its candidates that are still to run."""
    round: int
    """Its number."""

    @property
    def is_begun(self) -> bool:
        return self.asked is not None and len(self.missing) < len(self.asked.keys)


def _replay(
    comparison: FinalComparison,
    history: History,
    objective: Objective,
    to_repeat: frozenset[int] = frozenset(),
) -> _Replayed:
    """Go through the rounds of the record up to the first that is not whole."""
    own, after = _runs_of(history, comparison.first_round), _states(comparison, history, objective)
    for n_rounds in range(BLOCK + 1):
        state = after(n_rounds)
        asked = state.next_round()
        number = comparison.first_round + n_rounds
        if asked is not None and _was_cut_short(own, number, comparison.rules):
            asked = state.confirmation or asked
        missing = tuple(
            key
            for key in ([] if asked is None else asked.keys)
            if not is_settled(own.get((key, number), ()), to_repeat)
        )
        if asked is None or missing:
            return _Replayed(race=state, asked=asked, missing=missing, round=number)
    raise AssertionError("a race ends with its block")


def _was_cut_short(own: _Runs, number: int, rules: Rules) -> bool:
    """Whether a round of warm starts was begun as a cold one: the time was over."""
    firsts = [its[0].spec for (_, n), its in own.items() if n == number]
    return rules.warm and any(spec.measure.start is Start.COLD for spec in firsts)


def _states(
    comparison: FinalComparison, history: History, objective: Objective
) -> Callable[[int], Race]:
    """The race by the number of rounds that are over."""
    own = _runs_of(history, comparison.first_round)
    figures = _figures(comparison, history, objective)
    explored = objective.figures(history.explored)
    racers = tuple(
        Racer(
            key=key,
            peak_bytes=peak_of(figures[key]) if key in figures else math.inf,
            own_log=math.log(explored[key].samples_per_s) if key in explored else None,
        )
        for key in (member.hash for member in comparison.members)
        if key in figures or not _is_out(own, key, objective)
    )
    known = {racer.key for racer in racers}
    named = None
    if objective.wish.name != "samples_per_s" and figures:
        named = objective.best(figures, beside=explored)
    runs = [
        (key, number - comparison.first_round, run)
        for (key, number), trials in own.items()
        if (run := counting(trials)) is not None and key in known and is_figure(run)
    ]

    def after(n_rounds: int) -> Race:
        over = [(key, number, run) for key, number, run in runs if number < n_rounds]
        logs: dict[str, dict[int, float]] = {}
        for key, number, run in over:
            logs.setdefault(key, {})[number] = log_rate(run)
        return Race(
            racers=racers,
            baseline=comparison.baseline if comparison.baseline in known else None,
            logs=logs,
            n_rounds=n_rounds,
            confirmed=frozenset(key for key, _, run in over if run.start is Start.COLD),
            rules=comparison.rules,
            named=named,
        )

    return after


def _is_out(own: _Runs, key: str, objective: Objective) -> bool:
    """Whether a run failed or broke the memory limit: the candidate must not be handed out."""
    ended = [run for (whose, _), its in own.items() if whose == key for run in results(its)]
    return any(
        run.outcome.is_config_fault or not objective.fits(run.peak_memory_bytes) for run in ended
    )


def _figures(
    comparison: FinalComparison, history: History, objective: Objective
) -> dict[str, Standing]:
    """Figures of the members that ran and did not fail."""
    own = _runs_of(history, comparison.first_round)
    figures: dict[str, Standing] = {}
    for key in (member.hash for member in comparison.members):
        counted = [counting(trials) for (whose, _), trials in sorted(own.items()) if whose == key]
        runs = [run for run in counted if run is not None and is_figure(run)]
        if not runs or _is_out(own, key, objective):
            continue
        figures[key] = history.of_hash(key).standing_by(runs)
    return figures


def _rules_of(own: _Runs) -> Rules | None:
    """The rules of a race that was begun: those that its first runs started by."""
    first = [trial for _, its in sorted(own.items(), key=lambda item: item[0][1]) for trial in its]
    if not first:
        return None
    return WARM if first[0].spec.measure.start is Start.WARM else COLD


def _affordable(
    contenders: list[Candidate],
    baseline: Candidate | None,
    own: _Runs,
    left_s: Callable[[Sequence[Trial]], float],
    rules: Rules,
    history: History,
    guard_steps: int,
) -> tuple[Candidate, ...]:
    """As many finalists as the time allows a round of, and the best one cold beside the baseline.

    The last is dropped first.
    """
    others = [c for c in contenders if c != baseline]
    fixed = [] if baseline is None else [baseline]
    fewest = 1 if others and contenders[0] != baseline else 0
    first_s, cold_s = race_run_s(history, rules, guard_steps), run_s(history, guard_steps)
    for n_others in range(len(others), fewest - 1, -1):
        members = (*others[:n_others], *fixed)
        hashes = {member.hash for member in members}
        theirs = [trial for (key, _), its in own.items() if key in hashes for trial in its]
        wanted_s = len(members) * first_s + min(2, len(members)) * cold_s
        if members and wanted_s <= left_s(theirs):
            return members
    return ()


def _runs_of(history: History, first_round: int) -> _Runs:
    own: dict[tuple[str, int], list[Trial]] = {}
    for trial in history.trials:
        number = trial.spec.identity.confirm_round
        if number is not None and first_round <= number < first_round + BLOCK:
            own.setdefault((trial.spec.identity.candidate_hash, number), []).append(trial)
    return own
