"""The final comparison: the finalists and the baseline again, interleaved, as a race.

A trial's own interval says how steady its steps were, not how much the next set of processes would
differ. The claimed gain therefore rests on fresh runs only. `autotune.search.race` says who runs
the next round; here the record is read for it.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from autotune.contract import Role, Start
from autotune.record.answer import Speedup, Standing
from autotune.record.study import Trial
from autotune.search.history import CandidateTrials, History
from autotune.search.objective import Objective, peak_of
from autotune.search.race import BLOCK, COLD, MIN_ROUNDS, N_CONFIRM, WARM, Race, Rules
from autotune.search.rounds import OpenRound, Round, Runs, Seconds, in_turn, seconds_of
from autotune.search.session import Session
from autotune.search.trial_spec import CONFIRM_MEASURE, OWN_STEPS, WARM_MEASURE, Run, steps_within
from autotune.space.candidate import Candidate

MAX_FINALISTS = 4
"""Each one more takes time from further runs of the others."""
MAX_COMPARISONS = 3
"""Comparisons with a candidate that the convergence guard fails, after which no other follows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """A comparison as far as a record has got."""

    members: tuple[Candidate, ...]
    baseline: str | None
    """Hash of the baseline; None: there is none."""
    first_round: int
    rules: Rules
    history: History
    objective: Objective

    @cached_property
    def figures(self) -> dict[str, Standing]:
        """The members that ran and did not fail, by hash.

        Geometric mean of samples/s over the runs, with the interval of a re-run. A candidate that
        failed or broke the memory limit in any run has no figure: it must not be handed out.
        """
        return {
            member.hash: self.history.of_hash(member.hash).standing_by(runs)
            for member in self.members
            if (runs := self._runs.figures_of(member.hash)) and not self._is_out(member.hash)
        }

    @cached_property
    def race(self) -> Race:
        """The race after its last whole round.

        Work is on log samples/s, where run-to-run noise is a share and the same for all
        candidates, so its variance is pooled over them. A candidate's own interval says where a
        re-run would be, as everywhere (`autotune.record.spread`).
        """
        return self._race_after(self._progress.number)

    @cached_property
    def leader(self) -> Standing | None:
        """Whom the race would name now; None: no round is over."""
        race = self.race
        return self.figures.get(race.best) if race.n_rounds and race.logs else None

    @cached_property
    def start(self) -> Standing | None:
        """The baseline; None: it has no run yet, or there is none."""
        return None if self.baseline is None else self.figures.get(self.baseline)

    @cached_property
    def others(self) -> tuple[Standing, ...]:
        """Those with a run that are neither, the fastest first."""
        others = (s for s in self.figures.values() if s not in (self.leader, self.start))
        return tuple(sorted(others, key=lambda standing: -standing.samples_per_s))

    @cached_property
    def gain(self) -> Speedup | None:
        """Gain of the leader over the baseline; None: nothing to judge it by yet."""
        ran = self.leader is not None and self.start is not None and self.race.n_rounds > 1
        if not ran or self.baseline is None or self.leader == self.start:
            return None
        return self.race.gain(self.race.best, self.baseline)

    @property
    def has_verdict(self) -> bool:
        """Whether it says anything: not before two whole rounds."""
        return self.race.n_rounds >= MIN_ROUNDS and self.race.can_judge

    @property
    def is_over(self) -> bool:
        return self._progress.round is None

    @property
    def is_broken(self) -> bool:
        """Whether somebody would have to run a round that others have followed by the next one.

        Whoever made it drop out has failed since, or is no member any more.
        """
        last_round = max((number for _, number in self._runs.trials), default=-1)
        return bool(self._progress.missing) and self._progress.number < last_round

    def best(self, among: Collection[str]) -> str | None:
        """The one of some that the race names, by samples/s; None: none of them was compared."""
        order = [*self.race.standing, *self.race.by_score]
        return next((key for key in order if key in among), None)

    def missing(self, *, seed: int, left_s: float = math.inf, guard_steps: int = 0) -> list[Run]:
        """The runs of this round that are still to come, in their order; none: the race is over.

        A disturbed run is repeated where `left_s` seconds of the budget leave the time for it
        beside the round, and a round is begun that can be paid for. Where the time is over, the
        best and the baseline are confirmed cold before anything else.
        """
        one_s = run_seconds(self.history, self.rules, guard_steps)
        at, last = self._progress, self.race.confirmation
        is_confirming = last is None or (at.round is not None and at.round.start is Start.COLD)
        kept_s = 0.0 if is_confirming else N_CONFIRM * one_s[Start.COLD]
        again = self._runs.progress(self._round_after, self.history.to_repeat)
        if again != at and again.round is not None:
            begun_s = len(at.missing) * one_s[at.round.start] if at.round and at.is_begun else 0.0
            if begun_s + kept_s + one_s[again.round.start] <= left_s:
                at = again
        if at.round is None:
            return []
        asked, missing = at.round, at.missing
        if not at.is_begun:
            if at.number and last and len(missing) * one_s[asked.start] + kept_s > left_s:
                asked, missing = last, last.keys
            if len(missing) * one_s[asked.start] > left_s:
                return []
        members = {member.hash: member for member in self.members}
        return [
            self._run_of(members[key], at.number, asked.start, guard_steps)
            for key in in_turn(members, at.number, seed)
            if key in missing
        ]

    def _run_of(self, member: Candidate, number: int, start: Start, guard_steps: int) -> Run:
        """A run of a round, with the steps that the convergence guard compares.

        It takes the cold runs. A warm one of the baseline shows its repeat where the search's own
        trial did not take as many steps.
        """
        tried = self.history.find(member)
        wanted = 0 if tried is None else least_steps(tried, guard_steps)
        measured = None if tried is None else tried.measured
        is_repeat = member.hash == self.baseline and number == 0
        is_repeat = is_repeat and (measured is None or len(measured.losses) < wanted)
        return Run(
            candidate=member,
            role=Role.CONFIRM,
            confirm_round=self.first_round + number,
            start=start,
            is_beside_warm=self.rules is WARM,
            least_steps=wanted if start is Start.COLD or is_repeat else 0,
        ).again(self._runs.trials.get((member.hash, number), ()), self.history.to_repeat)

    @cached_property
    def _runs(self) -> Runs:
        return Runs.of(self.history.trials, self.first_round, BLOCK)

    @cached_property
    def _progress(self) -> OpenRound:
        return self._runs.progress(self._round_after)

    def _race_after(self, n_rounds: int) -> Race:
        known, explored = self._peaks, self._explored
        figures = self._runs.figures.items()
        return Race(
            peaks=known,
            trial_logs={k: math.log(explored[k].samples_per_s) for k in known if k in explored},
            baseline=self.baseline if self.baseline in known else None,
            logs={
                key: over
                for key, series in self._runs.logs.items()
                if key in known and (over := {n: log for n, log in series.items() if n < n_rounds})
            },
            n_rounds=n_rounds,
            confirmed={k for (k, n), run in figures if n < n_rounds and run.start is Start.COLD},
            rules=self.rules,
            named=self._named,
        )

    def _round_after(self, n_rounds: int) -> Round | None:
        race = self._race_after(n_rounds)
        asked = race.next_round() if n_rounds < BLOCK else None
        begun = [runs[0].spec for (_, n), runs in self._runs.trials.items() if n == n_rounds]
        if asked and self.rules is WARM and any(s.measure.start is Start.COLD for s in begun):
            return race.confirmation or asked  # the time was over, and it was begun as a cold one
        return asked

    @cached_property
    def _peaks(self) -> Mapping[str, float]:
        """Members that did not fail, with their largest peak."""
        keys = (member.hash for member in self.members if not self._is_out(member.hash))
        return {k: peak_of(self.figures[k]) if k in self.figures else math.inf for k in keys}

    @cached_property
    def _named(self) -> str | None:
        if self.objective.wish.name == "samples_per_s" or not self.figures:
            return None
        return self.objective.best(self.figures, beside=self._explored)

    @cached_property
    def _explored(self) -> Mapping[str, Standing]:
        return self.objective.figures(self.history.explored)

    def _is_out(self, key: str) -> bool:
        """Whether a run failed or broke the memory limit."""
        return any(
            run.outcome.is_config_fault or not self.objective.fits(run.peak_memory_bytes)
            for run in self._runs.ended_of(key)
        )


