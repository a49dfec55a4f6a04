"""The coordinator: baseline, search, final comparison; one thread, no state but the record."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.base.plugins import load_plugin
from autotune.contract import Role
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.fleet.base import Fleet
from autotune.job.job import Job
from autotune.planning.lattice import Lattice
from autotune.record.study import Study, Trial
from autotune.search import confirm
from autotune.search.answer import Answer
from autotune.search.base import (
    Observer,
    SearchResult,
    Snapshot,
    Stage,
    StopReason,
)
from autotune.search.baseline import find_baseline
from autotune.search.feasibility import nothing_feasible
from autotune.search.history import busy_s, intervals, owed_repeat, results
from autotune.search.in_flight import POLL_S, Crew
from autotune.search.interrupt import Interrupt
from autotune.search.objective import Objective
from autotune.search.reduced import ReducedTrials, too_large
from autotune.search.sampler import Request, Sampler
from autotune.search.steering import Steering
from autotune.search.stop import has_time, n_done, searched, why_stop
from autotune.search.study_facts import save_facts
from autotune.search.trial_spec import Run
from autotune.search.trial_worth import weigh_trial
from autotune.space.candidate import Candidate
from autotune.space.rule import Violation

_SNAPSHOT_S = 0.5


def run_search(
    job: Job,
    *,
    study: Study,
    fleet: Fleet,
    engine: Engine,
    environment: Environment,
    lattice: Lattice,
    observer: Observer,
    interrupt: Interrupt,
    steering: Steering | None = None,
    compares: bool = True,
) -> SearchResult:
    """Search for the best candidate of a lattice, or go on with a search that was cut short.

    The caller holds the study's lock and closes the fleet.

    Args:
        job: What to tune.
        study: The record; the only state there is.
        fleet: Where trials run.
        engine: What a candidate means.
        environment: The devices and versions at hand.
        lattice: The legal candidates.
        observer: Is shown what happens.
        interrupt: Asks the search to drain or to end.
        steering: Predicts what trials will measure, for samplers that go by it; None: nothing
            can be predicted.
        compares: Whether the best runs again beside the baseline; a table of runs would only
            repeat itself.

    Raises:
        NothingFeasibleError: No trial ran within the limits.
        StudyError: The record cannot be read or written; what has ended before is in it.
        FleetError: The fleet cannot hold the job's world, or ends one trial after the other.
    """
    search = _Search(
        job,
        study=study,
        fleet=fleet,
        engine=engine,
        environment=environment,
        lattice=lattice,
        observer=observer,
        interrupt=interrupt,
        steering=steering,
        compares=compares,
    )
    try:
        return search.run()
    except BaseException:
        search.crew.abandon()
        raise


class _UntriedError(Exception):
    """The baseline's ladder asks for a candidate that the record does not answer for."""

    def __init__(self, candidate: Candidate) -> None:
        super().__init__(str(candidate))
        self.candidate = candidate


