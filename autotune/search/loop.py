"""The coordinator: baseline, search, final comparison; one thread, no state but the record."""

import time

from autotune.base.units import format_seconds
from autotune.contract import Role
from autotune.record.answer import SearchAnswer
from autotune.search import confirm
from autotune.search.answer import RecordStandings, nothing_feasible
from autotune.search.base import Snapshot, Stage, StopReason
from autotune.search.history import results
from autotune.search.in_flight import POLL_S, SearchContext, TrialsInFlight
from autotune.search.race import COLD, MIN_ROUNDS, N_CONFIRM
from autotune.search.sharing import slowed_by_others
from autotune.search.stages import BaselineStage, ComparisonStage, ProposalStage, SearchStage
from autotune.search.stop import n_done
from autotune.search.study_facts import save_baseline, save_facts

_SNAPSHOT_S = 0.5


def run_search(context: SearchContext) -> SearchAnswer:
    """Search for the best candidate of a lattice, or go on with a search that was cut short.

    The caller holds the study's lock and closes the fleet.

    Raises:
        NothingFeasibleError: No trial ran within the limits.
        StudyError: The record cannot be read or written; what has ended before is in it.
        FleetError: The fleet cannot hold the job's world, or ends one trial after the other.
    """
    search = _StagedSearch(context)
    try:
        return search.run()
    except BaseException:
        search.flight.abandon()
        raise