def finalists(
    history: History, objective: Objective, drifting: Collection[str] = ()
) -> list[Candidate]:
    """Candidates that could be the best, best first, from their own trials alone.

    The comparison's runs are left out, so that a comparison cut short goes on as it was planned.
    """
    figures = objective.figures(history.explored)
    sound = {key: figure for key, figure in figures.items() if key not in drifting}
    return [sound[key].candidate for key in objective.contenders(sound)[:MAX_FINALISTS]]


def plan(
    session: Session,
    history: History,
    baseline: Candidate | None,
    *,
    left_s: Callable[[Sequence[Trial]], float],
    drifting: Collection[str] = (),
) -> Comparison | None:
    """Plan the comparison, or find the one that was begun; None where it cannot be paid for.

    The finalists run, and the baseline in every round. One that was begun goes on while nobody
    has to run a round that is over: such a run would not be interleaved with the others'. One
    candidate that cannot start warm keeps all others from it: they would be compared otherwise.

    Args:
        session: What is searched.
        history: What was tried.
        baseline: The baseline; None: there is none.
        left_s: Seconds of the budget that would be left without some trials, those of the
            comparison.
        drifting: Hashes of those that failed the convergence guard in an earlier one.
    """
    contenders = finalists(history, session.objective, drifting)
    if not contenders:
        return None
    if session.job.compare == "best":
        contenders = [next((c for c in contenders if c != baseline), contenders[0])]
    others = [candidate for candidate in contenders if candidate != baseline]
    fixed = [] if baseline is None else [baseline]
    fewest = 1 if others and contenders[0] != baseline else 0
    begun = max(0, last_comparison(history.trials))
    for first_round in (begun, begun + BLOCK):
        runs = Runs.of(history.trials, first_round, BLOCK)
        starts_warm = all(map(session.may_start_warm, [*contenders, *fixed]))
        rules = _rules_of(runs) or (WARM if starts_warm else COLD)
        one_s = run_seconds(history, rules, session.job.guard_steps)
        # As many as the time allows a round of, and the best one cold beside the baseline.
        for n_others in range(len(others), fewest - 1, -1):
            members = (*others[:n_others], *fixed)
            hashes = {member.hash for member in members}
            ran = chain.from_iterable(t for (key, _), t in runs.trials.items() if key in hashes)
            wanted = {Start.WARM: len(members), Start.COLD: min(N_CONFIRM, len(members))}
            if members and seconds_of(wanted, one_s) <= left_s([*ran]):
                break
        else:
            return None
        # Who has run in it stays in it, whatever the time that is left now.
        stay = {key for key, _ in runs.trials} - hashes - {*drifting}
        members += tuple(t.candidate for t in history.tried if t.candidate.hash in stay)
        planned = Comparison(
            members=members,
            baseline=None if baseline is None else baseline.hash,
            first_round=first_round,
            rules=rules,
            history=history,
            objective=session.objective,
        )
        if not planned.is_broken:
            return planned
    raise AssertionError("a comparison without runs is open to everyone")