class _Search:
    def __init__(
        self,
        job: Job,
        *,
        study: Study,
        fleet: Fleet,
        engine: Engine,
        environment: Environment,
        lattice: Lattice,
        observer: Observer,
        interrupt: Interrupt,
        steering: Steering | None,
        compares: bool,
    ) -> None:
        self._job = job
        self._compares = compares
        self._steering = steering
        self._study = study
        self._engine = engine
        self._environment = environment
        self._lattice = lattice
        self._observer = observer
        self._interrupt = interrupt
        self._objective = Objective.of(job, environment)
        self._sampler: Sampler = load_plugin("sampler", job.sampler)
        self._fleet = fleet
        self._stage = Stage.BASELINE
        self._stop: StopReason | None = None
        self._users_baseline: Candidate | None = None
        self._baseline: Candidate | None = None
        self._comparison: confirm.Comparison | None = None
        self._last_note = ""
        self._reduced = ReducedTrials.of(
            job,
            lattice=lattice,
            engine=engine,
            steering=steering,
            objective=self._objective,
            note=self._note,
        )
        n_forms = 0 if self._reduced is None else self._reduced.n_forms
        self._n_budget = min(job.budget.trials, len(lattice.candidates) + n_forms)
        self.crew = Crew(
            job,
            study=study,
            fleet=fleet,
            engine=engine,
            environment=environment,
            interrupt=interrupt,
            note=self._note,
        )

    def run(self) -> SearchResult:
        """Go through the stages."""
        if self._job.baseline is not None:
            self._users_baseline = self._users_own(self._job.baseline)
        self.crew.recover()
        save_facts(
            self._study, self._job, self._environment, left_out=self.crew.left_out, note=self._note
        )
        self._drive(Stage.BASELINE, self._next_baseline, at_once=lambda: 1)
        self._drive(Stage.SEARCH, self._next_search, at_once=self._capacity)
        if not self._interrupt.draining:
            self._note(f"search ends: {self._stop}")
            if self._answer().best() is None:
                raise nothing_feasible(self.crew.history, self._objective)
            self._compare()
        if self._interrupt.draining:
            self._stop = StopReason.INTERRUPTED
        self._study.write_state({**self._study.read_state(), "stop_reason": self._stop})
        self._show(Stage.DONE)
        return self._result()

    def _compare(self) -> None:
        if not self._compares:
            self._note("no final comparison: what answers would only repeat itself")
            return
        self._comparison = confirm.plan(
            self.crew.history, self._objective, self._baseline, left_s=self._left_s
        )
        if self._comparison is None:
            self._note("no time left for the final comparison: figures are those of single trials")
        elif self._next_confirm() is not None:
            self._drive(Stage.CONFIRM, self._next_confirm, at_once=lambda: 1)

    def _capacity(self) -> int:
        """How many trials can run at once; the fleet may leave out slots meanwhile."""
        return self._fleet.capacity(self._job.world)

    def _drive(
        self, stage: Stage, next_run: Callable[[], Run | None], *, at_once: Callable[[], int]
    ) -> None:
        """Start what `next_run` asks for, `at_once` trials at a time, until it asks no more."""
        self._show(stage)
        shown_at = time.monotonic()
        has_more = True
        while True:
            changed = False
            while has_more and not self._interrupt.draining and self.crew.n_running < at_once():
                run = next_run()
                if run is None:
                    has_more = False
                    break
                self.crew.start(run)
                changed = True
            if self._interrupt.ending:
                self.crew.cancel()
            if not self.crew.n_running:
                return
            if changed or time.monotonic() - shown_at >= _SNAPSHOT_S:
                self._show(stage)
                shown_at = time.monotonic()
            self._interrupt.wait(POLL_S)
            if self.crew.collect():
                has_more = True  # what has ended may be owed another run
                self._show(stage)

    def _next_baseline(self) -> Run | None:
        theirs = self._users_baseline
        try:
            if theirs is None:
                self._baseline = find_baseline(self._job, self._lattice.context, self._runs)
            else:
                self._baseline = theirs if self._runs(theirs) else None
        except _UntriedError as untried:
            if self._has_time_for_baseline():
                return self._run_of(untried.candidate, Role.BASELINE)
            self._note("the time budget ends before a baseline is found: no speedup to report")
            return None
        if self._baseline is None:
            self._note("no baseline runs within the limits: there will be no speedup to report")
        return None

    def _users_own(self, path: Path) -> Candidate:
        """The candidate that the user's own ds_config.json describes."""
        engine, candidate = self._engine.baseline(path)
        self.crew.render_with(candidate, engine)
        return candidate

    def _runs(self, candidate: Candidate) -> bool:
        """Whether the candidate is legal and ran within the limits."""
        tried = self.crew.history.explored.find(candidate)
        # A disturbed one that the time cannot repeat answers as it is.
        if tried is not None and (
            tried.is_settled or (tried.measured and not self._has_time_for_baseline())
        ):
            return self._objective.figure(tried) is not None
        if violations := self._violations(candidate):
            if self._job.baseline is not None:
                self._note(f"{self._job.baseline}: {violations[0].message}; {violations[0].fix}")
            return False
        raise _UntriedError(candidate)

    def _has_time_for_baseline(self) -> bool:
        return self._left_s(()) >= (self.crew.history.typical_s or 0.0)

    def _violations(self, candidate: Candidate) -> Sequence[Violation]:
        return self._lattice.violations(candidate, self.crew.engine_of(candidate))

    def _next_search(self) -> Run | None:
        history, budget = self.crew.history, self._job.budget
        used_s = self._used_s(history.recorded)
        kept_s = 2 * confirm.ROUNDS * confirm.run_s(history)
        if has_time(history, budget, used_s=used_s, kept_s=kept_s):
            for tried in history.tried:
                # Rules may have changed since: an upgraded engine, another override.
                if tried.is_owed and tried.is_searched and not self._violations(tried.candidate):
                    return self._run_of(tried.candidate, Role.SEARCH)
        self._stop = why_stop(history, self._objective, budget, used_s=used_s, kept_s=kept_s)
        if self._stop is not None:
            return None
        full = None if self._reduced is None else self._reduced.next(history, used_s=used_s)
        candidate = full or self._propose()
        if candidate is None or not self._pays():
            self._stop = StopReason.EXHAUSTED if candidate is None else StopReason.GAIN
            return None
        if self._reduced is not None and full is not None:
            return self._run_of(self._reduced.form_of(full), Role.SEARCH, reduced_of=full)
        return self._run_of(candidate, Role.SEARCH)

    def _propose(self) -> Candidate | None:
        """The candidate to try next; None when all were."""
        job, history, lattice = self._job, self.crew.history, self._lattice
        closed = self._closed()
        if self._users_baseline is not None and not searched(history):
            # What they run today is where the search starts from: one knob away, mostly.
            return lattice.nearest(self._users_baseline.values, closed)
        return self._sampler.propose(
            Request(
                lattice=lattice,
                history=history,
                objective=self._objective,
                closed=closed,
                n_budget=self._n_budget,
                seed=job.seed,
                steering=self._steering,
            )
        )

    def _pays(self) -> bool:
        """Whether another trial is expected to save more of the training than it costs."""
        if self._steering is None or self._job.budget.gpu_hours is None:
            return True
        history = self.crew.history
        worth = weigh_trial(
            self._steering.expected_gain(history, self._objective, self._closed()),
            history,
            self._objective,
            self._job,
            baseline=self._baseline,
        )
        if not worth.pays:
            self._note(str(worth))
        return worth.pays

    def _closed(self) -> set[str]:
        """Hashes of the candidates that need no further trial."""
        history = self.crew.history
        tried = {t.candidate.hash for t in history.tried if not t.is_owed}
        return tried | too_large(history).keys()

    def _next_confirm(self) -> Run | None:
        if self._comparison is None:
            return None
        chosen = confirm.next_run(
            self._comparison, self.crew.history, seed=self._job.seed, left_s=self._left_s(())
        )
        if chosen is None:
            return None
        return self._run_of(chosen[0], Role.CONFIRM, confirm_round=chosen[1])

    def _run_of(
        self,
        candidate: Candidate,
        role: Role,
        confirm_round: int | None = None,
        reduced_of: Candidate | None = None,
    ) -> Run:
        """A run that knows whether it repeats one that the platform ended or disturbed."""
        history = self.crew.history if reduced_of is None else self.crew.history.reduced
        tried = history.find(candidate)
        before = [
            trial
            for trial in (tried.trials if tried is not None else ())
            if trial.spec.identity.confirm_round == confirm_round
        ]
        failed = [r.number for r in results(before) if r.outcome.is_platform_fault]
        repeat_of = owed_repeat(before, history.to_repeat)
        if repeat_of is not None:
            failed = [number for number in failed if number > repeat_of]
        losing_step_time_s = None
        if role is Role.SEARCH and reduced_of is None:
            losing_step_time_s = self._objective.losing_step_time_s(
                history.explored, self._job.global_batch
            )
        predicted = None
        if self._steering is not None and role in (Role.BASELINE, Role.SEARCH):
            predicted = self._steering.predict(self.crew.history, self._objective, candidate)
        return Run(
            candidate=candidate,
            role=role,
            confirm_round=confirm_round,
            retry_of=failed[-1] if failed else None,
            repeat_of=repeat_of,
            losing_step_time_s=losing_step_time_s,
            predicted=predicted,
            reduced_of=reduced_of,
        )

    def _used_s(self, trials: Sequence[Trial]) -> float:
        """Wall-clock seconds with at least one trial in flight, earlier sessions included."""
        now = time.time()
        running = [(now - shown.elapsed_s, now) for shown in self.crew.running()]
        return busy_s([*intervals(trials), *running])

    def _left_s(self, without: Sequence[Trial]) -> float:
        """Seconds left of the budget, had these trials not been run."""
        if self._job.budget.time_s is None:
            return float("inf")
        numbers = {trial.spec.identity.number for trial in without}
        others = [t for t in self.crew.history.recorded if t.spec.identity.number not in numbers]
        return self._job.budget.time_s - self._used_s(others)

    def _answer(self) -> Answer:
        return Answer(self._study, self.crew.history, self._objective)

    def _result(self) -> SearchResult:
        return self._answer().final(
            baseline=self._baseline,
            comparison=self._comparison,
            stop_reason=self._stop or StopReason.INTERRUPTED,
            interrupted=self._interrupt.draining,
        )

    def _note(self, note: str) -> None:
        self._last_note = note
        self._observer.on_note(note)

    def _show(self, stage: Stage) -> None:
        answer = self._answer()
        history = self.crew.history
        used_s = self._used_s(history.recorded)
        self._observer.on_snapshot(
            Snapshot(
                stage=stage,
                counts=history.counts,
                ended=tuple(results(history.recorded)),
                n_done=n_done(history),
                n_budget=self._n_budget,
                running=self.crew.running(),
                baseline=answer.baseline(self._baseline),
                best=answer.best(),
                elapsed_s=used_s,
                time_left_s=self._time_left_s(stage, used_s),
                note=self._last_note,
            )
        )

    def _time_left_s(self, stage: Stage, used_s: float) -> float | None:
        """What is left to run at the typical trial's length; the budget ends it sooner."""
        typical_s = self.crew.history.typical_s
        if stage is Stage.DONE:
            return 0.0
        if typical_s is None:
            return None
        n_search = 0
        if stage is not Stage.CONFIRM:
            n_search = max(0, self._n_budget - n_done(self.crew.history))
        n_confirm = 2 * confirm.ROUNDS
        if self._comparison is not None:
            n_confirm = confirm.n_missing(
                self._comparison, self.crew.history, left_s=self._left_s(())
            )
        left_s = n_search / self._capacity() * typical_s
        left_s += n_confirm * confirm.run_s(self.crew.history)
        if self._job.budget.time_s is not None:
            left_s = min(left_s, max(0.0, self._job.budget.time_s - used_s))
        return left_s
