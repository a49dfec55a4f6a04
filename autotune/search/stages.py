"""The stages of a search: which run each asks for next, until it asks no more."""

from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from itertools import chain

from autotune.base.plugins import load_plugin
from autotune.base.units import format_bytes
from autotune.contract import Role
from autotune.record.facts import PassedOver
from autotune.search import confirm
from autotune.search.base import Stage, StopReason
from autotune.search.climb import Rung, UntriedError, climb
from autotune.search.history import CandidateTrials, History
from autotune.search.race import COLD, WARM
from autotune.search.reduced import ReducedTrials, too_large
from autotune.search.rounds import seconds_of
from autotune.search.runner import Runner
from autotune.search.sampler import Request, Sampler
from autotune.search.session import Session
from autotune.search.steering import Steering
from autotune.search.stop import expects_no_gain, has_time, n_done, searched, why_no_gain, why_stop
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate


class SearchStage(ABC):
    """A part of a search that runs trials."""

    name: Stage

    def __init__(self, session: Session, runner: Runner, steering: Steering | None = None) -> None:
        self._session = session
        self._runner = runner
        self._steering = steering
        """Predicts what trials will measure; None: nothing can be predicted."""

    @property
    def at_once(self) -> int:
        """How many of its trials may run at a time."""
        return 1

    @abstractmethod
    def next_run(self) -> Run | None:
        """The run to start next; None: none, until a trial has ended."""

    @property
    def _history(self) -> History:
        return self._runner.history

    @property
    def _left_s(self) -> float:
        return self._runner.left_s(self._session.job.budget.time_s)

    def _completed(self, asked: Run) -> Run:
        """The run with what the record says of it: whether it repeats one, when it has lost."""
        session, whole = self._session, self._history
        history = whole if asked.reduced_of is None else whole.reduced
        tried = history.find(asked.candidate)
        losing_step_time_s = None
        if asked.role is Role.SEARCH and asked.reduced_of is None:
            losing_step_time_s = session.objective.losing_step_time_s(
                history.explored, session.job.global_batch
            )
        predicted = None
        if self._steering is not None:
            predicted = self._steering.predict(whole, asked.candidate)
        asked = replace(asked, losing_step_time_s=losing_step_time_s, predicted=predicted)
        return asked.again(() if tried is None else tried.explored, history.to_repeat)


