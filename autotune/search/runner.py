"""Trials: started through the record, watched, and written back to it."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from autotune.base.clock import unix_now_s
from autotune.base.errors import AutotuneError, FleetError
from autotune.base.flags import flag
from autotune.base.text import Say
from autotune.base.units import format_count, format_rate, format_seconds
from autotune.contract import Fidelity, Phase, Role, TrialResult, TrialSpec
from autotune.fleet.base import Fleet, Handle, Place
from autotune.record.study import Study, Trial, lost_result, results
from autotune.search.history import History, busy_s, intervals
from autotune.search.interrupt import CANCEL_WAIT_S, Interrupt
from autotune.search.session import Session
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate, candidate_of

POLL_S = 0.1
"""Time between two looks at the trials; the coordinator shares the processor with CPU ranks."""

MAX_FAULTS_IN_A_ROW = 6
"""Platform faults in a row that end a search: two candidates that failed three times each."""
_NOTE_EVERY_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Running:
    """A trial in flight, as the live view shows it."""

    number: int
    role: Role
    candidate: Candidate
    fidelity: Fidelity | None = None
    """How a reduced trial is reduced; None: it is none."""
    phase: Phase
    elapsed_s: float
    usual_s: float | None = None
    """Seconds that such trials took, their median; None: none has been measured."""


class Runner:
    """Starts and ends trials; what it knows of them is what the record holds."""

    def __init__(self, *, record: Study, fleet: Fleet, interrupt: Interrupt, note: Say) -> None:
        self.record = record
        self.fleet = fleet
        self.interrupt = interrupt
        self.history = History()
        """The trials that were recovered or started."""
        self.left_out: tuple[int, ...] = ()
        """Numbers of the record's trials that ran another job or configuration."""
        self.notes: list[str] = []
        """Notes that were made so far."""
        self._tell = note
        self._noted: set[str] = set()
        self._handles: list[Handle] = []
        self._last_number: int | None = None
        """Number of the trial that was started last; None: none was."""
        self._n_faults_in_a_row = 0
        self._absent: dict[str, str] = {}

    @property
    def n_running(self) -> int:
        return len(self._handles)

    def note(self, text: str) -> None:
        self.notes.append(text)
        self._tell(text)

    def note_once(self, of: str, text: str) -> None:
        """Note it unless something was noted of the same before."""
        if of not in self._noted:
            self._noted.add(of)
            self.note(text)

    def recover(self, why_left_out: Callable[[Trial], str]) -> None:
        """Read the record; trials without a readable result are lost, and say so from now on.

        Those that there is a reason to leave out are left out, and the first reason is noted.

        Raises:
            StudyError: The record cannot be read or written.
        """
        answering, n_lost = [], 0
        left_out: dict[int, str] = {}
        recorded = self.record.read()
        for trial in recorded.trials:
            if trial.result is None:
                result = lost_result(trial)
                self.record.write_result(trial.folder, result)
                trial = Trial(folder=trial.folder, spec=trial.spec, result=result)
                n_lost += 1
            if why := why_left_out(trial):
                left_out[trial.number] = why
            else:
                answering.append(trial)
        self.history, self.left_out = History(answering), tuple(left_out)
        if n_recorded := len(self.history.recorded):
            held = f"the record holds {format_count(n_recorded, 'trial')}"
            self.note(f"{held}, {n_lost} lost: the search goes on from there")
        if left_out:
            number, why = next(iter(left_out.items()))
            self.note(
                f"left out: {format_count(len(left_out), 'trial')} of the record, of another job "
                f"or configuration than this one, such as trial {number}: {why}"
            )
        self._say_given_up()
        for folder in recorded.unreadable:
            self.note(f"{folder.folder.name}: left out, its spec is unreadable: {folder.problem}")

    def used_s(self, without: Sequence[Trial] = ()) -> float:
        """Wall-clock seconds with a trial in flight, earlier sessions included; these left out."""
        now = unix_now_s()
        running = {trial.number: (now - trial.elapsed_s, now) for trial in self.running()}
        counted = [trial for trial in self.history.recorded if trial not in without]
        return busy_s(intervals(counted, running))

    def left_s(self, budget_s: float | None, without: Sequence[Trial] = ()) -> float:
        """Seconds left of a budget, as `used_s` counts them; infinity without one."""
        return math.inf if budget_s is None else budget_s - self.used_s(without)

    def next_number(self) -> int:
        """Number of the trial that is started next.

        Raises:
            StudyError: The record cannot be read.
        """
        return self.record.next_number(self._last_number)

    def start(self, spec: TrialSpec, files: Mapping[str, str]) -> None:
        """Write a trial into the record and start it.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free.
        """
        folder = self.record.write_spec(spec, dict(files))
        self._last_number = spec.identity.number
        self._handles.append(self.fleet.submit(spec, folder))
        self.history = self.history.with_trial(Trial(folder=folder, spec=spec, result=None))

    def run(self, spec: TrialSpec, files: Mapping[str, str], *, name: str = "") -> Trial | None:
        """Run a trial to its end; None if the user ended it, which the record then says.

        Args:
            spec: The trial.
            files: Its configuration files.
            name: Where it is to be said each minute how far it is: of what.

        Raises:
            StudyError: The record cannot be written.
            FleetError: No gang is free, or the platform ends one trial after the other.
        """
        self.start(spec, files)
        note_at_s = _NOTE_EVERY_S
        try:
            while not (ended := self.collect()):
                if self.interrupt.draining:
                    return None
                progress = self._handles[0].progress()
                if name and progress.elapsed_s >= note_at_s:
                    self.note(f"{name}: {progress.phase}, {format_seconds(progress.elapsed_s)}")
                    note_at_s += _NOTE_EVERY_S
                self.interrupt.wait(POLL_S)
            return ended[0]
        finally:  # whatever happened, nothing runs on and the record says how it ended
            self.cancel()

    def run_candidate(self, session: Session, run: Run, about: str) -> Trial | None:
        """Run a candidate and note what came of it, after `about`; see `run` and `spec_of`."""
        files = session.engine_of(run.candidate).files(run.candidate)
        trial = self.run(session.spec_of(run, self.next_number()), files)
        if trial is None or trial.result is None:
            return None
        rate, took = format_rate(trial.result.samples_per_s), format_seconds(trial.result.wall_s)
        self.note(f"{about}: {trial.result.outcome}, {rate} samples/s in {took}")
        return trial

    def collect(self) -> list[Trial]:
        """The trials that have ended since, now with their results in the record.

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
            result = self.record.take_result(handle.folder, handle.spec, result)
            self._handles.remove(handle)
            ended.append(Trial(folder=handle.folder, spec=handle.spec, result=result))
            self.history = self.history.with_trial(ended[-1])
        self._say_quarantined()
        if ended:
            self._say_given_up()
        if errors:
            raise errors[0]
        for result in results(ended):  # only now: it may end the search, and all are written
            self._count_faults(result)
        return ended

    def cancel(self) -> None:
        """End all trials now and record those that confirm it in time.

        Raises:
            StudyError: The record cannot be written.
        """
        for handle in self._handles:
            handle.cancel()
        for _ in range(round(CANCEL_WAIT_S / POLL_S)):
            if not self._handles:
                return
            self.collect()
            if self._handles:
                self.interrupt.wait(POLL_S)
        self._handles.clear()

    def abandon(self) -> None:
        """End all trials after an error, without the record, which may be what failed."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()

    def running(self) -> tuple[Running, ...]:
        """The trials in flight, for the live view."""
        found = []
        for spec, progress in ((h.spec, h.progress()) for h in self._handles):
            identity, kind = (
                spec.identity,
                (spec.identity.role is Role.CONFIRM, spec.measure.start),
            )
            running = Running(
                number=identity.number,
                role=identity.role,
                candidate=candidate_of(spec),
                fidelity=identity.fidelity,
                phase=progress.phase,
                elapsed_s=progress.elapsed_s,
                usual_s=None if identity.fidelity else self.history.usual_s.get(kind),
            )
            found.append(running)
        return tuple(found)

    def _say_quarantined(self) -> None:
        """Say once which devices run no more trials of this search, and which nodes do not now."""
        for slot in self.fleet.quarantined():
            self.note_once(
                f"quarantined {slot}",
                f"{slot} is left out from now on: the platform ended trials of different "
                "candidates there, one after the other, and elsewhere it did not",
            )
        absent = self.fleet.absent()
        for node, problem in absent.items() - self._absent.items():
            self.note(f"the search goes on without {node} until it answers again: {problem}")
        for node in self._absent.keys() - absent.keys():
            self.note(f"{node} is back")
        self._absent = dict(absent)

    def _say_given_up(self) -> None:
        """Say once which candidates are left without a figure although they did nothing wrong."""
        for tried in self.history.tried:
            if why := tried.given_up:
                self.note_once(
                    f"given up {tried.candidate.hash}",
                    f"the candidate of trial {tried.number} is left without a figure: {why}",
                )

    def _count_faults(self, last: TrialResult) -> None:
        is_fault = last.outcome.is_platform_fault
        self._n_faults_in_a_row = self._n_faults_in_a_row + 1 if is_fault else 0
        if self._n_faults_in_a_row < MAX_FAULTS_IN_A_ROW:
            return
        last = results(self.history.recorded)[-1]
        limit_s, more = self.history.recorded[-1].spec.measure.timeout_s, ""
        if last.wall_s >= limit_s:
            longer = f"search with a longer {flag('trial_timeout')}"
            more = f"if trials need more than {format_seconds(limit_s)}, {longer}; "
        folder, n = self.record.trial_folder(last.number), self._n_faults_in_a_row
        raise FleetError.of("search.faults_in_a_row", n=n, last=last, more=more, folder=folder)


@contextmanager
def runner_on(
    place: Place, record: Study, *, world: int, command: Sequence[str], note: Say
) -> Iterator[Runner]:
    """Gangs of a place, for trials of a record that nobody else writes meanwhile.

    What is worth knowing of figures that are measured there is noted first.

    Args:
        place: Where they run.
        record: Where they are kept; it is locked.
        world: Ranks of each trial.
        command: What each node runs before.
        note: Told what happens.

    Raises:
        JobError: The place only answers for trials.
        StudyError: Another process holds the record.
        FleetError: The devices are not there.
    """
    for remark in place.remarks(world):
        note(remark)
    interrupt, fleet = Interrupt(), place.gangs(world)
    try:
        record.lock()
        fleet.reap(record.trials_folder)
        fleet.prepare(command, note)
        with interrupt.on_signals():
            yield Runner(record=record, fleet=fleet, interrupt=interrupt, note=note)
    finally:
        fleet.close()
        record.unlock()
