"""The coordinator: baseline, search, final comparison; one thread, no state but the record."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from itertools import chain

from autotune.base.flags import flag
from autotune.base.plugins import load_plugin
from autotune.base.templates import tell
from autotune.base.units import format_bytes, typed_seconds
from autotune.contract import Role, Start, TrialSpec
from autotune.fleet.base import Fleet
from autotune.record.answer import SearchAnswer
from autotune.record.facts import BaselineFacts, PassedOver
from autotune.record.study import results
from autotune.search import confirm
from autotune.search.answer import RecordStandings, nothing_feasible
from autotune.search.base import Observer, Snapshot, Stage, StopReason
from autotune.search.climb import Rung, UntriedError, climb
from autotune.search.history import CandidateTrials, History
from autotune.search.interrupt import Interrupt
from autotune.search.race import COLD, MIN_ROUNDS, N_CONFIRM, WARM
from autotune.search.reduced import ReducedTrials, too_large
from autotune.search.rounds import seconds_of
from autotune.search.runner import POLL_S, Runner
from autotune.search.sampler import Request, Sampler
from autotune.search.session import Session, save_facts
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
        return next(iter(self.missing), None)


_SNAPSHOT_S = 0.5


def run_search(
    session: Session,
    fleet: Fleet,
    *,
    observer: Observer,
    interrupt: Interrupt,
    steering: Steering | None = None,
) -> SearchAnswer:
    """Search for the best candidate of a lattice, or go on with a search that was cut short.

    The caller holds the study's lock and closes the fleet.

    Args:
        session: The job, what is legal for it, and its record.
        fleet: Runs the trials.
        observer: Is shown what happens.
        interrupt: Asks the search to drain or to end.
        steering: Predicts what trials will measure, for samplers that go by it; None: nothing
            can be predicted.

    Raises:
        NothingFeasibleError: No trial ran within the limits.
        StudyError: The record cannot be read or written; what has ended before is in it.
        FleetError: The fleet cannot hold the job's world, or ends one trial after the other.
    """
    runner = Runner(record=session.study, fleet=fleet, interrupt=interrupt, note=observer.on_note)
    search = _StagedSearch(session, runner, observer, steering)
    try:
        return search.run()
    except BaseException:
        runner.abandon()
        raise


class _StagedSearch:
    """Drives the stages, one after the other, and shows how far they are."""

    def __init__(
        self,
        session: Session,
        runner: Runner,
        observer: Observer,
        steering: Steering | None,
    ) -> None:
        self._session = session
        self._runner = runner
        self._observer = observer
        self._baseline = BaselineStage(session, runner, steering)
        self._proposals = ProposalStage(session, runner, self._baseline, steering)
        self._comparison: ComparisonStage | None = None
        self._no_comparison = ""
        """Why the best was not compared, in words; empty: it was, or its turn has not come."""

    def run(self) -> SearchAnswer:
        session, runner, study = self._session, self._runner, self._session.study
        runner.recover(session.why_left_out)
        save_facts(session, runner.note, left_out=runner.left_out)
        self._drive(self._baseline)
        if runner.interrupt.draining:
            self._baseline.next_run()  # runs nothing: the record may say which it is
        baseline = self._baseline.candidate
        found = BaselineFacts(
            candidate_hash=None if baseline is None else baseline.hash,
            passed_over=tuple(self._baseline.passed_over),
        )
        study.update_state(baseline=asdict(found))
        self._say_if_no_time_to_compare()
        self._drive(self._proposals)
        stop = self._proposals.stop or StopReason.INTERRUPTED
        if not runner.interrupt.draining:
            runner.note(f"search ends: {stop}")
            if self._standings.best() is None:
                raise nothing_feasible(runner.history, session)
            self._compare()
        if runner.interrupt.draining:
            stop = StopReason.INTERRUPTED
        study.update_state(stop_reason=stop, no_comparison=self._no_comparison)
        self._show(Stage.DONE)
        return self._standings.final(
            passed_over=self._baseline.passed_over,
            stop_reason=stop,
            interrupted=runner.interrupt.draining,
        )

    def _compare(self) -> None:
        session, runner = self._session, self._runner
        left_s = partial(runner.left_s, session.job.budget.time_s)
        baseline = self._baseline.candidate
        measured = session.objective.figures(self._runner.history.explored).keys()
        if not session.place.compares:
            self._no_comparison = "the table would only repeat itself"
        elif baseline is not None and measured == {baseline.hash}:
            self._no_comparison = self._why_not_compared(None)
        if self._no_comparison:
            runner.note(f"no final comparison: {self._no_comparison}")
            return
        # The last one may still be under way: its members are those it was planned with.
        earlier = self._standings.comparisons[:-1]
        drifting = {m.hash for one in earlier for m in one.members} & self._standings.failed
        while True:
            planned = confirm.plan(
                session, runner.history, baseline, left_s=left_s, drifting=drifting
            )
            if planned is None:
                if self._comparison is not None:
                    runner.note("no time left to compare those that the guard passes")
                elif self._standings.verdict is not None:
                    runner.note("no time left to compare again: the recorded comparison counts")
                else:
                    self._no_comparison = "no candidate was left for it"
                    if session.job.budget.time_s is not None:
                        self._no_comparison = self._why_not_compared(self._least_s)
                    runner.note(f"no final comparison: {self._no_comparison}")
                return
            self._comparison = ComparisonStage(session, runner, planned)
            if self._comparison.missing:
                self._drive(self._comparison)
            if runner.interrupt.draining:
                return
            planned = self._comparison.planned
            if planned.is_broken:
                continue  # the best has failed, and those that had dropped out are back
            standings = self._standings
            drifted = standings.drifted_best(planned)
            if drifted is None:
                return
            number, guarded = drifted
            runner.note(f"trial {number} was the best, and its losses drift: {guarded.why}")
            drifted_in = [
                {m.hash for m in c.members} & standings.failed for c in standings.comparisons
            ]
            if len([*filter(None, drifted_in)]) >= confirm.MAX_COMPARISONS:
                runner.note(f"{confirm.MAX_COMPARISONS} comparisons drifted: no further one")
                return
            drifting |= {m.hash for m in planned.members} & standings.drifting

    @property
    def _least_s(self) -> float:
        """Seconds of the shortest comparison, at most as a rule."""
        one_s = confirm.run_seconds(self._runner.history, COLD)[Start.COLD]
        return MIN_ROUNDS * N_CONFIRM * one_s

    def _say_if_no_time_to_compare(self) -> None:
        """Say before the search proper that its first trial leaves no time for a comparison."""
        session, runner, after_s = self._session, self._runner, self._runner.history.typical_s
        is_over = runner.interrupt.draining or searched(runner.history)
        if after_s is None or is_over or not session.place.compares:
            return
        left_s = runner.left_s(session.job.budget.time_s) - after_s
        if self._least_s > left_s and not session.may_start_warm(self._baseline.candidate):
            why = self._why_not_compared(self._least_s, after_s=after_s)
            runner.note(f"no time for a final comparison: {why}")

    def _why_not_compared(self, least_s: float | None, *, after_s: float = 0.0) -> str:
        """Why nothing is compared, and what to do where the time was short.

        It takes `least_s`, and begins in `after_s`; None: only the baseline has a figure.
        """
        runner, budget_s = self._runner, self._session.job.budget.time_s
        history, used_s = runner.history, runner.used_s()
        # Another trial and the comparison have room then.
        whole_s = used_s + (history.typical_s or 0.0) + self._proposals.comparison_s
        values = {
            "least_s": least_s,
            "is_ahead": after_s > 0,
            "left_s": max(0.0, runner.left_s(budget_s) - after_s),
            "is_searched": bool(searched(history)),
            "is_out_of_time": budget_s is not None and self._proposals.stop is StopReason.TIME,
            "n_runs": len(results(history.trials)),
            "used_s": used_s,
            "budget_s": budget_s,
            "busy": any(run.disturbed for run in results(history.trials)),
            "enough": typed_seconds(60 * math.ceil(whole_s / 60)),
            "flag": flag,
        }
        return dict(tell("alone", values))["why"]

    def _drive(self, stage: SearchStage) -> None:
        """Start what a stage asks for, as many at a time as it may, until it asks no more."""
        runner, interrupt = self._runner, self._runner.interrupt
        self._show(stage.name)
        shown_at = time.monotonic()
        has_more = True
        while True:
            changed = False
            while has_more and not interrupt.draining and runner.n_running < stage.at_once:
                run = stage.next_run()
                if run is None or interrupt.draining:  # a proposal takes a while
                    has_more = False
                    break
                self._start(run)
                changed = True
            if interrupt.ending:
                runner.cancel()
            elif interrupt.draining and runner.n_running:
                about = "waiting for the running trials to end; Ctrl-C again ends them at once"
                runner.note_once("draining", f"interrupted: {about}")
            if not runner.n_running:
                return
            if changed or time.monotonic() - shown_at >= _SNAPSHOT_S:
                self._show(stage.name)
                shown_at = time.monotonic()
            # What the cost model or a table answers is there at once.
            is_ended = changed and runner.collect()
            if not is_ended:
                interrupt.wait(POLL_S)
                is_ended = runner.collect()
            if is_ended:
                has_more = True  # what has ended may be owed another run
                self._show(stage.name)

    def _start(self, run: Run) -> None:
        """Start a run, and say what it repeats and what of the user's own keys it runs without."""
        session, runner = self._session, self._runner
        spec = session.spec_of(run, runner.next_number())
        if not session.is_users(run.candidate):  # of that it was said before the search
            for key, text in overridden(spec):
                runner.note_once(f"overridden {key}", text)
        runner.start(spec, session.engine_of(run.candidate).files(run.candidate))
        if run.retry_of is None and run.repeat_of is None:
            return
        ran = runner.history if run.reduced_of is None else runner.history.reduced
        tried = ran.of_hash(spec.identity.candidate_hash)
        before = {result.number: result for result in results(tried.trials)}
        if run.retry_of is not None:
            result = before[run.retry_of]
            why = f"which the platform ended: {result.outcome}: {result.evidence}"
        else:
            assert run.repeat_of is not None
            why = f"which was disturbed: {before[run.repeat_of].disturbed}"
        again = run.repeat_of if run.retry_of is None else run.retry_of
        runner.note(f"trial {spec.identity.number} repeats trial {again}, {why}")

    @property
    def _standings(self) -> RecordStandings:
        return RecordStandings(self._session, self._runner.history, self._baseline.candidate)

    def _show(self, stage: Stage) -> None:
        self._observer.on_snapshot(self._snapshot(stage))

    def _snapshot(self, stage: Stage) -> Snapshot:
        standings, history = self._standings, self._runner.history
        used_s = self._runner.used_s()
        return Snapshot(
            stage=stage,
            counts=history.counts,
            trials=history.recorded,
            n_done=n_done(history),
            n_budget=self._proposals.n_budget,
            running=self._runner.running(),
            baseline=standings.start,
            best=standings.best(),
            comparison=self._comparison.planned
            if self._comparison is not None and stage is Stage.CONFIRM
            else None,
            elapsed_s=used_s,
            time_left_s=self._time_left_s(stage, used_s),
            # What was said of a trial is no news once all have ended.
            note=self._runner.notes[-1] if self._runner.notes and stage is not Stage.DONE else "",
        )

    def _time_left_s(self, stage: Stage, used_s: float) -> float | None:
        """Seconds that are left at the typical trial's length; the budget ends it sooner."""
        history, budget_s = self._runner.history, self._session.job.budget.time_s
        typical_s = history.typical_s
        if stage is Stage.DONE:
            return 0.0
        if typical_s is None or self._runner.interrupt.draining:
            return None  # what still runs ends it
        n_search = 0 if stage is Stage.CONFIRM else self._proposals.n_left
        capacity = self._runner.fleet.capacity(self._session.job.world)
        left_s = n_search / capacity * typical_s + self._proposals.comparison_s
        if self._comparison is not None:  # it is a race: as far as one can know
            rules, steps = self._comparison.planned.rules, self._session.job.guard_steps
            one_s = confirm.run_seconds(history, rules, steps)
            left_s = sum(one_s[run.start] for run in self._comparison.missing)
        return left_s if budget_s is None else min(left_s, max(0.0, budget_s - used_s))


def overridden(spec: TrialSpec) -> Iterator[tuple[str, str]]:
    """Keys of the user's own configuration that do not run as written, each with a note."""
    for key, (given, runs) in spec.engine.overridden.items():
        instead = "without it" if runs is None else f"with {runs!r}"
        yield (
            key,
            f"your configuration has {key}={given!r}: trial {spec.identity.number} runs "
            f"{instead}, as its candidate needs",
        )
