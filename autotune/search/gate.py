"""A gate: a study's best runs again, cold, until it is known whether it is as fast as it was.

Speed now over speed then is looked at after `FIRST_LOOK` rounds of one run, and after the last;
each look has its share of the 5% that the interval may miss.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, takewhile

from autotune.base.clock import unix_now_s
from autotune.base.student_t import t_quantile
from autotune.contract import TrialResult
from autotune.record.answer import Speedup
from autotune.record.gate import DIGEST_LENGTH, Gate, GateVerdict, Reference
from autotune.record.soak import digest_of
from autotune.record.spread import Spread, between, is_figure, mean_log_rate, pooled
from autotune.record.study import Trial, results
from autotune.search.history import CandidateTrials
from autotune.search.rounds import Round, Rounds
from autotune.search.trial_spec import Run
from autotune.space.candidate import Candidate
from autotune.space.workload import workload_of

FIRST_LOOK = 3
"""Runs after which it may be decided."""
MOST_ROUNDS = 100
MISSED = 0.05
"""Share of gates whose interval may miss, over both looks."""
MISSED_FIRST = 0.01
"""That of the first of two looks: the last decides what is not plain (O'Brien and Fleming, A
Multiple Testing Procedure for Clinical Trials, Biometrics 35, 1979)."""
_POWER_QUANTILE = 0.84
"""The normal distribution's quantile of 80%: how often the runs asked for should decide."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Runs of now, at least two, beside the reference."""

    reference: Reference
    within: float
    """Share that they may be slower, or take more memory."""
    runs: Sequence[TrialResult]
    missed: float
    """Share of such looks whose interval may miss."""

    @cached_property
    def spread(self) -> Spread:
        """How much runs differ: as these show alone, and no less than with what the study knew.

        The degrees of freedom are those of these runs: a machine may be noisier than it was.
        """
        known = pooled([self.runs], self.reference.deviation)
        squares, degrees = between([self.runs])
        return replace(known, variance=max(known.variance, squares / degrees), degrees=degrees)

    @cached_property
    def ratio(self) -> Speedup:
        """Samples/s now over those then; the error is that of both means."""
        log = mean_log_rate(self.runs) - math.log(self.reference.standing.samples_per_s)
        return Speedup.around(log, self._reach(len(self.runs), self.missed))

    @property
    def verdict(self) -> GateVerdict:
        """What they show so far."""
        then_bytes = self.reference.standing.peak_memory_bytes or math.inf
        known = [run.peak_memory_bytes for run in self.runs if run.peak_memory_bytes is not None]
        least_bytes = min(known, default=0)
        if self.ratio.high < 1 - self.within and not self.is_disturbed:
            return GateVerdict.SLOWER
        if least_bytes > then_bytes * (1 + self.within):
            return GateVerdict.MORE_MEMORY
        is_within = self.ratio.low >= 1 - self.within
        return GateVerdict.WITHIN if is_within else GateVerdict.UNDECIDED

    @property
    def is_disturbed(self) -> bool:
        """Whether other work took time from most runs: that they are slow proves nothing."""
        return 2 * sum(bool(run.disturbed) for run in self.runs) > len(self.runs)

    @property
    def runs_to_decide(self) -> int | None:
        """Runs after which the interval is likely to leave the limit out; None: no number does."""
        gap, missed = abs(math.log(self.ratio.ratio / (1 - self.within))), MISSED - MISSED_FIRST
        more = range(len(self.runs) + 1, MOST_ROUNDS + 1)
        return next((n for n in more if self._reach(n, missed, _POWER_QUANTILE) <= gap), None)

    def _reach(self, n_runs: int, missed: float, beyond: float = 0.0) -> float:
        """Half the width of the ratio's interval after some runs, in log samples/s.

        The variances of both means differ, and so do their degrees of freedom: the quantile is the
        mean of both, weighted by variance (Cochran and Cox, Experimental Designs, 1957, section
        4.14). It misses no more often than asked for; Welch's misses more, with so few runs.
        `missed` is the share of such intervals that may miss; `beyond`: standard errors besides.
        """
        now = self.spread.variance_of_mean(self.runs) * len(self.runs) / n_runs
        then = self.reference.variance_of_mean
        known = (now, n_runs - 1), (then, self.reference.degrees)
        weighted = sum(one * t_quantile(1 - missed / 2, degrees) for one, degrees in known)
        return (weighted / (now + then) + beyond) * math.sqrt(now + then)