def comparison_of(trial: Trial) -> int:
    """First round of the comparison that a trial belongs to; below 0: it is of none.

    Each comparison has `BLOCK` rounds of its own.
    """
    number = trial.spec.identity.confirm_round
    return -1 if number is None else number // BLOCK * BLOCK


def last_comparison(trials: Iterable[Trial]) -> int:
    """First round of the last comparison of some trials; below 0: there was none."""
    return max(map(comparison_of, trials), default=-1)


def least_steps(tried: CandidateTrials, wanted: int) -> int:
    """Steps that a run of a candidate takes for the guard, warm-up included."""
    step_s = None if tried.measured is None else tried.measured.step_time_s
    return steps_within(wanted, step_s)


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


def run_seconds(history: History, rules: Rules, guard_steps: int = 0) -> Seconds:
    """Seconds that runs of a comparison take, at most as a rule; 0 with nothing to go by.

    One starts cold, which a search's trial need not, and measures for longer where all do. The
    comparison's own runs do not count: what is planned by them would change on resume.
    """
    explored = history.explored
    if explored.typical_s is None:
        return dict.fromkeys(Start, 0.0)
    longer_s = 0.0 if rules is WARM else CONFIRM_MEASURE.budget_s - WARM_MEASURE.budget_s
    longer_s += guard_s(history, guard_steps) or 0.0
    cold_s = explored.typical_s + explored.slower_start_s + longer_s
    return {Start.COLD: cold_s, Start.WARM: explored.typical_s if rules is WARM else cold_s}


def recorded_comparisons(
    history: History, objective: Objective, baseline: str | None = None
) -> list[Comparison]:
    """The comparisons of a record, in their order.

    Args:
        history: The record's trials.
        objective: That of the search.
        baseline: Hash of the baseline; None: there is none.
    """
    found = []
    for first_round in sorted({*map(comparison_of, history.trials)} - {-1}):
        runs = Runs.of(history.trials, first_round, BLOCK)
        hashes = {key for key, _ in runs.trials}
        found.append(
            Comparison(
                members=tuple(t.candidate for t in history.tried if t.candidate.hash in hashes),
                baseline=baseline,
                first_round=first_round,
                rules=_rules_of(runs) or COLD,
                history=history,
                objective=objective,
            )
        )
    return found


def verdict_of(
    comparisons: Iterable[Comparison], drifting: Collection[str] = ()
) -> Comparison | None:
    """The comparison of a record that tells most; None: none says anything.

    A comparison to its end tells more than one that was cut short, and of two such the later one;
    of those that were cut short the one of more rounds. One whose best the guard fails, as it
    fails those `drifting`, was not the end. So a later call that has no time to compare again
    takes nothing away.
    """

    def weight(one: Comparison) -> tuple[bool, bool, int, int]:
        is_over = one.is_over and one.race.best not in drifting
        n_rounds = 0 if is_over else one.race.n_rounds
        return one.baseline in one.race.logs, is_over, n_rounds, one.first_round

    return max((one for one in comparisons if one.has_verdict), key=weight, default=None)


def _rules_of(runs: Runs) -> Rules | None:
    if not runs.trials:
        return None
    first = runs.trials[min(runs.trials, key=lambda at: at[1])][0]
    return WARM if first.spec.measure.start is Start.WARM else COLD