class BaselineStage(SearchStage):
    """Finds the baseline: the user's own configuration, or the ladder's."""

    name = Stage.BASELINE

    def __init__(self, session: Session, runner: Runner, steering: Steering | None) -> None:
        """Read the user's own configuration, if the job names one; raises as `Session.users`."""
        super().__init__(session, runner, steering)
        self.candidate: Candidate | None = None
        """The baseline; None while none has run."""
        self.passed_over: list[PassedOver] = []
        """Candidates that were passed over before it, and why."""
        self.users = None if session.users is None else session.users[1]
        """Candidate of the user's own file; None: there is no such file."""
        self._refusals: dict[str, str] = {}

    def next_run(self) -> Run | None:
        """The next rung of the ladder that the record does not answer for."""
        users = self.users
        self.passed_over.clear()  # with more answers the same way is taken again
        try:
            if users is not None:
                self.candidate = users if self._ask(users) is Rung.RUNS else None
            else:
                self.candidate = self._climb()
        except UntriedError as untried:
            if self._has_time(1):
                return self._completed(Run(candidate=untried.candidate, role=Role.BASELINE))
            self._runner.note(
                "the time budget ends before a baseline is found: no speedup to report"
            )
            return None
        if self.candidate is None:
            self._runner.note(
                "no baseline runs within the limits: there will be no speedup to report"
            )
        return None

    def _climb(self) -> Candidate | None:
        """The baseline of the ladder, by the climb's own trials where there is a forecast.

        A resumed search takes the way that it took: what its proposals taught since does not
        count, nor a proposal that ran although the climb had left it out.
        """
        # What is illegal is told from the ladder, for nothing can be predicted of it.
        whole = [list(rung) for rung in self._session.engine.ladder()]
        ladder = [[c for c in rung if not self._refused_by(c)] for rung in whole]
        for candidate in (c for rung in whole for c in rung):
            if why := self._refused_by(candidate):
                self._pass_over(candidate, why)
        explored = self._history.explored
        climbed = History(
            (t for t in explored.trials if t.role is Role.BASELINE),
            to_repeat=explored.to_repeat,
        )
        steering = self._steering
        found, left_out = climb(
            ladder,
            lambda candidate: self._known(candidate) if climbed.find(candidate) else None,
            self._ask,
            partial(steering.risk, climbed) if steering and steering.knows_memory else None,
        )
        for candidate in left_out:
            assert steering is not None, "only a forecast leaves any out"
            why = steering.describe_overrun(climbed, candidate)
            self._pass_over(candidate, f"not tried: {why}", is_predicted=True)
        wanted = [c.hash for rung in whole for c in reversed(rung)]
        if found is not None:
            wanted = wanted[: wanted.index(found.hash)]
        passed = {p.candidate_hash: p for p in self.passed_over}
        self.passed_over = [passed[key] for key in wanted if key in passed]
        return found

    def _ask(self, candidate: Candidate) -> Rung:
        """What the record and the rules say of a candidate.

        Raises:
            UntriedError: It is legal, and the record says nothing.
        """
        if (known := self._known(candidate)) is not None:
            return known
        if why := self._refused_by(candidate):
            self._pass_over(candidate, why)
            return Rung.FAILS
        raise UntriedError(candidate)

    def _refused_by(self, candidate: Candidate) -> str:
        """What the rules say of a candidate; empty: it is legal."""
        if (known := self._refusals.get(candidate.hash)) is not None:
            return known
        session, why = self._session, ""
        if violations := session.engine_of(candidate).judge(candidate):
            why = violations[0].message
            if file := session.job.baseline:
                self._runner.note(f"{file}: {why}; {violations[0].fix}")
        self._refusals[candidate.hash] = why
        return why

    def _known(self, candidate: Candidate) -> Rung | None:
        """What the record says of a candidate; None: nothing that is final."""
        tried = self._history.explored.find(candidate)
        # A disturbed trial is repeated where that leaves time for a candidate beside it.
        if tried is None or not (tried.is_settled or (tried.measured and not self._has_time(2))):
            return None
        if self._session.objective.figure(tried) is not None:
            return Rung.RUNS
        self._pass_over(candidate, _why_not(tried), tried)
        fails = tried.given_up or (tried.fault is not None and not tried.is_out_of_memory)
        return Rung.FAILS if fails else Rung.TOO_LARGE

    def _pass_over(
        self,
        candidate: Candidate,
        why: str,
        tried: CandidateTrials | None = None,
        *,
        is_predicted: bool = False,
    ) -> None:
        passed = PassedOver(
            candidate=dict(candidate.values),
            candidate_hash=candidate.hash,
            trial=None if tried is None else tried.trials[-1].number,
            why=why,
            by_platform=tried is not None and bool(tried.given_up),
            is_predicted=is_predicted,
        )
        self.passed_over.append(passed)
        if passed.by_platform:
            self._runner.note_once(
                f"passed over {candidate.hash}",
                f"the baseline was to be that of trial {passed.trial}, and cannot be: {why}. "
                "Another one is a substitute, and the answer says so",
            )

    def _has_time(self, n_trials: int) -> bool:
        return self._left_s >= n_trials * (self._history.typical_s or 0.0)


def _why_not(tried: CandidateTrials) -> str:
    """Why a candidate whose trials are over cannot be the baseline."""
    if why := tried.given_up:
        return why
    if tried.fault is not None:
        return f"{tried.fault.outcome}: {tried.fault.evidence}"
    return f"peak memory {format_bytes(tried.peak_memory_bytes)} is above the limit"