@dataclass(kw_only=True)
class GateRunner(Rounds):
    """Runs a gate's rounds: of the reference's job here, in the record of the gates."""

    reference: Reference
    against: str
    """Where the reference is from."""
    within: float

    def run(self) -> Gate | None:
        """Run all that it takes to decide, from where the record ends; None: the user ended it.

        Errors are those of `run_all`.
        """
        self._resumed = self._figures(self.n_rounds)
        if not self.run_all():
            return None
        ended, runs = results(self._trials), self._figures(self.n_rounds)
        if fault := next((run for run in ended if run.outcome.is_config_fault), None):
            why = f"{fault.outcome}: {fault.evidence or '; '.join(fault.differences)}"
            return self._gate(GateVerdict.DOES_NOT_RUN, why=why)
        if len(runs) < FIRST_LOOK:
            last = [run for run in ended if not is_figure(run)][-1]
            why = f"the platform ended its runs, the last by {last.outcome}: {last.evidence}"
            return self._gate(GateVerdict.NOT_MEASURED, why=why)
        look = self._look(runs)
        why = "other work took time from most of the runs" if look.is_disturbed else ""
        return self._gate(look.verdict, why=why, look=look)

    @property
    def _trials(self) -> list[Trial]:
        return [*chain.from_iterable(self.runs.trials.values())]

    def _figures(self, n_rounds: int) -> list[TrialResult]:
        """The runs that count of the first rounds, up to one without."""
        found = {number: run for (_, number), run in self.runs.figures.items()}
        return [found[number] for number in takewhile(found.__contains__, range(n_rounds))]

    def _look(self, runs: Sequence[TrialResult]) -> Look:
        is_first = len(runs) <= FIRST_LOOK
        missed = MISSED_FIRST if is_first else MISSED - MISSED_FIRST
        if self.n_rounds == FIRST_LOOK:  # the only one
            missed = MISSED
        return Look(reference=self.reference, within=self.within, runs=runs, missed=missed)

    def round_after(self, n_rounds: int) -> Round | None:
        """One run a round, until it is decided or the platform fails it."""
        runs = self._figures(n_rounds)
        if len(runs) < n_rounds or n_rounds >= self.n_rounds:
            return None
        if n_rounds == FIRST_LOOK and self._look(runs).verdict is not GateVerdict.UNDECIDED:
            return None
        return Round(keys=(self.reference.standing.candidate.hash,))

    def candidate_of(self, key: str) -> Candidate:
        return self.reference.standing.candidate

    def about(self, run: Run, number: int) -> str:
        return f"run {number + 1} of {self.n_rounds} at the most"

    @property
    def step_s(self) -> float | None:
        """Seconds of a step: at first, as they were then."""
        then_s = self.session.job.global_batch / self.reference.standing.samples_per_s
        return super().step_s or then_s

    def run_once(self, key: str, number: int) -> Trial | None:
        """Run it; the first run shows whether releases are those of before an interruption."""
        trial = super().run_once(key, number)
        if trial is not None and trial.result is not None and (now := trial.result.versions):
            before, self._resumed = self._resumed, []
            if before and before[-1].versions != now:
                self.first_round += number
                self.session.study.update_state(first_round=self.first_round)
                self.runner.note("runs of before the interruption had other releases: left out")
        return trial

    def _gate(self, verdict: GateVerdict, *, why: str = "", look: Look | None = None) -> Gate:
        standing, runs = self.reference.standing, look.runs if look else ()
        spread, trials = look.spread if look else Spread(), tuple(self._trials)
        tried = CandidateTrials(candidate=standing.candidate, trials=trials, spread=spread)
        is_open = verdict is GateVerdict.UNDECIDED
        return Gate(
            verdict=verdict,
            why=why,
            against=self.against,
            study=self.reference.study,
            within=self.within,
            reference=standing,
            now=tried.standing_by(runs) if look else None,
            ratio=look.ratio if look else None,
            deviation=math.sqrt(spread.variance) if look else None,
            runs_to_decide=look.runs_to_decide if look and is_open and not why else None,
            differences=self._differences(runs),
            device_name=self.session.environment.device_name,
            ended_at_s=unix_now_s(),
        )

    def _differences(self, runs: Sequence[TrialResult]) -> dict[str, tuple[str, str]]:
        reference, session = self.reference, self.session
        candidate, script = reference.standing.candidate, session.job.script
        files = dict(session.engine_of(candidate).files(candidate))
        digest = workload_of(session.job, candidate).digest[:DIGEST_LENGTH]
        if digest != reference.script and script is not None and (other := script.changed()):
            digest = f"changed: {', '.join(other)}"
        then = reference.facts
        now = replace(
            reference,
            environment=session.environment,
            versions=runs[-1].versions if runs else reference.versions,
            configuration=digest_of(files)[:DIGEST_LENGTH],
            script=digest,
        ).facts
        names = [name for name in {**then, **now} if then.get(name) != now.get(name)]
        return {name: (then.get(name, ""), now.get(name, "")) for name in names}
