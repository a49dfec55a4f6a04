"""The coordinator: baseline, search, final comparison; one thread, no state but the record."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial

from autotune.base.flags import flag
from autotune.base.telling import tell
from autotune.base.units import typed_seconds
from autotune.contract import Start, TrialSpec
from autotune.fleet.base import Fleet
from autotune.record.answer import SearchAnswer
from autotune.record.facts import BaselineFacts
from autotune.record.study import results
from autotune.search import confirm
from autotune.search.answer import RecordStandings, nothing_feasible
from autotune.search.base import Observer, Snapshot, Stage, StopReason
from autotune.search.interrupt import Interrupt
from autotune.search.race import COLD, MIN_ROUNDS, N_CONFIRM
from autotune.search.runner import POLL_S, Runner
from autotune.search.session import Session
from autotune.search.stages import BaselineStage, ComparisonStage, ProposalStage, SearchStage
from autotune.search.steering import Steering
from autotune.search.stop import n_done, searched
from autotune.search.study_facts import save_facts
from autotune.search.trial_spec import Run

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
        """Go through the stages."""
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
        self._say_if_none_fits()
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
            self._no_comparison = self._why_none(None)
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
                        self._no_comparison = self._why_none(self._least_s)
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

    def _say_if_none_fits(self) -> None:
        """Say before the search proper that its first trial leaves no time for a comparison."""
        session, runner, after_s = self._session, self._runner, self._runner.history.typical_s
        is_over = runner.interrupt.draining or searched(runner.history)
        if after_s is None or is_over or not session.place.compares:
            return
        left_s = runner.left_s(session.job.budget.time_s) - after_s
        if self._least_s > left_s and not session.may_start_warm(self._baseline.candidate):
            why = self._why_none(self._least_s, after_s=after_s)
            runner.note(f"no time for a final comparison: {why}")

    def _why_none(self, least_s: float | None, *, after_s: float = 0.0) -> str:
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