class ProposalStage(SearchStage):
    """The search proper: reduced trials first, then what the sampler proposes."""

    name = Stage.SEARCH

    def __init__(
        self,
        session: Session,
        runner: Runner,
        baseline: BaselineStage,
        steering: Steering | None,
    ) -> None:
        super().__init__(session, runner, steering)
        self._baseline = baseline
        self._sampler: Sampler = load_plugin("sampler", session.job.sampler)
        self._reduced = ReducedTrials.of(session, runner, steering)
        self._is_reducing = self._reduced is not None
        self.stop: StopReason | None = None
        """Why no further trial is proposed; None while one may be."""

    @property
    def at_once(self) -> int:
        """As many trials as the fleet holds; smaller gangs while reduced trials come."""
        if self._is_reducing and self._reduced is not None:
            return self._runner.fleet.capacity(self._reduced.world)
        return self._runner.fleet.capacity(self._session.job.world)

    @property
    def n_budget(self) -> int:
        """Trials that it may run."""
        n_forms = 0 if self._reduced is None else len(self._reduced.forms)
        return min(
            self._session.job.budget.trials, len(self._session.lattice.candidates) + n_forms
        )

    @property
    def comparison_s(self) -> float:
        """Seconds that a usual final comparison takes; 0: there is none."""
        if not self._session.place.compares:
            return 0.0
        rules = WARM if self._session.may_start_warm(self._baseline.candidate) else COLD
        one_s = confirm.run_seconds(self._history, rules, self._session.job.guard_steps)
        return seconds_of(rules.usual_runs, one_s)

    @property
    def n_left(self) -> int:
        """Trials of these that have not ended."""
        return max(0, self.n_budget - n_done(self._history))

    def next_run(self) -> Run | None:
        """A run that is owed, or the next proposal; None: there is none, and `stop` says why."""
        session, history = self._session, self._history
        budget = session.job.budget
        used_s = kept_s = 0.0
        if budget.time_s is not None:  # else nothing asks for it, and it goes through the record
            used_s = self._runner.used_s()
            kept_s = self.comparison_s
        owes = [tried for tried in history.tried if tried.is_owed and tried.is_searched]
        for owed in owes:
            # The first trial of another candidate is worth more than a repeat.
            n_trials = 2 if owed.measured and self.n_left > len(owes) else 1
            # Rules may have changed since: an upgraded engine, another override.
            if has_time(
                history, budget, used_s=used_s, kept_s=kept_s, n_trials=n_trials
            ) and not session.engine_of(owed.candidate).judge(owed.candidate):
                return self._completed(Run(candidate=owed.candidate, role=Role.SEARCH))
        self.stop = why_stop(history, session.objective, budget, used_s=used_s, kept_s=kept_s)
        if self.stop is not None:
            return None
        reduced = None if self._reduced is None else self._reduced.next(history, used_s=used_s)
        self._is_reducing = reduced is not None
        candidate, full = reduced or (self._propose(), None)
        if candidate is None:
            self.stop = StopReason.EXHAUSTED
        elif not self._pays():
            self.stop = StopReason.GAIN
        elif reduced is None and self._expects_no_gain():
            self.stop = StopReason.SETTLED
        if candidate is None or self.stop is not None:
            return None
        return self._completed(Run(candidate=candidate, role=Role.SEARCH, reduced_of=full))

    def _propose(self) -> Candidate | None:
        """The candidate to try next; None when all were."""
        session, closed = self._session, self._closed(self._history)
        if self._baseline.users is not None and not searched(self._history):
            # The search starts from what the user runs today: mostly one knob away.
            return session.lattice.nearest(self._baseline.users.values, closed)
        return self._sampler.propose(
            Request(
                lattice=session.lattice,
                history=self._history,
                objective=session.objective,
                closed=closed,
                n_budget=self.n_budget,
                seed=session.job.seed,
                steering=self._steering,
            )
        )

    def _pays(self) -> bool:
        """Whether another trial is expected to save more of the training than it costs."""
        session, history = self._session, self._history
        if self._steering is None or session.job.budget.gpu_hours is None:
            return True
        gain = self._steering.expected_gain(history, self._closed(self._history))
        why = why_no_gain(gain, history, session, baseline=self._baseline.candidate)
        if why:
            self._runner.note(why)
        return not why

    def _expects_no_gain(self) -> bool:
        """Whether no trial is expected to gain anything, where nobody asked for more of them."""
        steering, ends_early = self._steering, self._session.job.budget.ends_early
        if not ends_early or not self._sampler.goes_by_forecast:
            return False
        if steering is None or not steering.steers:
            return False
        firsts = [t.number for t in searched(self._history)]
        earlier = (self._history.before(number) for number in reversed(firsts))
        return expects_no_gain(
            steering.expected_gain(history, self._closed(history))
            for history in chain([self._history], earlier)
        )

    def _closed(self, history: History) -> set[str]:
        """Hashes of the candidates that need no further trial."""
        settled = (t.candidate.hash for t in history.tried if t.measured or not t.is_owed)
        # The processes of some would not fit into the host's memory.
        not_startable = () if self._steering is None else self._steering.above_host
        return {*settled, *too_large(history), *not_startable}


class ComparisonStage(SearchStage):
    """The final comparison: the best ones and the baseline again, in turns, as a race."""

    name = Stage.CONFIRM

    def __init__(
        self,
        session: Session,
        runner: Runner,
        planned: confirm.Comparison,
    ) -> None:
        super().__init__(session, runner)
        self._planned = planned

    @property
    def planned(self) -> confirm.Comparison:
        """The comparison as far as the record has got; views ask for it twice a second."""
        if self._planned.history is not self._history:
            self._planned = replace(self._planned, history=self._history)
        return self._planned

    @property
    def missing(self) -> list[Run]:
        """The runs of this round that are still to come; none: the race is over."""
        job = self._session.job
        return self.planned.missing(
            seed=job.seed, left_s=self._left_s, guard_steps=job.guard_steps
        )

    def next_run(self) -> Run | None:
        """The next run of this round, or the first of the next one."""
        return next(iter(self.missing), None)
