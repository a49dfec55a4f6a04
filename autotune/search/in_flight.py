"""The trials in flight: started through the record, watched, and written back to it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autotune.base.clock import unix_now_s
from autotune.base.errors import AutotuneError, FleetError
from autotune.base.units import format_count, format_seconds
from autotune.contract import Origin, Outcome, TrialSpec
from autotune.fleet.base import Fleet, Handle
from autotune.planning.lattice import Lattice
from autotune.record.study import Trial, lost_result
from autotune.search.base import Observer, Running
from autotune.search.confirm import run_seconds
from autotune.search.history import History, busy_s, intervals, results
from autotune.search.interrupt import CANCEL_WAIT_S, Interrupt
from autotune.search.objective import Objective
from autotune.search.race import COLD, WARM
from autotune.search.recorded import Task
from autotune.search.steering import Steering
from autotune.search.trial_spec import Run, make_spec, may_start_warm
from autotune.space.candidate import Candidate

POLL_S = 0.1
"""Time between two looks at the trials; the coordinator shares the processor with CPU ranks."""

MAX_FAULTS_IN_A_ROW = 6
"""Platform faults in a row that end a search: two candidates that failed three times each."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchContext(Task):
    """A job with everything that its search needs."""

    fleet: Fleet
    """Fleet on which trials run."""
    lattice: Lattice
    """The legal candidates."""
    observer: Observer
    """Observer that is shown what happens."""
    interrupt: Interrupt
    """Asks the search to drain or to end."""
    steering: Steering | None = None
    """Predicts what trials will measure, for samplers that go by it; None: nothing can be
    predicted."""
    no_comparison: str = ""
    """Why the best does not run again beside the baseline, in words; empty: it does."""
    origin: Origin = Origin.MEASURED
    """Origin of the figures."""
    notes: list[str] = field(default_factory=list)
    """Notes that were made so far."""
    _noted: set[str] = field(default_factory=set)

    @cached_property
    def objective(self) -> Objective:
        """Objective of the job, within the memory of the devices."""
        return Objective.of(self.job, self.environment)

    def note(self, text: str) -> None:
        """Keep a note, and hand it to the observer."""
        self.notes.append(text)
        self.observer.on_note(text)

    def note_once(self, of: str, text: str) -> None:
        """Note it unless something was noted of the same before."""
        if of not in self._noted:
            self._noted.add(of)
            self.note(text)

    def may_start_warm(self, candidate: Candidate | None) -> bool:
        """Whether a trial of a candidate may start warm; None is none."""
        if candidate is None:
            return False
        return may_start_warm(self.job, self.engine_of(candidate), candidate, self.environment)

    def comparison_s(self, history: History, baseline: Candidate | None) -> float:
        """Seconds that a usual final comparison takes; 0: there is none."""
        if self.no_comparison:
            return 0.0
        rules = WARM if self.may_start_warm(baseline) else COLD
        one_s = run_seconds(history, rules, self.job.guard_steps)
        return one_s.of(rules.usual_runs)

    @property
    def capacity(self) -> int:
        """How many trials can run at once; the fleet may leave out slots meanwhile."""
        return self.fleet.capacity(self.job.world)


