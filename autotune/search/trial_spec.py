"""Makes a trial of a candidate: the spec that its ranks will read."""

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from autotune.contract import (
    EngineSettings,
    Fidelity,
    Identity,
    Measure,
    Predicted,
    Provenance,
    Role,
    Start,
    TrialSpec,
)
from autotune.devices.hardware import Environment
from autotune.engines.base import Engine
from autotune.job.job import Job
from autotune.record.study import Trial, results
from autotune.search.history import owed_repeat
from autotune.space.candidate import Candidate, layout_of
from autotune.space.workload import workload_of
from autotune.trial.statistics import MIN_SAMPLES

MEASURE = Measure(
    warmup_steps=2,
    min_steps=MIN_SAMPLES,
    max_steps=1000,
    target_half_width=0.03,
    budget_s=8.0,
)
"""Measure of a cold start. Two steps cover the allocator's growth and lazy kernels; `MIN_SAMPLES`
are the fewest from which the median's interval means anything; candidates closer than 3% are the
final comparison's to tell apart."""

WARM_MEASURE = dataclasses.replace(MEASURE, budget_s=3.0)
"""Measure of a warm start, which costs a tenth of a cold one. With a start that costs c and steps
of s seconds each, whose noise is w and that of whole runs b, most is learned per second with
sqrt(c / s) w / b steps in a run (Cochran, Sampling Techniques, 3rd edition, 10.6), so the time to
measure for goes with the root of what a start costs: from 8 s where that is 4.05 s to
8 sqrt(0.48 / 4.05) = 2.8 s where it is 0.48 s (`benchmarks/trial_overhead.py`), rounded up."""

FORKING = ("cpu", "cuda")
"""Accelerators whose ranks were forked from a warm template and trained as cold ones do."""

CONFIRM_MEASURE = Measure(
    warmup_steps=2,
    min_steps=10,
    max_steps=1000,
    target_half_width=0.02,
    budget_s=10.0,
)
"""Measure of a run of a comparison in which all start cold; one that starts warm measures as any
warm trial does: another run tells more than further steps of the same."""

BRIEF_MEASURE = dataclasses.replace(CONFIRM_MEASURE, budget_s=WARM_MEASURE.budget_s)
"""Measure of a cold run beside warm ones. All rounds weigh alike: longer measuring would narrow
the interval by a fiftieth only (`benchmarks/final_comparison.py`)."""

OWN_STEPS = CONFIRM_MEASURE.warmup_steps + CONFIRM_MEASURE.min_steps
"""Steps that a run of a comparison takes at the least where nothing is guarded."""
GUARD_S = 40.0
"""Seconds of steps up to which a run goes on for the convergence guard alone; `OWN_STEPS` are run
in any case."""


def steps_within(wanted: int, step_s: float | None) -> int:
    """Steps that a run takes for the guard where one takes `step_s`; None: nobody knows.

    As many as are compared, but no more than `GUARD_S` allow: a trial of slow steps would run
    into its time limit.
    """
    return wanted if not step_s else min(wanted, int(GUARD_S / step_s))


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trial to start."""

    candidate: Candidate
    role: Role
    confirm_round: int | None = None
    retry_of: int | None = None
    repeat_of: int | None = None
    losing_step_time_s: float | None = None
    """Step time above which the trial stops early; None: never."""
    predicted: Predicted | None = None
    """Expected measurement of the trial; None: nobody can say."""
    reduced_of: Candidate | None = None
    """The job's own candidate that `candidate` is a reduced form of; None: it is one itself."""
    start: Start = Start.COLD
    """Start of a run of the final comparison; warm: as a trial does."""
    is_beside_warm: bool = False
    """Whether others of its comparison start warm: then it measures for no longer than they do."""
    least_steps: int = 0
    """Optimizer steps that it takes at the least, warm-up included; 0: what its measure says."""

    @property
    def fidelity(self) -> Fidelity | None:
        """How the trial is smaller than the job asks for; None: it is not."""
        if self.reduced_of is None:
            return None
        form, full = self.candidate, self.reduced_of
        return Fidelity(layers=form.layers, world=None if form.world == full.world else form.world)

    def again(self, trials: Iterable[Trial], to_repeat: Collection[int]) -> "Run":
        ran = tuple(trials)
        repeat_of = owed_repeat(ran, to_repeat)
        failed = [
            result.number
            for result in results(ran)
            if result.outcome.is_platform_fault
            and (repeat_of is None or result.number > repeat_of)
        ]
        retry_of = failed[-1] if failed else None
        return dataclasses.replace(self, retry_of=retry_of, repeat_of=repeat_of)


def may_start_warm(
    job: Job, engine: Engine, candidate: Candidate, environment: Environment
) -> bool:
    """Whether a trial of a candidate may start warm: where the job wants it, and forking works."""
    is_wanted = job.start is Start.WARM and environment.accelerator in FORKING
    return is_wanted and engine.ranks(candidate).may_start_warm


def make_spec(
    run: Run, *, study: str, number: int, job: Job, engine: Engine, environment: Environment
) -> TrialSpec:
    """The spec of a run.

    Raises:
        RenderError: The candidate's configuration does not render.
    """
    candidate, ranks = run.candidate, engine.ranks(run.candidate)
    explores = run.role in (Role.BASELINE, Role.SEARCH)
    # Warm ranks are forked from a process that has imported everything. The claim is confirmed by
    # cold starts, and a platform fault is answered by one.
    is_asked = explores or (run.role is Role.CONFIRM and run.start is Start.WARM)
    may_be_warm = is_asked and run.retry_of is None
    is_warm = may_be_warm and may_start_warm(job, engine, candidate, environment)
    measure = WARM_MEASURE if is_warm else MEASURE
    if run.role is Role.CONFIRM:
        if not is_warm:
            measure = BRIEF_MEASURE if run.is_beside_warm else CONFIRM_MEASURE
        least = max(measure.min_steps, run.least_steps - measure.warmup_steps)
        measure = dataclasses.replace(measure, min_steps=least)
    else:
        measure = dataclasses.replace(measure, losing_step_time_s=run.losing_step_time_s)
    return TrialSpec(
        identity=Identity(
            study=study,
            number=number,
            role=run.role,
            candidate_hash=candidate.hash,
            knobs=dict(candidate.knobs),
            confirm_round=run.confirm_round,
            fidelity=run.fidelity,
            reduced_of=None if run.reduced_of is None else run.reduced_of.hash,
        ),
        layout=layout_of(candidate, environment.accelerator),
        workload=workload_of(job, candidate),
        engine=EngineSettings(
            name=engine.name,
            expected=engine.expected(candidate),
            overridden={key: list(pair) for key, pair in engine.overridden(candidate).items()},
            environment=dict(ranks.environment),
            binds_cores=ranks.binds_cores,
            rendering_digest=engine.rendering_digest,
        ),
        measure=dataclasses.replace(
            measure,
            memory_limit_bytes=job.enforced_limit_bytes(environment.device_memory_bytes),
            timeout_s=job.trial_timeout_s,
            # The final comparison runs nothing but its steps, since the claim rests on it; and
            # what bounds a reduced run need not bound the candidate.
            diagnoses=job.diagnose and explores and run.reduced_of is None,
            start=Start.WARM if is_warm else Start.COLD,
        ),
        provenance=Provenance(
            retry_of=run.retry_of, repeat_of=run.repeat_of, predicted=run.predicted
        ),
    )