class _StagedSearch:
    """Drives the stages, one after the other, and shows how far they are."""

    def __init__(self, context: SearchContext) -> None:
        self._context = context
        self.flight = TrialsInFlight(context)
        self._baseline = BaselineStage(context, self.flight)
        self._proposals = ProposalStage(context, self.flight, self._baseline)
        self._comparison: ComparisonStage | None = None
        self._no_comparison = ""
        self._said_draining = False

    def run(self) -> SearchAnswer:
        """Go through the stages."""
        context, study = self._context, self._context.study
        self.flight.recover()
        save_facts(context, left_out=self.flight.left_out)
        self._drive(self._baseline)
        if context.interrupt.draining:
            self._baseline.next_run()  # runs nothing: the record may say which it is
        save_baseline(study, self._baseline.candidate, self._baseline.passed_over)
        self._drive(self._proposals)
        stop = self._proposals.stop or StopReason.INTERRUPTED
        if not context.interrupt.draining:
            context.note(f"search ends: {stop}")
            if self._standings.best() is None:
                raise nothing_feasible(self.flight.history, context)
            self._compare()
            if slowed := slowed_by_others(self.flight.history):
                context.note(slowed)
        if context.interrupt.draining:
            stop = StopReason.INTERRUPTED
        ending = {"stop_reason": stop, "no_comparison": self._no_comparison}
        study.write_state({**study.read_state(), **ending})
        self._show(Stage.DONE)
        return self._standings.final(
            baseline=self._baseline.candidate,
            passed_over=self._baseline.passed_over,
            stop_reason=stop,
        )

    def _compare(self) -> None:
        context = self._context
        if context.no_comparison:
            self._no_comparison = context.no_comparison
            context.note(f"no final comparison: {context.no_comparison}")
            return
        left_s = self.flight.left_s
        baseline = self._baseline.candidate
        measured = context.objective.figures(self.flight.history.explored).keys()
        if baseline is not None and measured == {baseline.hash}:
            self._no_comparison = "nothing but the baseline ran within the limits"
            context.note(f"no final comparison: {self._no_comparison}")
            return
        guards = self._standings.guards(baseline)
        drifting = confirm.drifted_before(self.flight.history, guards)
        while True:
            planned = confirm.plan(
                self.flight.history,
                context.objective,
                baseline,
                left_s=left_s,
                drifting=drifting,
                guard_steps=context.job.guard_steps,
                may_start_warm=context.may_start_warm,
                only_best=context.job.compare == "best",
            )
            if planned is None:
                if self._comparison is not None:
                    context.note("no time left to compare those that the guard passes")
                elif self._standings.compared(baseline) is not None:
                    context.note("no time left to compare again: the recorded comparison counts")
                else:
                    self._no_comparison = "no time was left for it"
                    context.note("no time left for the final comparison: figures are of one trial")
                    if context.job.budget.time_s is not None:
                        one_s = confirm.run_seconds(self.flight.history, COLD).cold
                        least_s = MIN_ROUNDS * N_CONFIRM * one_s
                        context.note(
                            f"its shortest form takes up to {format_seconds(least_s)}, and "
                            f"{format_seconds(max(0.0, left_s([])))} are left: the same command "
                            "with a larger --budget goes on with it"
                        )
                return
            self._comparison = ComparisonStage(context, self.flight, planned)
            if self._comparison.missing:
                self._drive(self._comparison)
            if context.interrupt.draining:
                return
            planned = self._comparison.planned
            if planned.is_broken:
                continue  # the best has failed, and those that had dropped out are back
            drifted = self._standings.drifted_best(baseline, planned)
            if drifted is None:
                return
            number, guarded = drifted
            context.note(f"trial {number} was the best, and its losses drift: {guarded.why}")
            guards = self._standings.guards(baseline)
            if confirm.n_drifted(self.flight.history, guards) >= confirm.MAX_COMPARISONS:
                context.note(f"{confirm.MAX_COMPARISONS} comparisons drifted: no further one")
                return
            drifting |= {m.hash for m in planned.members} & self._standings.drifting(baseline)

    def _drive(self, stage: SearchStage) -> None:
        """Start what a stage asks for, as many at a time as it may, until it asks no more."""
        interrupt, flight = self._context.interrupt, self.flight
        self._show(stage.name)
        shown_at = time.monotonic()
        has_more = True
        while True:
            changed = False
            while has_more and not interrupt.draining and flight.n_running < stage.at_once:
                run = stage.next_run()
                if run is None:
                    has_more = False
                    break
                flight.start(run)
                changed = True
            if interrupt.ending:
                flight.cancel()
            elif interrupt.draining:
                self._say_draining()
            if not flight.n_running:
                return
            if changed or time.monotonic() - shown_at >= _SNAPSHOT_S:
                self._show(stage.name)
                shown_at = time.monotonic()
            # What the cost model or a table answers is there at once.
            is_ended = changed and flight.collect()
            if not is_ended:
                interrupt.wait(POLL_S)
                is_ended = flight.collect()
            if is_ended:
                has_more = True  # what has ended may be owed another run
                self._show(stage.name)

    def _say_draining(self) -> None:
        """Say once why nothing happens after Ctrl-C."""
        if self._said_draining or not self.flight.n_running:
            return
        self._said_draining = True
        self._context.note(
            "interrupted: waiting for the running trials to end; Ctrl-C again ends them at once"
        )

    @property
    def _standings(self) -> RecordStandings:
        return RecordStandings(self._context, self.flight.history)

    def _show(self, stage: Stage) -> None:
        self._context.observer.on_snapshot(self._snapshot(stage))

    def _snapshot(self, stage: Stage) -> Snapshot:
        standings, history = self._standings, self.flight.history
        used_s = self.flight.used_s()
        return Snapshot(
            stage=stage,
            counts=history.counts,
            trials=history.recorded,
            rates=tuple(
                result.samples_per_s
                for result in results(history.trials)
                if result.samples_per_s is not None
                and result.outcome.is_measured
                and result.role is not Role.CONFIRM
            ),
            n_done=n_done(history),
            n_budget=self._proposals.n_budget,
            running=self.flight.running(),
            baseline=standings.baseline(self._baseline.candidate),
            best=standings.best(),
            comparison=self._comparison.planned
            if self._comparison is not None and stage is Stage.CONFIRM
            else None,
            elapsed_s=used_s,
            time_left_s=self._time_left_s(stage, used_s),
            # What was said of a trial is no news once all have ended.
            note=self._context.notes[-1]
            if self._context.notes and stage is not Stage.DONE
            else "",
        )

    def _time_left_s(self, stage: Stage, used_s: float) -> float | None:
        """Seconds that are left at the typical trial's length; the budget ends it sooner."""
        history, budget_s = self.flight.history, self._context.job.budget.time_s
        typical_s = history.typical_s
        if stage is Stage.DONE:
            return 0.0
        if typical_s is None or self._context.interrupt.draining:
            return None  # what still runs ends it
        n_search = 0 if stage is Stage.CONFIRM else self._proposals.n_left
        left_s = n_search / self._context.capacity * typical_s
        left_s += self._comparison_left_s()
        return left_s if budget_s is None else min(left_s, max(0.0, budget_s - used_s))

    def _comparison_left_s(self) -> float:
        """Seconds that the final comparison takes, as far as one can know: it is a race."""
        context, history = self._context, self.flight.history
        if context.no_comparison:
            return 0.0
        if self._comparison is None:
            return context.comparison_s(history, self._baseline.candidate)
        rules = self._comparison.planned.rules
        one_s = confirm.run_seconds(history, rules, context.job.guard_steps)
        return sum(one_s.one(cold=run.cold) for run in self._comparison.missing)