class TrialsInFlight:
    """Starts and ends trials; what it knows of them is what the record holds."""

    def __init__(self, context: SearchContext) -> None:
        self.history = History()
        self.left_out: tuple[int, ...] = ()
        """Numbers of the record's trials that ran another job or configuration."""
        self._context = context
        self._study = context.study
        self._note = context.note
        self._handles: list[Handle] = []
        self._candidates: dict[int, Candidate] = {}
        """By the number of a trial in flight."""
        self._last_number: int | None = None
        """Number of the trial that was started last; None: none was."""
        self._n_faults_in_a_row = 0
        self._absent: dict[str, str] = {}

    @property
    def n_running(self) -> int:
        """Trials in flight."""
        return len(self._handles)

    def recover(self) -> None:
        """Read the record; trials without a readable result are lost, and say so from now on.

        Raises:
            StudyError: The record cannot be read or written.
        """
        answering, left_out, n_lost = [], [], 0
        recorded = self._study.read()
        for trial in recorded.trials:
            if trial.result is None:
                result = lost_result(trial)
                self._study.write_result(trial.folder, result)
                trial = Trial(folder=trial.folder, spec=trial.spec, result=result)
                n_lost += 1
            if self._context.is_answered_by(trial):
                answering.append(trial)
            else:
                left_out.append(trial.spec.identity.number)
        self.history, self.left_out = History(answering), tuple(left_out)
        if n_recorded := len(self.history.recorded):
            held = f"the record holds {format_count(n_recorded, 'trial')}"
            self._note(f"{held}, {n_lost} lost: the search goes on from there")
        if left_out:
            self._note(
                f"{len(left_out)} trials of the record ran another job or configuration than this "
                "one and are left out"
            )
        self._say_given_up()
        for folder in recorded.unreadable:
            self._note(f"{folder.folder.name}: left out, its spec is unreadable: {folder.problem}")

    def used_s(self, without: Sequence[Trial] = ()) -> float:
        """Wall-clock seconds with a trial in flight, earlier sessions included; these left out."""
        now = unix_now_s()
        running = {trial.number: (now - trial.elapsed_s, now) for trial in self.running()}
        counted = [trial for trial in self.history.recorded if trial not in without]
        return busy_s(intervals(counted, running))

    def left_s(self, without: Sequence[Trial] = ()) -> float:
        """Seconds left of the budget, as `used_s` counts them; infinity without a budget."""
        budget_s = self._context.job.budget.time_s
        return math.inf if budget_s is None else budget_s - self.used_s(without)

    def start(self, run: Run) -> None:
        """Write a trial into the record and start it.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free.
        """
        engine = self._context.engine_of(run.candidate)
        spec = make_spec(
            run,
            study=self._study.name,
            number=self._study.next_number(self._last_number),
            job=self._context.job,
            engine=engine,
            environment=self._context.environment,
        )
        if not self._context.is_users(run.candidate):  # of that it was said before the search
            self._say_overridden(spec)
        folder = self._study.write_spec(spec, engine.files(run.candidate))
        self._last_number = spec.identity.number
        self._handles.append(self._context.fleet.submit(spec, folder))
        self._candidates[spec.identity.number] = run.candidate
        self.history = self.history.with_trial(Trial(folder=folder, spec=spec, result=None))
        if run.retry_of is None and run.repeat_of is None:
            return
        ran = self.history if run.reduced_of is None else self.history.reduced
        tried = ran.of_hash(spec.identity.candidate_hash)
        before = {result.number: result for result in results(tried.trials)}
        if run.retry_of is not None:
            result = before[run.retry_of]
            why = f"which the platform ended: {result.outcome}: {result.evidence}"
        else:
            assert run.repeat_of is not None
            why = f"which was disturbed: {before[run.repeat_of].disturbed}"
        again = run.repeat_of if run.retry_of is None else run.retry_of
        self._note(f"trial {spec.identity.number} repeats trial {again}, {why}")

    def collect(self) -> bool:
        """Write the results of the trials that have ended; says whether there were any.

        Raises:
            StudyError: The record cannot be written.
            FleetError: The platform ends one trial after the other.
        """
        ended, errors = [], []
        for handle in list(self._handles):
            try:
                result = handle.poll()
            except AutotuneError as error:  # only later: others may have ended meanwhile
                errors.append(error)
                continue
            if result is None:
                continue
            result = self._study.take_result(handle.folder, handle.spec, result)
            ended.append(result)
            self._handles.remove(handle)
            del self._candidates[handle.spec.identity.number]
            trial = Trial(folder=handle.folder, spec=handle.spec, result=result)
            self.history = self.history.with_trial(trial)
        self._say_quarantined()
        if ended:
            self._say_given_up()
        if errors:
            raise errors[0]
        for result in ended:  # only now: it may end the search, and all results are written
            self._count_faults(result.outcome)
        return bool(ended)

    def cancel(self) -> None:
        """End all trials now and record those that confirm it in time.

        Raises:
            StudyError: The record cannot be written.
        """
        for handle in self._handles:
            handle.cancel()
        for _ in range(round(CANCEL_WAIT_S / POLL_S)):
            self.collect()
            if not self._handles:
                return
            self._context.interrupt.wait(POLL_S)
        self._handles.clear()

    def abandon(self) -> None:
        """End all trials after an error, without the record, which may be what failed."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()

    def running(self) -> tuple[Running, ...]:
        """The trials in flight, for the live view."""
        return tuple(
            Running(
                number=spec.identity.number,
                role=spec.identity.role,
                candidate=self._candidates[spec.identity.number],
                fidelity=spec.identity.fidelity,
                phase=progress.phase,
                elapsed_s=progress.elapsed_s,
            )
            for spec, progress in ((h.spec, h.progress()) for h in self._handles)
        )

    def _say_overridden(self, spec: TrialSpec) -> None:
        """Say once which keys of the user's own configuration do not run as written."""
        for key, (given, runs) in spec.engine.overridden.items():
            instead = "without it" if runs is None else f"with {runs!r}"
            text = (
                f"your configuration has {key}={given!r}: trial {spec.identity.number} runs "
                f"{instead}, as its candidate needs"
            )
            self._context.note_once(f"overridden {key}", text)

    def _say_quarantined(self) -> None:
        """Say once which devices run no more trials of this search, and which nodes do not now."""
        for slot in self._context.fleet.quarantined():
            self._context.note_once(
                f"quarantined {slot}",
                f"{slot} is left out from now on: the platform ended trials of different "
                "candidates there, one after the other, and elsewhere it did not",
            )
        absent = self._context.fleet.absent()
        for node, problem in absent.items() - self._absent.items():
            self._note(f"the search goes on without {node} until it answers again: {problem}")
        for node in self._absent.keys() - absent.keys():
            self._note(f"{node} is back")
        self._absent = dict(absent)

    def _say_given_up(self) -> None:
        """Say once which candidates are left without a figure although they did nothing wrong."""
        for tried in self.history.tried:
            if why := tried.given_up:
                identity = tried.trials[0].spec.identity
                self._context.note_once(
                    f"given up {identity.candidate_hash}",
                    f"the candidate of trial {identity.number} is left without a figure: {why}",
                )

    def _count_faults(self, outcome: Outcome) -> None:
        self._n_faults_in_a_row = self._n_faults_in_a_row + 1 if outcome.is_platform_fault else 0
        if self._n_faults_in_a_row < MAX_FAULTS_IN_A_ROW:
            return
        last = results(self.history.recorded)[-1]
        limit_s, more = self._context.job.trial_timeout_s, ""
        if last.wall_s >= limit_s:
            more = f"if trials need more than {format_seconds(limit_s)}, raise --trial-timeout; "
        raise FleetError(
            f"the last {self._n_faults_in_a_row} trials in a row were ended by the platform, the "
            f"last ({last.number}) by {last.outcome}: {last.evidence}",
            f"{more}see {self._study.trial_folder(last.number)} and `autotune doctor`, then run "
            "the same command again: it resumes",
        )
